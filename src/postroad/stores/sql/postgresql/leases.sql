-- Named queries about lanes and who has them. The same names stand in ../sqlite/leases.sql where the idea is the same.
-- A lane is free when it has no owner, or when its lease is over. `clock_timestamp()`, because a statement may have waited.

-- name: create_sink
-- A relay is being started for this sink, and would deliver to $2. Gives where the sink delivers to. Of two relays that
-- meet a new sink at once, the second waits here for the first. $3: a sink that has no destination may get this one.
insert into {schema}.sinks as s (sink, destination) values ($1, $2)
on conflict (sink) do update
   set served_at = clock_timestamp(),
       destination = case when $3::boolean then coalesce(s.destination, excluded.destination) else s.destination end
returning destination

-- name: create_lanes
-- Equal ranges of slots. "oldest" begins before the first row, "now" behind the last: nobody knows when those were
-- published, if they were.
with made as (
    insert into {schema}.lanes (sink, lane, first_slot, last_slot, position, snapshot)
    select $1, n, n * 1024 / $2, (n + 1) * 1024 / $2 - 1,
           case when $3 = 'now' then coalesce((select max(position) from {schema}.outbox), 0) else 0 end,
           pg_current_snapshot()
      from generate_series(0, $2::int - 1) n
     where not exists (select from {schema}.lanes where sink = $1)
    returning sink, lane, position, snapshot)
insert into {schema}.progress (sink, lane, position, at, snapshot, published, refused)
select sink, lane, position, '-infinity', snapshot, 0, 0 from made where position > 0

-- name: beat
-- All that an idle relay does, in one statement: say that it lives, renew the leases of its lanes, and see how things
-- stand; renew its naps, look after its lanes, notify itself, and clear away the naps of relays that died, and the relays
-- themselves after a day, but the last one of another sink: it says when that sink was last served.
-- $1: owner; $2: sink; $3: host; $4: pid; $5: version; $6: lease in seconds; $7: false to look only, and neither beat nor
-- renew a lease; $8: the process of the session that holds its advisory lock, or null.
-- $9: naps; $10: seconds that a nap lasts; $11: channel; $12: what to notify ourselves of; null: nothing about naps.
-- Whoever has locked a lane's row (its own settle; an application that cancels) is not waited for: that lane is renewed
-- the next time. Nor is a writer that is at a nap's row. Who names a session says that it holds a lock only if the server
-- knows of that: the session may be gone without a word. A suspect says that it holds a lock, on the server as it was
-- started, and its process does not hold it. A lane has something to look at when the log has grown, in whatever slots (so
-- that quiet lanes advance too), or when it has late rows.
with present as materialized (
    select $8::integer is null or $8 in (select {schema}.lock_holders(r.lock_key)
                                           from {schema}.relays r where r.owner = $1) as so),
beaten as (
    insert into {schema}.relays as r (owner, sink, host, pid, version, alive_until)
    select $1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6)
     where $7
    on conflict (owner) do update
       set heartbeat_at = clock_timestamp(), beats = r.beats + 1, alive_until = excluded.alive_until,
           lock_key = case when $8::integer is not null and (select so from present) then r.lock_key end,
           server_started = case when $8::integer is not null and (select so from present) and r.lock_key is not null
                                 then {schema}.server_started() end),
forgotten as (
    delete from {schema}.relays
     where owner in (select owner from {schema}.relays r
                      where $7 and owner <> $1 and alive_until < clock_timestamp() - interval '1 day'
                        and (sink = $2 or exists (select from {schema}.relays later
                                                   where later.sink = r.sink and later.heartbeat_at > r.heartbeat_at))
                        for update skip locked)),
ours as materialized (
    select lane from {schema}.lanes where sink = $2 and owner = $1 and $7 for update skip locked),
renewed as (
    update {schema}.lanes l
       set lease_until = clock_timestamp() + make_interval(secs => $6)
      from ours
     where l.sink = $2 and l.lane = ours.lane and l.owner = $1
    returning l.lane),
peers as materialized (
    select r.*, (select count(*) from {schema}.lanes l where l.sink = $2 and l.owner = r.owner) as lanes
      from {schema}.relays r
     where r.sink = $2 and (r.alive_until > clock_timestamp() or (r.owner = $1 and $7))),
suspects as materialized (
    select owner, beats from peers
     where owner <> $1 and lock_key is not null and server_started = {schema}.server_started()
       and not exists (select from {schema}.lock_holders(lock_key) as pid where pid = coalesce(lock_pid, pid))),
kept as (
    update {schema}.naps set until = clock_timestamp() + $10::float8 * interval '1 second'
     where id in (select id from {schema}.naps
                   where id = any($9::bigint[]) and until > clock_timestamp() + $10::float8 / 3 * interval '1 second'
                     and marks & ~ coalesce(pg_sequence_last_value('{schema}.napping'::regclass), 0) = 0
                     for update skip locked)
    returning id),
cleared as (
    delete from {schema}.naps
     where id in (select id from {schema}.naps
                   where $12::text is not null and until < now() - interval '1 minute' and id <> all($9::bigint[])
                     for update skip locked)),
notified as materialized (
    select pg_notify($11, $12) where $12::text is not null and pg_notification_queue_usage() <= 0.5)
