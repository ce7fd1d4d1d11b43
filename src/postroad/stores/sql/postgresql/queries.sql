-- Named queries for PostgreSQL. The same names stand in ../sqlite/queries.sql where the idea is the same.

-- name: add
-- Adding an id again is a no-op.
-- Headers go as text: an application may have told its driver to encode what it sends as json.
insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
values ($1, $2, $3, $4, $5, $6, $7, $8::text::json)
on conflict (id) do nothing

-- name: add_many
-- One statement for any number of messages; positions follow the order of the arrays.
insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
select id, topic, key, slot, type, payload, content_type, headers::json
  from unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::bytea[], $7::text[], $8::text[])
       with ordinality as new (id, topic, key, slot, type, payload, content_type, headers, ordinality)
 order by ordinality
on conflict (id) do nothing

-- name: schema_version
-- How far the schema has been migrated, and how old a client may be.
select (select max(version) from {schema}.migrations) as version,
       (select min_client from {schema}.installation) as min_client

-- name: server_facts
-- What decides whether this server's log may be read: asked on every new connection.
-- A row from the future has a transaction id of another cluster.
select pg_is_in_recovery() as standby,
       exists (select from pg_subscription_rel where srrelid = '{schema}.outbox'::regclass) as subscribed,
       (select system_identifier from pg_control_system())
           <> (select system_identifier from {schema}.installation) as moved,
       exists (select from {schema}.outbox where xid >= pg_snapshot_xmax(pg_current_snapshot())) as future

-- name: lock_for_restore
-- No writer, reader or relay in between. In the order in which server_facts takes its locks.
lock table {schema}.installation, {schema}.outbox, {schema}.lanes in access exclusive mode

-- name: restore
-- The log came from another cluster: make its transaction ids and the cursors' snapshots this cluster's, in one
-- statement that sees both as they were. What a lane had not dealt with although it lay behind its cursor, it owes.
-- Owed rows get this transaction's id and become late again for the lanes that owe, whose new snapshot does not see it;
-- all else is old history. A snapshot written by hand is right because the lock leaves no other writer, and new rows get
-- positions behind every cursor.
with owed as materialized (
    select o.position, l.sink, l.lane
      from {schema}.outbox o
      join {schema}.lanes l on o.slot between l.first_slot and l.last_slot and o.position <= l.position
     where not pg_visible_in_snapshot(o.xid, l.snapshot)
       and not coalesce(o.position <= l.late_position and pg_visible_in_snapshot(o.xid, l.late_snapshot), false)),
history as (
    update {schema}.outbox
       set xid = case when position in (select position from owed) then pg_current_xact_id() else '3'::xid8 end),
cursors as (
    update {schema}.lanes l
       set snapshot = case
               when (sink, lane) in (select sink, lane from owed) then format('%1$s:%1$s:', pg_current_xact_id())
               else format('%1$s:%1$s:', pg_current_xact_id()::text::bigint + 1)
           end::pg_snapshot,
           late_position = null, late_snapshot = null, owner = null, epoch = epoch + 1, version = version + 1)
update {schema}.installation set system_identifier = (select system_identifier from pg_control_system())

-- name: count_lanes
select count(*) from {schema}.lanes where sink = $1

-- name: lock_lanes
-- Two relays that meet a new sink at once: one creates its lanes.
lock table {schema}.lanes in share row exclusive mode

-- name: create_lanes
-- Equal ranges of slots. "oldest" begins before the first row, "now" behind the last.
insert into {schema}.lanes (sink, lane, first_slot, last_slot, position, snapshot)
select $1, n, n * 1024 / $2, (n + 1) * 1024 / $2 - 1,
       case when $3 = 'now' then coalesce((select max(position) from {schema}.outbox), 0) else 0 end,
       pg_current_snapshot()
  from generate_series(0, $2::int - 1) n
 where not exists (select from {schema}.lanes where sink = $1)

-- name: take_lanes
-- Every taking raises the epoch, also of one's own lanes. In order, so that two who take at once do not deadlock.
with theirs as materialized (select lane as number from {schema}.lanes where sink = $1 order by lane for update)
update {schema}.lanes
   set owner = $2, epoch = epoch + 1, version = version + 1
  from theirs
 where sink = $1 and lane = number
returning sink, lane, first_slot, last_slot, owner, epoch, version,
          position, snapshot::text, late_position, late_snapshot::text

-- name: load_lane
select sink, lane, first_slot, last_slot, owner, epoch, version,
       position, snapshot::text, late_position, late_snapshot::text
  from {schema}.lanes
 where sink = $1 and lane = $2

