-- Named queries about lane ownership and lease expiry. ../sqlite/leases.sql has the same names where the idea is the same.
-- A lane is free when it has no owner, or when its lease has expired. `clock_timestamp()`, because a statement may have
-- waited for a lock since `now()`.

-- name: create_sink
-- A relay with the destination $2 and the filter $4 is being started for this sink. Returns the sink's own. Of two relays
-- that create a sink at once, the second waits here for the first. $3: a sink without a destination may get this one.
-- $5 to $10: what the filter is compared by.
insert into {schema}.sinks as s (
       sink, destination, filter, topics, topics_regex, excluded, excluded_regex, types, sources)
values ($1, $2, $4, $5, $6, $7, $8, $9, $10)
on conflict (sink) do update
   set served_at = clock_timestamp(),
       destination = case when $3::boolean then coalesce(s.destination, excluded.destination) else s.destination end
returning destination, filter

-- name: create_lanes
-- Equal ranges of slots. $3: the position to start after; the time at which the rows up to there were published, if they
-- were, is not known. It was read before this transaction got its id, so that id is its horizon (see read_page).
with made as (
    insert into {schema}.lanes (sink, lane, first_slot, last_slot, position, snapshot, horizon)
    select $1, n, n * 1024 / $2, (n + 1) * 1024 / $2 - 1,
           $3::bigint, pg_current_snapshot(), pg_current_xact_id()
      from generate_series(0, $2::int - 1) n
     where not exists (select from {schema}.lanes where sink = $1)
    returning sink, lane, position, snapshot)
insert into {schema}.progress (sink, lane, position, at, snapshot, published, refused)
select sink, lane, position, '-infinity', snapshot, 0, 0 from made where position > 0

-- name: heartbeat
-- Everything that an idle relay does, in one statement: extend its registration, renew the leases of its lanes, read the
-- sink's snapshot; renew its naps, check its lanes, notify itself; and delete the naps of dead relays, and dead relays
-- after a day, except the last one of another sink: it tells when that sink was last served.
-- $1: owner; $2: sink; $3: host; $4: pid; $5: version; $6: lease in seconds; $7: false to write no heartbeat and renew no
-- lease; $8: the server process of the session that holds the relay's advisory lock, or null.
-- $9: naps; $10: seconds that a nap lasts; $11: channel; $12: what to notify ourselves of; null: nothing about naps.
-- Row locks are never waited for: a lane that is locked (by its own settle, or by an application that cancels) is renewed
-- by the next heartbeat, and so is a nap that a writer has locked. The relay's row says that it holds a lock only if the
-- server confirms it: the session may have ended unnoticed. A suspect's row says that it holds a lock, since the server's
-- last start, and its process does not hold it. A lane has work when the log has grown, in whatever slots (so that quiet
-- lanes advance too), or when it has late rows.
with held_lock as materialized (
    select $8::integer is null or $8 in (select {schema}.lock_holders(r.lock_key)
                                           from {schema}.relays r where r.owner = $1) as confirmed),
registered as (
    insert into {schema}.relays as r (owner, sink, host, pid, version, alive_until)
    select $1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6)
     where $7
    on conflict (owner) do update
       set heartbeat_at = clock_timestamp(), heartbeats = r.heartbeats + 1, alive_until = excluded.alive_until,
           lock_key = case when $8::integer is not null and (select confirmed from held_lock) then r.lock_key end,
           server_started = case when $8::integer is not null and (select confirmed from held_lock) and r.lock_key is not null
                                 then {schema}.server_started() end),
forgotten as (
    delete from {schema}.relays
     where owner in (select owner from {schema}.relays r
                      where $7 and owner <> $1 and alive_until < clock_timestamp() - interval '1 day'
                        and (sink = $2 or exists (select from {schema}.relays later
                                                   where later.sink = r.sink and later.heartbeat_at > r.heartbeat_at))
                        for update skip locked)),
own_lanes as materialized (
    select lane from {schema}.lanes where sink = $2 and owner = $1 and $7 for update skip locked),
renewed as (
    update {schema}.lanes l
       set lease_until = clock_timestamp() + make_interval(secs => $6)
      from own_lanes
     where l.sink = $2 and l.lane = own_lanes.lane and l.owner = $1
    returning l.lane),