select (select so from present) as present,
       (select destination from {schema}.sinks where sink = $2) as destination,
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
       array(select beats from peers order by started_at, owner) as peers_beats,
       array(select lock_key from peers order by started_at, owner) as peers_locks,
       array(select owner from suspects order by owner) as suspects,
       array(select beats from suspects order by owner) as suspects_beats,
       array(select l.lane from {schema}.lanes l
              where $12::text is not null and l.sink = $2 and l.owner = $1
                and (l.position < coalesce((select max(position) from {schema}.outbox), 0)
                     or exists (select from {schema}.outbox o
                                 where (o.xid >= pg_snapshot_xmax(l.snapshot)
                                        or o.xid = any(array(select pg_snapshot_xip(l.snapshot))))
                                   and o.slot between l.first_slot and l.last_slot
                                   and o.position + 0 <= l.position))) as stirred,
       array(select id from kept) as kept,
       (select count(*) from notified) as notified

-- name: bury
-- Of the suspects, those that are dead: since they were suspected they have not beaten, their locks are still free, and
-- their last heartbeat is more than a second old. $1: sink; $2: owners; $3: their beats.
select r.owner
  from {schema}.relays r
  join unnest($2::uuid[], $3::bigint[]) as suspect (owner, beats) on r.owner = suspect.owner and r.beats = suspect.beats
 where r.sink = $1
   and r.heartbeat_at < clock_timestamp() - interval '1 second'
   and r.lock_key is not null and r.server_started = {schema}.server_started()
   and not exists (select from {schema}.lock_holders(r.lock_key) as pid where pid = coalesce(r.lock_pid, pid))
   for update of r skip locked

-- name: mark_dead
-- Whoever has a lane left, because somebody has locked it, is a suspect still: the next one to look comes back for it.
update {schema}.relays r
   set alive_until = clock_timestamp()
 where r.owner = any($1::uuid[]) and not exists (select from {schema}.lanes l where l.owner = r.owner)
returning r.owner

-- name: free_lanes
-- Take these owners' lanes from them, and tell all relays. Their fence fails from here on.
with theirs as materialized (
    select sink as s, lane as number from {schema}.lanes where owner = any($1::uuid[]) for update skip locked),
freed as (
    update {schema}.lanes
       set owner = null, lease_until = null, version = version + 1
      from theirs
     where sink = s and lane = number and owner = any($1::uuid[]))
select pg_notify('{schema}_lanes', '')

-- name: take_lanes
-- Take free lanes, and one's own again where that is asked for; nobody waits for anybody. Every taking raises the epoch.
-- $1: sink; $2: owner; $3: how many; $4: lease in seconds; $5: lanes of one's own; $6: lanes to leave alone;
-- $7: where the relay delivers to. If the sink is being moved elsewhere, or removed, that is waited for.
with served as materialized (
    select from {schema}.sinks where sink = $1 and destination = $7 for share),
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
          position, snapshot::text, late_position, late_snapshot::text

-- name: free_left
-- Whether a lane is free, after take_lanes has passed over what is locked. $2: lanes to leave alone.
select exists (select from {schema}.lanes
                where sink = $1 and lane <> all($2::smallint[])
                  and (owner is null or coalesce(lease_until < clock_timestamp(), true)))

-- name: give_up
-- The owner gives a lane up. Owner and epoch are fence enough: nothing is written that could be out of date.
with given as (
    update {schema}.lanes
       set owner = null, lease_until = null, version = version + 1
     where sink = $1 and lane = $2 and owner = $3 and epoch = $4)
select pg_notify('{schema}_lanes', '')

-- name: leave
-- The relay ends. If it has a lane left, because somebody has locked it, and others can see that it is gone, they come
-- back for the lane.
with served as (
    update {schema}.sinks set served_at = clock_timestamp() where sink = $2)
delete from {schema}.relays r
 where r.owner = $1 and (r.lock_key is null or not exists (select from {schema}.lanes l where l.owner = $1))

-- name: try_lock
-- Held by the session until it ends.
select pg_try_advisory_lock($1)

-- name: note_lock
-- Asked on the session that holds the lock, so that the server's start is that of the server which has it.
update {schema}.relays set lock_key = $2, lock_pid = pg_backend_pid(), server_started = {schema}.server_started()
 where owner = $1
returning true

-- name: lock_holder
-- Who has a lock, as people find it.
select 'server process ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '')
  from {schema}.lock_holders($1) as pid left join pg_stat_activity using (pid)

-- name: keep_alive
-- The server is to find out within half a minute that the machine at the other end is gone. And a router does not forget
-- a connection on which something passes.
select set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '4', false)

-- name: join_in
-- Tell all relays that there is one more.
select pg_notify('{schema}_lanes', '')

-- name: relays
-- Every relay, and what it has.
select r.owner, r.sink, r.host, r.pid, r.version,
       array(select lane from {schema}.lanes l where l.sink = r.sink and l.owner = r.owner order by lane) as lanes,
       r.started_at, extract(epoch from clock_timestamp() - r.heartbeat_at)::float8 as heartbeat_seconds,
       r.alive_until > clock_timestamp() as alive, r.lock_key
  from {schema}.relays r
 order by r.sink, r.started_at, r.owner