-- name: read_page
-- One snapshot: late rows, next rows, and a last row whose position is the log's end and whose topic is that snapshot.
-- $1 and $2: the slots; $3: position H; $4 and $5: xmax and xip of snapshot S; $6: rows; $7: bytes.
-- Late is what lies behind H and S does not see: an xid at or above its xmax, or one that was in progress. The planner
-- can't estimate ranges of xid8 and would walk the primary key, so the late branch hides it behind "position + 0".
-- The rows come in the order of the branches, each in its own: without parallel workers that is what Append does.
with statement as materialized (select pg_current_snapshot() as snapshot)
select position, id, topic, key, slot, type, payload, content_type, headers, created_at
  from (select *, sum(octet_length(payload)) over (order by position rows between unbounded preceding and 1 preceding)
                  as bytes_before
          from (select * from {schema}.outbox
                 where (xid >= $4 or xid = any($5))
                   and slot between $1 and $2
                   and position + 0 <= $3
                 order by position + 0
                 limit $6) late_rows) late
 where coalesce(bytes_before, 0) < $7
union all
select position, id, topic, key, slot, type, payload, content_type, headers, created_at
  from (select *, sum(octet_length(payload)) over (order by position rows between unbounded preceding and 1 preceding)
                  as bytes_before
          from (select * from {schema}.outbox
                 where position > $3
                   and slot between $1 and $2
                 order by position
                 limit $6) next_rows) next
 where coalesce(bytes_before, 0) < $7
union all
select coalesce((select max(position) from {schema}.outbox), 0),
       null, (select snapshot::text from statement), null, null, null, null, null, null, null

-- name: read_late_page
-- More late rows than fit on a page: go on behind the last one, seeing what the first look saw.
-- $1 and $2: the slots; $3: position H; $4 and $5: xmax and xip of snapshot S; $6: rows; $7: bytes;
-- $8: late position; $9: late snapshot.
-- Here the primary key is the right way, because the rows of one huge transaction lie together; "is true" hides the
-- index on xid, by which every page would look at all late rows that are left.
select position, id, topic, key, slot, type, payload, content_type, headers, created_at
  from (select *, sum(octet_length(payload)) over (order by position rows between unbounded preceding and 1 preceding)
                  as bytes_before
          from (select * from {schema}.outbox
                 where position > $8
                   and position <= $3
                   and (xid >= $4 or xid = any($5)) is true
                   and pg_visible_in_snapshot(xid, $9::text::pg_snapshot)
                   and slot between $1 and $2
                 order by position
                 limit $6) late_rows) late
 where coalesce(bytes_before, 0) < $7

-- name: settle
-- A pure cursor move need not wait for the disk: after a crash of the server it is gone, and the last pages go out
-- again. Zero rows changed: the lane is not as it was loaded.
with unhurried as materialized (select set_config('synchronous_commit', 'off', true))
update {schema}.lanes
   set position = $6, snapshot = $7::text::pg_snapshot, late_position = $8, late_snapshot = $9::text::pg_snapshot,
       version = version + 1
  from unhurried
 where sink = $1 and lane = $2 and owner = $3 and epoch = $4 and version = $5

-- name: delete_passed
-- Of the rows after a position, delete what every lane that reads them has passed, as the lanes are now.
-- Age is the beginning of a row's transaction, so it never decides alone. $1: after; $2: rows; $3: age.
with batch as materialized (
    select position, xid, slot, created_at < now() - $3::interval as old
      from {schema}.outbox where position > $1 order by position limit $2),
deleted as (
    delete from {schema}.outbox o using batch
     where o.position = batch.position
       and batch.old
       and exists (select from {schema}.lanes)
       and not exists (select from {schema}.lanes l
                        where batch.slot between l.first_slot and l.last_slot
                          and not {schema}.passed(batch.position, batch.xid, l))
    returning 1)
select (select count(*) from deleted) as deleted, coalesce(max(position), $1) as through, coalesce(bool_or(old), false) as more
  from batch

-- name: status
-- Per lane what waits: rows behind its position that it has not seen, and rows ahead.
select l.sink, l.lane, l.position, l.owner,
       late.count + next.count as pending,
       coalesce(extract(epoch from now() - least(late.oldest, next.oldest)), 0)::float8 as lag_seconds
  from {schema}.lanes l,
       lateral (select count(*), min(created_at) as oldest from {schema}.outbox o
                 where (o.xid >= pg_snapshot_xmax(l.snapshot)
                        or o.xid = any(array(select pg_snapshot_xip(l.snapshot))))
                   and o.slot between l.first_slot and l.last_slot
                   and o.position + 0 <= l.position
                   and not coalesce(o.position <= l.late_position
                                    and pg_visible_in_snapshot(o.xid, l.late_snapshot), false)) late,
       lateral (select count(*), min(created_at) as oldest from {schema}.outbox o
                 where o.position > l.position
                   and o.slot between l.first_slot and l.last_slot) next
 order by l.sink, l.lane