peers as materialized (
    select r.*, (select count(*) from {schema}.lanes l where l.sink = $2 and l.owner = r.owner) as lanes
      from {schema}.relays r
     where r.sink = $2 and (r.alive_until > clock_timestamp() or (r.owner = $1 and $7))),
suspects as materialized (
    select owner, heartbeats from peers
     where owner <> $1 and lock_key is not null and server_started = {schema}.server_started()
       and not exists (select from {schema}.lock_holders(lock_key) as pid where pid = coalesce(lock_pid, pid))),
renewed_naps as (
    update {schema}.naps set until = clock_timestamp() + $10::float8 * interval '1 second'
     where id in (select id from {schema}.naps
                   where id = any($9::bigint[]) and until > clock_timestamp() + $10::float8 / 3 * interval '1 second'
                     and marks & ~ coalesce(pg_sequence_last_value('{schema}.napping'::regclass), 0) = 0
                     for update skip locked)
    returning id),
deleted_naps as (
    delete from {schema}.naps
     where id in (select id from {schema}.naps
                   where $12::text is not null and until < now() - interval '1 minute' and id <> all($9::bigint[])
                     for update skip locked)),
notified as materialized (
    select pg_notify($11, $12) where $12::text is not null and pg_notification_queue_usage() <= 0.5)
select (select confirmed from held_lock) as lock_held,
       (select destination from {schema}.sinks where sink = $2) as destination,
       (select filter from {schema}.sinks where sink = $2) as filter,
       (select count(*) from {schema}.lanes where sink = $2) as lanes,
       array(select lane from {schema}.lanes where sink = $2 and owner = $1 order by lane) as mine,
       array(select epoch from {schema}.lanes where sink = $2 and owner = $1 order by lane) as epochs,
       array(select case when exists (select from {schema}.deferred d
                                       where d.sink = $2 and d.lane = l.lane and not d.noticed)
                         then 9223372036854775807 else version end
               from {schema}.lanes l where sink = $2 and owner = $1 order by lane) as versions,
       array(select lane from renewed) as renewed,
       array(select lane from {schema}.lanes
              where sink = $2 and owner is distinct from $1
                and (owner is null or coalesce(lease_until < clock_timestamp(), true))
              order by lane) as free,
       array(select owner from peers order by started_at, owner) as peers,
       array(select lanes from peers order by started_at, owner) as peers_lanes,
       array(select heartbeats from peers order by started_at, owner) as peers_heartbeats,
       array(select lock_key from peers order by started_at, owner) as peers_locks,
       array(select owner from suspects order by owner) as suspects,
       array(select heartbeats from suspects order by owner) as suspects_heartbeats,
       array(select l.lane from {schema}.lanes l
              where $12::text is not null and l.sink = $2 and l.owner = $1
                and (l.position < coalesce((select max(position) from {schema}.outbox), 0)
                     or (l.lane = 0 and exists (select from {schema}.copies c where c.sink = $2 and c.due_at <= now()))
                     or exists (select from {schema}.outbox o
                                 where (o.xid >= pg_snapshot_xmax(l.snapshot) and o.xid < coalesce(l.horizon, '{last_xid}')
                                        or o.xid = any(array(select pg_snapshot_xip(l.snapshot))))
                                   and o.slot between l.first_slot and l.last_slot
                                   and o.position + 0 <= l.position
                                   and {schema}.takes((select s from {schema}.sinks s where s.sink = $2),
                                                      o.topic, o.type, o.headers)))) as has_work,
       array(select id from renewed_naps) as renewed_naps,
       (select count(*) from notified) as notified

-- name: dead_suspects
-- Of the suspects, those that are dead: they have sent no heartbeat since they were suspected, their locks are still free,
-- and their last heartbeat is more than a second old. $1: sink; $2: owners; $3: how many heartbeats each had sent.
select r.owner
  from {schema}.relays r
  join unnest($2::uuid[], $3::bigint[]) as suspect (owner, heartbeats)
    on r.owner = suspect.owner and r.heartbeats = suspect.heartbeats
 where r.sink = $1
   and r.heartbeat_at < clock_timestamp() - interval '1 second'
   and r.lock_key is not null and r.server_started = {schema}.server_started()
   and not exists (select from {schema}.lock_holders(r.lock_key) as pid where pid = coalesce(r.lock_pid, pid))
   for update of r skip locked

