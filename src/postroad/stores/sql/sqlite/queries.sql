-- Named queries for SQLite. The same names stand in ../postgresql/queries.sql where the idea is the same.

-- name: add
-- Adding an id again is a no-op.
insert into {schema}_outbox (id, topic, key, slot, type, payload, content_type, headers)
values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing

-- name: schema_version
-- How far the schema has been migrated, and how old a client may be.
select (select max(version) from {schema}_migrations) as version,
       (select min_client from {schema}_installation) as min_client

-- name: count_lanes
select count(*) from {schema}_lanes where sink = ?1

-- name: create_lanes
-- Equal ranges of slots. "oldest" begins before the first row, "now" behind the last.
with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n + 1 < ?2)
insert into {schema}_lanes (sink, lane, first_slot, last_slot, position)
select ?1, n, n * 1024 / ?2, (n + 1) * 1024 / ?2 - 1,
       case when ?3 = 'now' then coalesce((select max(position) from {schema}_outbox), 0) else 0 end
  from numbers
 where not exists (select 1 from {schema}_lanes where sink = ?1)

-- name: take_lanes
-- Every taking raises the epoch, also of one's own lanes.
update {schema}_lanes
   set owner = ?2, epoch = epoch + 1, version = version + 1
 where sink = ?1
returning sink, lane, first_slot, last_slot, owner, epoch, version, position

-- name: load_lane
select sink, lane, first_slot, last_slot, owner, epoch, version, position
  from {schema}_lanes
 where sink = ?1 and lane = ?2

-- name: read_page
-- Next rows, and a last row whose position is the log's end. ?1 and ?2: the slots; ?3: position; ?4: rows; ?5: bytes.
-- Where the page ends is found out from the payloads' lengths; only then are payloads read.
with sizes as (
    select position, length(payload) as size from {schema}_outbox
     where position > ?3 and slot between ?1 and ?2
     order by position limit ?4),
sums as (
    select position, sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
      from sizes)
select * from (
    select o.position, id, topic, key, slot, type, payload, content_type, headers, created_at
      from sums join {schema}_outbox o on o.position = sums.position
     where coalesce(bytes_before, 0) < ?5
     order by o.position)
union all
select coalesce((select max(position) from {schema}_outbox), 0), null, null, null, null, null, null, null, null, null

-- name: settle
-- Zero rows changed: the lane is not as it was loaded.
update {schema}_lanes
   set position = ?6, version = version + 1
 where sink = ?1 and lane = ?2 and owner = ?3 and epoch = ?4 and version = ?5

-- name: look_at_batch
-- How far a batch of retention goes, and whether anything in it is old enough. ?1: after; ?2: rows; ?3: microseconds.
select coalesce(max(position), ?1) as through,
       coalesce(max(created_at <= (julianday('now') - 2440587.5) * 86400000000 - ?3), 0) as more
  from (select position, created_at from {schema}_outbox where position > ?1 order by position limit ?2)

-- name: delete_passed
-- Of the rows up to a position, delete what every lane that reads them has passed, as the lanes are now.
-- ?1: after; ?2: through; ?3: microseconds.
delete from {schema}_outbox
 where position > ?1 and position <= ?2
   and created_at <= (julianday('now') - 2440587.5) * 86400000000 - ?3
   and exists (select 1 from {schema}_lanes)
   and not exists (select 1 from {schema}_lanes l
                    where {schema}_outbox.slot between l.first_slot and l.last_slot
                      and {schema}_outbox.position > l.position)

-- name: status
-- Per lane what waits.
select l.sink, l.lane, l.position, l.owner,
       count(o.position) as pending,
       coalesce(((julianday('now') - 2440587.5) * 86400000000 - min(o.created_at)) / 1e6, 0.0) as lag_seconds
  from {schema}_lanes l
  left join {schema}_outbox o on o.position > l.position and o.slot between l.first_slot and l.last_slot
 group by l.sink, l.lane
 order by l.sink, l.lane
