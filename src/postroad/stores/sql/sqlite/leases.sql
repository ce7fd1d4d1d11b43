-- Named queries about lane ownership and lease expiry. ../postgresql/leases.sql has the same names where the idea is the
-- same. A lane is free when it has no owner, or when its lease has expired. Times are microseconds since 1970.

-- name: clock
select {now}

-- name: create_sink
-- A relay with the destination ?2 and the filter ?4 is being started for this sink. Returns the sink's own. ?3: a sink
-- without a destination may get this one.
insert into {schema}_sinks as s (sink, destination, filter) values (?1, ?2, ?4)
on conflict (sink) do update
   set served_at = {now},
       destination = iif(?3, coalesce(s.destination, excluded.destination), s.destination)
returning destination, filter

-- name: destination
-- Where the sink delivers to, and its filter.
select destination, filter from {schema}_sinks where sink = ?1

-- name: create_lanes
-- Equal ranges of slots. "oldest" starts before the first row, "now" after the last.
with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n + 1 < ?2)
insert into {schema}_lanes (sink, lane, first_slot, last_slot, position)
select ?1, n, n * 1024 / ?2, (n + 1) * 1024 / ?2 - 1,
       case when ?3 = 'now' then coalesce((select max(position) from {schema}_outbox), 0) else 0 end
  from numbers
 where not exists (select 1 from {schema}_lanes where sink = ?1)

-- name: undate_lanes
-- A new sink that starts at "now": the time at which earlier rows were published, if they were, is not known.
insert or ignore into {schema}_progress (sink, lane, position, at, published, refused)
select sink, lane, position, 0, 0, 0 from {schema}_lanes where sink = ?1 and epoch = 0 and position > 0

-- name: heartbeat
-- Register a relay, or extend its registration. ?1: owner; ?2: sink; ?3: host; ?4: pid; ?5: version; ?6: until when; ?7: now.
insert into {schema}_relays (owner, sink, host, pid, version, alive_until, heartbeat_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (owner) do update
   set heartbeat_at = ?7, heartbeats = heartbeats + 1, alive_until = ?6

-- name: renew_leases
-- Renew the leases of a relay's lanes. ?1: owner; ?2: sink; ?3: until when.
update {schema}_leases
   set lease_until = ?3
 where sink = ?2 and lane in (select lane from {schema}_lanes where sink = ?2 and owner = ?1)

-- name: list_lanes
-- Every lane of a sink, its owner and epoch, and whether it is free. ?1: sink; ?2: now.
select lane, owner, epoch,
       owner is null or not exists (select 1 from {schema}_leases e
                                     where e.sink = l.sink and e.lane = l.lane and e.lease_until >= ?2)
  from {schema}_lanes l
 where sink = ?1
 order by lane

-- name: peers
-- The live relays of a sink. ?1: sink; ?2: now.
select owner, heartbeats from {schema}_relays where sink = ?1 and alive_until > ?2 order by started_at, owner

-- name: take_lanes
-- Take this lane, which raises its epoch.
update {schema}_lanes
   set owner = ?2, epoch = epoch + 1, version = version + 1
 where sink = ?1 and lane = ?3
returning sink, lane, first_slot, last_slot, owner, epoch, version, position,
          (select schema_version from pragma_schema_version)

-- name: save_lease
insert into {schema}_leases (sink, lane, lease_until) values (?1, ?2, ?3)
on conflict (sink, lane) do update set lease_until = ?3

-- name: release_lane
-- The owner releases a lane. Owner and epoch are fence enough: nothing is written that could be out of date.
update {schema}_lanes
   set owner = null, version = version + 1
 where sink = ?1 and lane = ?2 and owner = ?3 and epoch = ?4

-- name: free_lanes
-- Free all lanes of this owner. Its writes fail from here on.
update {schema}_lanes set owner = null, version = version + 1 where owner = ?1

-- name: deregister
-- The relay ends.
delete from {schema}_relays where owner = ?1

-- name: save_served_at
update {schema}_sinks set served_at = ?2 where sink = ?1

-- name: forget_dead_relays
-- Deletes relays that died more than a day ago, except the last one of a sink: it tells when the sink was last served.
-- ?1: now.
delete from {schema}_relays
 where alive_until < ?1 - 86400000000
   and exists (select 1 from {schema}_relays later
                where later.sink = {schema}_relays.sink
                  -- SQLite's clock has milliseconds, and two relays may send a heartbeat in one.
                  and (later.heartbeat_at, later.alive_until, later.owner)
                      > ({schema}_relays.heartbeat_at, {schema}_relays.alive_until, {schema}_relays.owner))

-- name: relays
-- Every relay. ?1: now.
select owner, sink, host, pid, version, started_at, (?1 - heartbeat_at) / 1e6, alive_until > ?1
  from {schema}_relays
 order by sink, started_at, owner