-- name: mark_dead
-- A relay that still owns a lane, because another transaction has locked it, stays a suspect: the next relay to inspect
-- the sink evicts it.
update {schema}.relays r
   set alive_until = clock_timestamp()
 where r.owner = any($1::uuid[]) and not exists (select from {schema}.lanes l where l.owner = r.owner)
returning r.owner

-- name: free_lanes
-- Free all lanes of these owners, and notify all relays. The owners' writes fail from here on.
with theirs as materialized (
    select sink as s, lane as number from {schema}.lanes where owner = any($1::uuid[]) for update skip locked),
freed as (
    update {schema}.lanes
       set owner = null, lease_until = null, version = version + 1
      from theirs
     where sink = s and lane = number and owner = any($1::uuid[]))
select pg_notify('{schema}_lanes', '')

-- name: take_lanes
-- Take free lanes, and lanes of one's own that are to be reclaimed. Locked lanes are skipped. Taking raises the epoch.
-- $1: sink; $2: owner; $3: how many; $4: lease in seconds; $5: lanes to reclaim; $6: lanes to exclude;
-- $7 and $8: the relay's destination and filter. Waits for a transaction that changes or removes the sink.
with served as materialized (
    select from {schema}.sinks where sink = $1 and destination = $7 and filter is not distinct from $8 for share),
free as materialized (
    select lane as number from {schema}.lanes
     where exists (select from served)
       and sink = $1 and lane <> all($6::smallint[])
       and case when owner = $2 then lane = any($5::smallint[])
                else owner is null or coalesce(lease_until < clock_timestamp(), true) end
     order by (owner = $2) is true desc, lane
     limit $3
       for update skip locked)
update {schema}.lanes
   set owner = $2, epoch = epoch + 1, version = version + 1,
       lease_until = clock_timestamp() + make_interval(secs => $4)
  from free
 where sink = $1 and lane = number
returning sink, lane, first_slot, last_slot, owner, epoch, version,
          position, snapshot::text, late_position, late_snapshot::text, horizon

-- name: has_free_lanes
-- Whether a lane is still free after take_lanes, which skips locked ones. $2: lanes to exclude.
select exists (select from {schema}.lanes
                where sink = $1 and lane <> all($2::smallint[])
                  and (owner is null or coalesce(lease_until < clock_timestamp(), true)))

-- name: release_lane
-- The owner releases a lane. Owner and epoch are fence enough: nothing is written that could be out of date.
with released as (
    update {schema}.lanes
       set owner = null, lease_until = null, version = version + 1
     where sink = $1 and lane = $2 and owner = $3 and epoch = $4)
select pg_notify('{schema}_lanes', '')

-- name: deregister
-- The relay ends. If it still owns a lane, because another transaction has locked it, and other relays can see by its
-- advisory lock that it is gone, its row stays: they evict it and get the lane.
with served as (
    update {schema}.sinks set served_at = clock_timestamp() where sink = $2)
delete from {schema}.relays r
 where r.owner = $1 and (r.lock_key is null or not exists (select from {schema}.lanes l where l.owner = $1))

-- name: try_lock
-- Held by the session until it ends.
select pg_try_advisory_lock($1)

-- name: save_lock
-- Runs on the session that holds the lock, so that server_started is the start of the server that has the lock.
update {schema}.relays set lock_key = $2, lock_pid = pg_backend_pid(), server_started = {schema}.server_started()
 where owner = $1
returning true

-- name: lock_holder
-- The session that holds a lock, for people to read.
select 'server process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '')
  from {schema}.lock_holders($1) as pid left join pg_stat_activity using (pid)

-- name: set_keepalives
-- Lets the server notice within half a minute that the client's machine is gone, and keeps routers from dropping an idle
-- connection.
select set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '4', false)

-- name: announce_relay
-- Notify all relays that there is one more.
select pg_notify('{schema}_lanes', '')

-- name: relays
-- Every relay, and its lanes.
select r.owner, r.sink, r.host, r.pid, r.version,
       array(select lane from {schema}.lanes l where l.sink = r.sink and l.owner = r.owner order by lane) as lanes,
       r.started_at, extract(epoch from clock_timestamp() - r.heartbeat_at)::float8 as heartbeat_seconds,
       r.alive_until > clock_timestamp() as alive, r.lock_key
  from {schema}.relays r
 order by r.sink, r.started_at, r.owner
