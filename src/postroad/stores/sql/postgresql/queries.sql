-- Named queries for PostgreSQL. ../sqlite/queries.sql has the same names for the same purposes.
-- {size}, {bytes} and {contents} are expressions in ../../dialects/postgresql.py: the contents of a row that is too large are never
-- fetched.
-- A store's own connections have only pg_catalog on their search_path. Queries on an application's connection (add, cancel,
-- the inbox) qualify every name that another role could shadow, because that role's schema may be on the search_path
-- there. An operator of pg_catalog with exactly these types is found first, and needs no qualification.

-- name: add
-- Adding the same message again is a no-op; another message with its id is an error. `on conflict` names no column, because
-- that would need the right to read it.
-- Headers are sent as text: the application may have set a JSON encoder on its driver.
with new as materialized (
    select $1::uuid as id, $2::text as topic, $3::text as key, $4::smallint as slot, $5::text as type,
           $6::bytea as payload, $7::text as content_type, $8::text as headers),
added as (
    insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
    select id, topic, key, slot, type, payload, content_type, headers::json from new
    on conflict do nothing
    returning true)
select {schema}.check_same(array[id], array[topic], array[key], array[type], array[payload], array[content_type],
                           array[headers])
  from new
 where not exists (select from added)

-- name: add_many
-- One statement for any number of messages; positions follow the order of the arrays.
with new as materialized (
    select *
      from unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::bytea[], $7::text[], $8::text[])
           with ordinality as new (id, topic, key, slot, type, payload, content_type, headers, ordinality)),
added as (
    insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
    select id, topic, key, slot, type, payload, content_type, headers::json from new order by ordinality
    on conflict do nothing
    returning true)
select {schema}.check_same(pg_catalog.array_agg(id), pg_catalog.array_agg(topic), pg_catalog.array_agg(key), pg_catalog.array_agg(type), pg_catalog.array_agg(payload),
                           pg_catalog.array_agg(content_type), pg_catalog.array_agg(headers))
  from new
 where (select pg_catalog.count(*) from added) < (select pg_catalog.count(*) from new)
having pg_catalog.count(*) > 0

-- name: add_later
-- As add_many; a message with $9 (due at) or $10 (due in), in microseconds, goes to `scheduled`.
-- clock_timestamp(), not now(): of two messages with the same delay, the one that was added first is due first.
with new as materialized (
    select *, coalesce(timestamptz 'epoch' + (at operator(pg_catalog.*) interval '1 microsecond'),
                       pg_catalog.clock_timestamp() + (wait operator(pg_catalog.*) interval '1 microsecond')) as due_at
      from unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::bytea[], $7::text[], $8::text[],
                  $9::bigint[], $10::bigint[])
           with ordinality as new (id, topic, key, slot, type, payload, content_type, headers, at, wait, ordinality)),
later as (
    insert into {schema}.scheduled (id, topic, key, slot, type, payload, content_type, headers, due_at)
    select id, topic, key, slot, type, payload, content_type, headers::json, due_at
      from new
     where due_at is not null
     order by ordinality
    on conflict do nothing
    returning true),
added as (
    insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
    select id, topic, key, slot, type, payload, content_type, headers::json
      from new
     where due_at is null
     order by ordinality
    on conflict do nothing
    returning true)
select {schema}.check_same(pg_catalog.array_agg(id), pg_catalog.array_agg(topic), pg_catalog.array_agg(key), pg_catalog.array_agg(type), pg_catalog.array_agg(payload),
                           pg_catalog.array_agg(content_type), pg_catalog.array_agg(headers))
  from new
 where (select pg_catalog.count(*) from later) + (select pg_catalog.count(*) from added) < (select pg_catalog.count(*) from new)
having pg_catalog.count(*) > 0

-- name: cancel
select {schema}.cancel($1::uuid)

-- name: scheduled_due_in
-- Seconds until the first scheduled message is due; negative if it is overdue. A difference of two epochs, because nothing
-- can be subtracted from an infinite time.
select (extract(epoch from min(due_at)) - extract(epoch from clock_timestamp()))::float8 from {schema}.scheduled

-- name: try_to_move
-- One transaction at a time moves scheduled messages: two would change the order of a key's messages. $1: how long the
-- statements of the transaction wait for a lock.
select set_config('lock_timeout', $1, true) is not null
  from {schema}.locks where name = 'scheduled' for update skip locked

-- name: move_scheduled
-- Move at most $1 due messages into the log, in order; only those with an id of $2, unless that is null. Messages that a
-- transaction is canceling are skipped. A message whose id is in the log already is dropped; if the one in the log is
-- another message, `taken_ids` has the id.
-- `due_in`: seconds until the next message is due.
with due as materialized (
    select id from {schema}.scheduled
     where due_at <= now() and ($2::uuid[] is null or id = any($2))
     order by due_at, number limit $1
       for update skip locked),
taken as (
    delete from {schema}.scheduled s using due where s.id = due.id
    returning s.*),
moved as (
    insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers, added_by)
    select id, topic, key, slot, type, payload, content_type, headers, added_by
      from taken
     order by due_at, number
    on conflict (id) do nothing)
select count(*) as moved,
       case when count(*) = $1 then 0
            else (select (extract(epoch from min(due_at)) - extract(epoch from now()))::float8
                    from {schema}.scheduled where due_at > now())
       end as due_in,
       array_agg(id) filter (
           where exists (select from {schema}.outbox o
                          where o.id = taken.id
                            and (o.added_by, o.type, o.topic, o.key, o.payload)
                                is distinct from (taken.added_by, taken.type, taken.topic, taken.key, taken.payload)
                         )) as taken_ids
  from taken

-- name: due_by_role
-- For each role, the ids of its due messages, in order, at most $1.
select array(select s.id from {schema}.scheduled s
              where s.due_at <= now() and s.added_by is not distinct from role.added_by
              order by s.due_at, s.number limit $1)
  from (select distinct added_by from {schema}.scheduled where due_at <= now()) role

-- name: schema_version
-- The last migration that was applied, and the oldest client that may use the schema.
select (select max(version) from {schema}.migrations) as version,
       (select min_client from {schema}.installation) as min_client

-- name: blockers
-- Sessions that block ours: those that one of our sessions waits for now; and unless $1 is null, those that have held row
-- locks in the tables $2 for longer than $1 seconds, which our statements skip. Our sessions are those of this role and of
-- the roles of relays: any role may use our application_name, so the name alone does not count.
-- A prepared transaction has no process. A role without pg_read_all_stats can't see how old other transactions are.
with ours as materialized (
    select a.* from pg_stat_activity a
     where a.datname = current_database() and a.application_name like 'postroad%'
       and a.usename in (select session_user
                         union all
                         select l.usename from {schema}.relays r join pg_stat_activity l on l.pid = r.lock_pid)),
blocking as (
    select distinct blocker as pid
      from ours, unnest(pg_blocking_pids(ours.pid)) as blocker
     where coalesce(ours.wait_event_type, 'Lock') = 'Lock' -- null: this role may not know
    union
    select coalesce(pid, 0) from pg_locks
     where $1::float8 is not null and locktype = 'relation' and granted
       and mode not in ('AccessShareLock', 'ShareUpdateExclusiveLock')
       and relation in (select to_regclass(name)::oid from unnest($2::text[]) as name)
       and database = (select oid from pg_database where datname = current_database())
       and pid is distinct from pg_backend_pid())
select pid, usename::text as role, coalesce(application_name, '') as application, coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as transaction_seconds,
       extract(epoch from clock_timestamp() - query_start)::float8 as query_seconds
  from blocking left join pg_stat_activity using (pid)
 where coalesce(xact_start < clock_timestamp() - coalesce($1::float8, 0) * interval '1 second', true)
   and pid not in (select pid from ours)
 order by xact_start nulls last, pid

-- name: end_frozen_sessions
-- End our sessions whose client is frozen while they hold row locks that relays need. They have waited 10 s for their
-- client in the middle of a statement: the driver asks for the description of a statement before it sends the values, and
-- in between the session is `active`, so idle_in_transaction_session_timeout does not count.
select pg_terminate_backend(a.pid)
  from pg_stat_activity a
 where a.datname = current_database() and a.usename = session_user and a.application_name like 'postroad%'
   and a.pid <> pg_backend_pid() and a.state = 'active' and a.wait_event_type = 'Client'
   and a.query_start < clock_timestamp() - interval '10 seconds'
   and exists (select from pg_locks l
                where l.pid = a.pid and l.locktype = 'relation' and l.granted
                  and l.mode in ('RowShareLock', 'RowExclusiveLock')
                  and l.database = (select oid from pg_database where datname = current_database())
                  and l.relation in ('{schema}.lanes'::regclass, '{schema}.deferred'::regclass, '{schema}.locks'::regclass))

-- name: table_users
-- The processes that a migration waits for: they hold a lock on one of our tables that excludes a change of the table.
select pg_catalog.string_agg(distinct pg_catalog.concat('server process ', l.pid, ' (role ', a.usename, ')'), ', ')
  from pg_catalog.pg_locks l
  join pg_catalog.pg_class c on c.oid = l.relation
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where c.relnamespace = pg_catalog.to_regnamespace('{schema}') and l.granted and l.mode <> 'AccessShareLock'
   and l.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())

-- name: server_process
-- The server process of this connection. Behind a pooler it differs from the one that the driver was given at connect.
select pg_catalog.pg_backend_pid()

-- name: borrow_session
-- Behind a pooler a session is ours for one transaction: what other connections set once is set in each transaction, and
-- each checks whether the server was restarted, or has recovered from a crash, which resets its statistics.
select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
       pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true),
       pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('jit', 'off', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', true),
       {schema}.server_started() as started

-- name: server_facts
-- Whether this server's log may be read, and whether it is the same server as before: run on every new connection, and
-- whenever a lane is loaded. pg_restore makes primary keys after it has loaded all data.
-- A row with a transaction id that this cluster has not assigned yet comes from another cluster. Positions that a session
-- has cached are given out in another order than they are used in.
select pg_is_in_recovery() as standby,
       exists (select from pg_subscription_rel where srrelid = '{schema}.outbox'::regclass) as subscribed,
       (select system_identifier from pg_control_system())
           <> (select system_identifier from {schema}.installation) as moved,
       exists (select from {schema}.outbox where xid >= pg_snapshot_xmax(pg_current_snapshot())) as future,
       exists (select from pg_index where indrelid = '{schema}.outbox'::regclass and indisprimary) as complete,
       (select seqcache from pg_sequence
         where seqrelid = pg_get_serial_sequence('{schema}.outbox', 'position')::regclass) as sequence_cache,
       {schema}.server_started() as started

-- name: lock_for_restore
-- Exclude every writer, reader and relay. In the order in which server_facts takes its locks.
lock table {schema}.installation, {schema}.outbox, {schema}.lanes in access exclusive mode

-- name: restore
-- The log came from another cluster: convert its transaction ids and the cursors' snapshots to this cluster's, in one
-- statement that sees both as they were. A lane owes the rows behind its cursor that it had not dealt with. Owed rows get
-- this transaction's id and become late again for the lanes that owe them, whose new snapshot does not show it; all other
-- rows become visible to every snapshot. A snapshot can be written by hand here because the lock excludes other writers,
-- and new rows get positions after every cursor.
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
           late_position = null, late_snapshot = null, horizon = null, owner = null, epoch = epoch + 1, version = version + 1)
update {schema}.installation set system_identifier = (select system_identifier from pg_control_system())

-- name: load_lane
-- Loading writes, so an owner that can't write fails before it publishes. The last column: whether the sink is paused.
-- The horizon is not used if a row contradicts it: then positions were restarted, or the cursor was moved, by hand.
update {schema}.lanes
   set version = version + 1
 where sink = $1 and lane = $2 and owner = $3 and epoch = $4
returning sink, lane, first_slot, last_slot, owner, epoch, version,
          position, snapshot::text, late_position, late_snapshot::text,
          case when coalesce((select o.position from {schema}.outbox o where o.xid >= horizon order by o.xid limit 1)
                             > position, true)
               then horizon end as horizon,
          (select filter from {schema}.sinks s where s.sink = $1) as filter,
          exists (select from {schema}.pauses where sink = $1)
          or exists (select from {schema}.replication_slots where sink = $1 and lost is not null) as paused

-- name: log_end
-- A statement of its own, after load_lane: the snapshot of a statement that waited for the lane's row is older than the
-- wait, and the transaction that held the row may have read further in between.
select coalesce(max(position), 0) from {schema}.outbox

-- name: is_current
-- Whether a lane is unchanged since it was loaded, for an owner that has nothing to write.
select exists (select from {schema}.lanes
                where sink = $1 and lane = $2 and owner = $3 and epoch = $4 and version = $5)
   and not exists (select from {schema}.deferred where sink = $1 and lane = $2 and not noticed)

-- name: notice
-- The lane is being loaded, with everything that was canceled so far.
update {schema}.deferred set noticed = true where sink = $1 and lane = $2 and not noticed

-- part: taken
-- `takes` in 0001_initial.sql for the row of `filter`, written out: a function with a subselect as its argument is not inlined.
and ((select topics from filter) is null
     or topic like any ((select topics from filter)::text[])
        and ((select topics_regex from filter) is null or topic ~ (select topics_regex from filter)))
and not ((select excluded from filter) is not null and topic like any ((select excluded from filter)::text[])
         and ((select excluded_regex from filter) is null or topic ~ (select excluded_regex from filter)))
and ((select types from filter) is null or type = any ((select types from filter)::text[]))
and ((select sources from filter) is null
     or coalesce(case when json_typeof(headers -> 'source') = 'string' and strpos(headers::text, '\u0000') = 0
                      then headers ->> 'source' = any ((select sources from filter)::text[]) end, false))

-- name: read_page
-- In one snapshot: late rows, next rows, and a last row whose position is the log's end, whose topic is that snapshot,
-- whose key is the lane's version (null if another relay owns the lane), so a change of the lane before these rows were
-- added is seen, and whose type is the horizon of the cursor after this page. When retention has emptied the log, its end is H; it is below H only if the sequence is, which means that
-- the database was restored to an earlier time. While the lane has not noticed a cancellation, the version is one that
-- no lease has.
-- $1 and $2: the slots; $3: position H; $4 and $5: xmax and xip of snapshot S; $6: rows; $7: bytes of a row;
-- $8 to $11: sink, lane, owner and epoch; $12: the horizon of H.
-- A row is late if its position is at most H and S does not show it: its xid is at or above xmax, or was in progress. Most
-- xids above xmax belong to rows that were added after S, and after H: millions of them, if the lane was away. The horizon
-- leaves those out: it is the xid that the server would have assigned next, at a moment after the snapshot in which H was
-- read was taken. Why no row with such an xid has a position up to H:
--   1. Every position up to H had been given out when that snapshot was taken: it showed the row at H, or a later one, and
--      the sequence gives out positions in order (without a cache, see server_facts).
--   2. Xids are assigned in order, so a transaction with an xid at or above the horizon got it after that moment.
--   3. A transaction gets its xid before its rows get their positions: the defaults of a row are computed in the order of
--      the columns, and `xid` comes first. So those positions were given out later, and are higher.
-- It does not matter which relay read H, when it was saved, or what was in progress or prepared: a higher xid than
-- necessary is a horizon too, and the lane's row keeps H and its horizon together. xmax of the snapshot would be too low:
-- it is the last completed xid + 1, and transactions in progress may have higher ones. So it can't replace "xid >= $4",
-- either. A late row's xid lies between the two, or in xip. read_late_page reads by position and needs no horizon.
-- The planner can't estimate ranges of xid8 and would walk the primary key, so the late branch hides it behind "position + 0".
-- A running sum of sizes costs a third of the statement, so a row that is larger than its share of the page is returned
-- without its contents instead; the page is then read again with read_large_page.
-- The rows come in the order of the branches, each in its own: without parallel workers that is what Append does.
-- What is in {? ?} is only in the statement for a sink with a filter. That may take few rows or none, and no statement shall
-- walk the whole log for a page: it reaches from H, or from the first row behind it, over a number of positions. What it
-- finds is all that the sink takes up to there. The content type of the last row is how far it reached.
with statement as materialized (select pg_current_snapshot() as snapshot){?,
filter as materialized (
    select *, coalesce((select min(position) from {schema}.outbox where position > $3), $3) + {positions} as reach
      from {schema}.sinks where sink = $8)?}
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, case when {bytes} <= $7::bigint then 1 end as size from {schema}.outbox
         where (xid >= $4 and xid < $12 or xid = any($5))
           and slot between $1 and $2 {?{taken}?}
           and position + 0 <= $3
         order by position + 0
         limit $6) late
union all
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, case when {bytes} <= $7::bigint then 1 end as size from {schema}.outbox
         where position > $3 {?and position <= (select reach from filter)?}
           and slot between $1 and $2 {?{taken}?}
         order by position
         limit $6) next
union all
select coalesce(
           (select max(position) from {schema}.outbox having max(position) >= $3),
           least($3, pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox', 'position')::regclass))),
       null, (select snapshot::text from statement),
       (select case when exists (select from {schema}.deferred where sink = $8 and lane = $9 and not noticed)
                    then '9223372036854775807' else version::text end
          from {schema}.lanes where sink = $8 and lane = $9 and owner = $10 and epoch = $11),
       null, {next_xid}::text, null, coalesce({?(select reach::text from filter), ?}null), null, null

-- name: read_large_page
-- As read_page, but $7: bytes of the whole page. It ends with the row that reaches them.
with statement as materialized (select pg_current_snapshot() as snapshot){?,
filter as materialized (
    select *, coalesce((select min(position) from {schema}.outbox where position > $3), $3) + {positions} as reach
      from {schema}.sinks where sink = $8)?}
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
          from (select *, {size} as size from {schema}.outbox
                 where (xid >= $4 and xid < $12 or xid = any($5))
                   and slot between $1 and $2 {?{taken}?}
                   and position + 0 <= $3
                 order by position + 0
                 limit $6) late_rows) late
 where coalesce(bytes_before, 0) < $7
union all
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
          from (select *, {size} as size from {schema}.outbox
                 where position > $3 {?and position <= (select reach from filter)?}
                   and slot between $1 and $2 {?{taken}?}
                 order by position
                 limit $6) next_rows) next
 where coalesce(bytes_before, 0) < $7
union all
select coalesce(
           (select max(position) from {schema}.outbox having max(position) >= $3),
           least($3, pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox', 'position')::regclass))),
       null, (select snapshot::text from statement),
       (select case when exists (select from {schema}.deferred where sink = $8 and lane = $9 and not noticed)
                    then '9223372036854775807' else version::text end
          from {schema}.lanes where sink = $8 and lane = $9 and owner = $10 and epoch = $11),
       null, {next_xid}::text, null, coalesce({?(select reach::text from filter), ?}null), null, null

-- name: read_late_page
-- More late rows than fit on a page: continue after the last one, with the snapshot of the first page.
-- $1 and $2: the slots; $3: position H; $4 and $5: xmax and xip of snapshot S; $6: rows; $7: bytes;
-- $8 to $11: sink, lane, owner and epoch; $12: late position; $13: late snapshot. The last row is that of read_page.
-- Here the primary key is the right index, because the rows of one huge transaction lie together; "is true" hides the
-- index on xid, with which every page would read all late rows that are left.
with statement as materialized (select $13::text as snapshot){?,
filter as materialized (select * from {schema}.sinks where sink = $8)?}
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
          from (select *, {size} as size from {schema}.outbox
                 where position > $12
                   and position <= $3
                   and (xid >= $4 or xid = any($5)) is true
                   and pg_visible_in_snapshot(xid, $13::text::pg_snapshot)
                   and slot between $1 and $2 {?{taken}?}
                 order by position
                 limit $6) late_rows) late
 where coalesce(bytes_before, 0) < $7
union all
select coalesce(
           (select max(position) from {schema}.outbox having max(position) >= $3),
           least($3, pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox', 'position')::regclass))),
       null, (select snapshot from statement),
       (select case when exists (select from {schema}.deferred where sink = $8 and lane = $9 and not noticed)
                    then '9223372036854775807' else version::text end
          from {schema}.lanes where sink = $8 and lane = $9 and owner = $10 and epoch = $11),
       null, null, null, null, null, null

-- name: look_at_slot
-- For a sink that follows a replication slot: the end of the log as the snapshot shows it, how many messages the lane has not
-- noted yet, and the slot as it is, beside what was kept of it.
-- `lsn` comes from the same statement as the snapshot, and is read after the snapshot was taken: the commit of every
-- transaction that the snapshot shows lies below it in the write-ahead log. Of the log's other ends, the flushed one may lie
-- below a commit that is visible already (asynchronous commit), and one that was read earlier below any commit since.
-- $1 and $2: the slots; $3: position H; $4 and $5: xmax and xip of snapshot S; $6: the horizon of H; $7 to $10: sink, lane,
-- owner and epoch; $11: the replication slot. As in read_page.
with statement as materialized (select pg_current_snapshot() as snapshot)
select coalesce(
           (select max(position) from {schema}.outbox having max(position) >= $3),
           least($3, pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox', 'position')::regclass))) as log_end,
       (select snapshot::text from statement) as snapshot,
       {next_xid} as horizon,
       (select version from {schema}.lanes where sink = $7 and lane = $8 and owner = $9 and epoch = $10) as version,
       (select count(*) from {schema}.outbox
         where (xid >= $4 and xid < $6 or xid = any($5)) and slot between $1 and $2 and (position + 0) <= $3)
       + (select count(*) from {schema}.outbox where position > $3 and slot between $1 and $2) as added,
       (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as lsn,
       s.active, s.confirmed, s.of_this_database, s.wal_status, s.transactions, s.timeline, s.statistics,
       k.transactions as kept_transactions, k.timeline as kept_timeline, k.statistics as kept_statistics, k.lost
  from (values (1)) one (row)
  left join {schema}.replication_slot($11) s on true
  left join {schema}.replication_slots k on k.sink = $7

-- name: keep_slot
-- Remember the slot that the sink follows, for as long as the caller owns the lane. $1 to $4: sink, lane, owner and epoch;
-- $5 to $8: the slot, its transactions, timeline and statistics.
insert into {schema}.replication_slots as k (sink, slot, transactions, timeline, statistics)
select l.sink, $5, $6, $7, $8 from {schema}.lanes l where l.sink = $1 and l.lane = $2 and l.owner = $3 and l.epoch = $4
on conflict (sink) do update
   set transactions = excluded.transactions, timeline = excluded.timeline, statistics = excluded.statistics
 where k.lost is null

-- name: lose_slot
-- The slot is not the one that the sink followed: the sink is paused, until an operator adopts the slot. $1 to $4: as above;
-- $5: the slot; $6: the reason.
with lane as materialized (
    select sink from {schema}.lanes where sink = $1 and lane = $2 and owner = $3 and epoch = $4),
lost as (
    insert into {schema}.replication_slots as k (sink, slot, transactions, timeline, statistics, lost)
    select sink, $5, 0, '', '', $6 from lane
    on conflict (sink) do update set lost = excluded.lost)
update {schema}.lanes l set version = version + 1 from lane where l.sink = lane.sink

-- name: read_many
-- As read_page, for several lanes of one relay whose cursors are the same. The key of the last row is a list of versions,
-- in the order of $9; a lane that another relay owns has an empty one.
-- $1: a bit for each slot; $2 and $3: sink and owner; $4: position H; $5 and $6: xmax and xip of snapshot S; $7: rows;
-- $8: bytes of a row; $9 and $10: lanes and their epochs; $11: the horizon; $12: the highest position of their cursors.
with statement as materialized (select pg_current_snapshot() as snapshot){?,
filter as materialized (
    select *, coalesce((select min(position) from {schema}.outbox where position > $4), $4) + {positions} as reach
      from {schema}.sinks where sink = $2)?}
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, case when {bytes} <= $8::bigint then 1 end as size from {schema}.outbox
         where (xid >= $5 and xid < $11 or xid = any($6))
           and get_bit($1::bytea, slot) = 1 {?{taken}?}
           and position + 0 <= $4
         order by position + 0
         limit $7) late
union all
select position, id, topic, key, slot, type, {contents}, {created_us}
  from (select *, case when {bytes} <= $8::bigint then 1 end as size from {schema}.outbox
         where position > $4 {?and position <= (select reach from filter)?}
           and get_bit($1::bytea, slot) = 1 {?{taken}?}
         order by position
         limit $7) next
union all
select coalesce(
           (select max(position) from {schema}.outbox having max(position) >= $12),
           least($12, pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox', 'position')::regclass))),
       null, (select snapshot::text from statement),
       (select string_agg(case when l.version is null then ''
                               when exists (select from {schema}.deferred d
                                             where d.sink = $2 and d.lane = asked.lane and not d.noticed)
                               then '9223372036854775807' else l.version::text end, ',' order by number)
          from unnest($9::smallint[], $10::bigint[]) with ordinality as asked (lane, epoch, number)
          left join {schema}.lanes l
            on l.sink = $2 and l.lane = asked.lane and l.owner = $3 and l.epoch = asked.epoch),
       null, {next_xid}::text, null, coalesce({?(select reach::text from filter), ?}null), null, null

-- name: read_many_apart
-- As read_many, for lanes whose cursors differ, so that each row comes with its xid; and for rows of any size. $8: bytes of
-- the whole page; it ends with the row that reaches them.
with statement as materialized (select pg_current_snapshot() as snapshot){?,
filter as materialized (
    select *, coalesce((select min(position) from {schema}.outbox where position > $4), $4) + {positions} as reach
      from {schema}.sinks where sink = $2)?}
select position, id, topic, key, slot, type, {contents}, {created_us}, xid
  from (select *, sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
          from (select *, {size} as size from {schema}.outbox
                 where (xid >= $5 and xid < $11 or xid = any($6))
                   and get_bit($1::bytea, slot) = 1 {?{taken}?}
                   and position + 0 <= $4
                 order by position + 0
                 limit $7) late_rows) late
 where coalesce(bytes_before, 0) < $8
union all
select position, id, topic, key, slot, type, {contents}, {created_us}, xid
  from (select *, sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
          from (select *, {size} as size from {schema}.outbox
                 where position > $4 {?and position <= (select reach from filter)?}
                   and get_bit($1::bytea, slot) = 1 {?{taken}?}
                 order by position
                 limit $7) next_rows) next
 where coalesce(bytes_before, 0) < $8
union all
select coalesce(
           (select max(position) from {schema}.outbox having max(position) >= $12),
           least($12, pg_sequence_last_value(pg_get_serial_sequence('{schema}.outbox', 'position')::regclass))),
       null, (select snapshot::text from statement),
       (select string_agg(case when l.version is null then ''
                               when exists (select from {schema}.deferred d
                                             where d.sink = $2 and d.lane = asked.lane and not d.noticed)
                               then '9223372036854775807' else l.version::text end, ',' order by number)
          from unnest($9::smallint[], $10::bigint[]) with ordinality as asked (lane, epoch, number)
          left join {schema}.lanes l
            on l.sink = $2 and l.lane = asked.lane and l.owner = $3 and l.epoch = asked.epoch),
       null, {next_xid}::text, null, coalesce({?(select reach::text from filter), ?}null), null, null, null

-- name: settle
-- Moving only the cursor need not wait for the disk: after a crash of the server the move is lost, and the last pages are
-- published again. Behind a pooler ($11) a crash goes unnoticed, so there the commit is durable.
-- Zero rows changed: the lane has changed since it was loaded.
with async_commit as materialized (
    select set_config('synchronous_commit',
                      case when $11::boolean then current_setting('synchronous_commit') else 'off' end, true))
update {schema}.lanes
   set position = $6, snapshot = $7::text::pg_snapshot, late_position = $8, late_snapshot = $9::text::pg_snapshot,
       horizon = $10, version = version + 1
  from async_commit
 where sink = $1 and lane = $2 and owner = $3 and epoch = $4 and version = $5

-- part: added_progress
published = p.published + excluded.published, refused = p.refused + excluded.refused,
latencies = (select array_agg(coalesce(a, 0) + coalesce(b, 0) order by number)
               from unnest(p.latencies, excluded.latencies) with ordinality both_rows (a, b, number))

-- name: settle_and_note
-- The same, with a row of progress. $12: published; $13: refused, since the last such row; $14: latencies. Two at the same
-- moment become one row.
with async_commit as materialized (
    select set_config('synchronous_commit',
                      case when $11::boolean then current_setting('synchronous_commit') else 'off' end, true)),
settled as (
    update {schema}.lanes
       set position = $6, snapshot = $7::text::pg_snapshot, late_position = $8, late_snapshot = $9::text::pg_snapshot,
           horizon = $10, version = version + 1
      from async_commit
     where sink = $1 and lane = $2 and owner = $3 and epoch = $4 and version = $5
    returning sink, lane, position, snapshot)
insert into {schema}.progress as p (sink, lane, position, snapshot, published, refused, latencies)
select sink, lane, position, snapshot, $12, $13, $14::integer[] from settled
on conflict (sink, lane, position, at) do update set {added_progress}

-- name: settle_many
-- Settle several lanes of one relay, each fenced by its own epoch and version; returns those that were. No lock is waited
-- for: a lane that is locked is left out, as one that has changed is. $1: sink; $2: owner; $3: as $11 of settle; $4 to $13:
-- for each lane its number, epoch, version, the parts of its cursor, and a tally or nulls; $14: its latencies, as texts.
with async_commit as materialized (
    select set_config('synchronous_commit',
                      case when $3::boolean then current_setting('synchronous_commit') else 'off' end, true)),
asked as materialized (
    select *
      from unnest($4::smallint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[], $9::bigint[], $10::text[],
                  $11::xid8[], $12::bigint[], $13::bigint[], $14::text[])
           as asked (lane, epoch, version, position, snapshot, late_position, late_snapshot, horizon, published, refused,
                     latencies)),
free as materialized (
    select lane from {schema}.lanes where sink = $1 and owner = $2 and lane = any($4) for update skip locked),
settled as (
    update {schema}.lanes l
       set position = asked.position, snapshot = asked.snapshot::pg_snapshot,
           late_position = asked.late_position, late_snapshot = asked.late_snapshot::pg_snapshot,
           horizon = asked.horizon, version = l.version + 1
      from async_commit, asked join free using (lane)
     where l.sink = $1 and l.lane = asked.lane and l.owner = $2 and l.epoch = asked.epoch and l.version = asked.version
    returning l.lane, l.position, l.snapshot, asked.published, asked.refused, asked.latencies),
noted as (
    insert into {schema}.progress as p (sink, lane, position, snapshot, published, refused, latencies)
    select $1, lane, position, snapshot, published, refused, latencies::integer[] from settled where published is not null
    on conflict (sink, lane, position, at) do update set {added_progress})
select lane from settled

-- name: note_progress
-- How far the lane has come, within its transaction. $3: published; $4: refused; $5: latencies.
insert into {schema}.progress as p (sink, lane, position, snapshot, published, refused, latencies)
select sink, lane, position, snapshot, $3, $4, $5::integer[] from {schema}.lanes where sink = $1 and lane = $2
on conflict (sink, lane, position, at) do update set {added_progress}

-- name: fence
-- The first statement of a transaction that records or claims for a lane: it locks the lane's row until the commit.
-- Zero rows changed: the lane has changed since it was loaded.
update {schema}.lanes
   set position = $6, snapshot = $7::text::pg_snapshot, late_position = $8, late_snapshot = $9::text::pg_snapshot,
       horizon = $10, version = version + 1
 where sink = $1 and lane = $2 and owner = $3 and epoch = $4 and version = $5

-- name: put_back
-- Messages that were being sent when the lane was lost or reloaded: the broker may have them. Only the head of a key becomes
-- due, unless an operator holds the key.
with sent as (
    select position, attempts,
           exists (select from {schema}.holds h where h.sink = d.sink and h.key in (d.key, split_part(d.key, chr(31), 1))) as held,
           position = coalesce((select min(position) from {schema}.deferred head
                                 where sink = $1 and lane = $2 and head.key = d.key and blocks), position) as first
      from {schema}.deferred d
     where sink = $1 and lane = $2 and epoch is not null)
update {schema}.deferred d
   set state = case when sent.attempts > 0 and not held then 'retrying' else 'held' end,
       due_at = case when (sent.attempts > 0 or first) and not held then now() end,
       epoch = null, unsure = true
  from sent
 where d.sink = $1 and d.position = sent.position

-- name: scope_keys
-- Rewrite the keys of deferred rows as the lane keeps them in order: by key, or by key and source ($3), as
-- base.key_and_source does.
-- Rows that an operator made have the key only, and the setting may have been changed.
-- A row that an application is canceling is skipped. ->> fails on a text with a NUL, hence the test for \u0000.
-- The planner expects nearly all rows to be rewritten, and would read the whole log; with "limit 1" it can't.
with these as (
    select position from {schema}.deferred
     where sink = $1 and lane = $2 and (strpos(key, chr(31)) = 0) = $3::boolean
       for update skip locked)
update {schema}.deferred d
   set key = case when $3 then o.key || chr(31)
                               || coalesce(case when json_typeof(o.headers -> 'source') = 'string'
                                                 and strpos(o.headers::text, '\u0000') = 0
                                                then o.headers ->> 'source' end, '')
                  else o.key end
  from these, lateral (select key, headers from {schema}.outbox where position = these.position limit 1) o
 where d.sink = $1 and d.position = these.position and ($3 or d.key <> o.key)

-- name: holds
-- The keys of some slots that an operator holds.
select key from {schema}.holds where sink = $1 and slot between $2 and $3

-- name: ahead
-- Messages that an operator has decided about before the lane has read them; rows that the lane has passed are deleted.
with lane as materialized (select l as it, late_position, late_snapshot from {schema}.lanes l where sink = $1 and lane = $2),
over as (
    delete from {schema}.ahead a
     where sink = $1 and lane = $2
       and not exists (select from {schema}.outbox o, lane
                        where o.position = a.position
                          and not {schema}.passed(o.position, o.xid, it)
                          and not coalesce(o.position <= late_position
                                           and pg_visible_in_snapshot(o.xid, late_snapshot), false))
    returning position)
select position from {schema}.ahead
 where sink = $1 and lane = $2 and position not in (select position from over)

-- name: heads
-- One row, because there may be very many heads: their keys, their positions, and the positions of those that are held and
-- wait for nothing, but are not due.
select coalesce(array_agg(key), '{}'), coalesce(array_agg(position), '{}'),
       coalesce(array_agg(position) filter (where ready), '{}')
  from (select distinct on (key) key, position,
               state = 'held' and route is null and (due_at is null or due_at > now()) as ready
          from {schema}.deferred
         where sink = $1 and lane = $2 and blocks and key is not null
         order by key, position) heads

-- name: heads_of
-- The heads of some keys. $3: the keys.
select freed.key, head.position
  from unnest($3::text[]) as freed (key),
       lateral (select position from {schema}.deferred
                 where sink = $1 and lane = $2 and key = freed.key and blocks
                 order by position limit 1) head

-- name: routes
-- The blocked routes of a lane, and the first message of each that waits for nothing else and is not held by an operator.
-- From route to route by the index, because very many messages may wait for one. "=" instead of ">=" and "<=" would let the
-- planner walk the primary key.
with recursive routes (route) as (
    (select route from {schema}.deferred
      where sink = $1 and lane = $2 and route is not null order by route limit 1)
    union all
    select (select d.route from {schema}.deferred d
             where sink = $1 and lane = $2 and d.route > routes.route order by d.route limit 1)
      from routes where routes.route is not null)
select routes.route, first.position
  from routes,
       lateral (select d.position
                  from {schema}.deferred d
                 where sink = $1 and lane = $2 and d.route >= routes.route and d.route <= routes.route and state = 'held'
                   and position = coalesce((select min(position) from {schema}.deferred head
                                             where sink = $1 and lane = $2 and head.key = d.key and blocks), position)
                   and not exists (select from {schema}.holds h
                                    where h.sink = $1 and h.key in (d.key, split_part(d.key, chr(31), 1)))
                 order by d.route, d.position limit 1) first
 where routes.route is not null

-- name: make_due
-- Make held messages due. $2: positions; $3: also those that wait for a route; $4: in how many seconds. Rows that an
-- application is canceling are locked and skipped; returns true if there were any. The state is written so that the index by
-- state can't be used: without statistics the planner would read all held messages through it.
with these as materialized (
    select position as place, now() + make_interval(secs => after) as due
      from unnest($2::bigint[], $4::float8[]) as these (position, after)),
held as materialized (
    select position, due from {schema}.deferred d, these
     where sink = $1 and position = place and state || '' = 'held' and ($3 or route is null)
       and (due_at is null or due_at > due)
       for update of d skip locked),
made as (
    update {schema}.deferred d set due_at = due from held where d.sink = $1 and d.position = held.position)
select (select count(*) from held) <
       (select count(*) from {schema}.deferred, these
         where sink = $1 and position = place and state || '' = 'held' and ($3 or route is null)
           and (due_at is null or due_at > due))

-- name: due_in
-- Seconds until a message is due. $3: or is overdue.
select extract(epoch from min(due_at) - clock_timestamp())::float8
  from {schema}.deferred
 where sink = $1 and lane = $2 and due_at is not null and ($3 or due_at > now())

-- name: defer
-- An existing row is replaced; the time of its first failure is kept, and so is its error unless there is a new one.
-- $3 and on: the columns.
insert into {schema}.deferred (
       sink, lane, position, key, state, attempts, due_at, route, error, blocks, unsure, first_failed_at, last_failed_at)
select $1, $2, position, key, state, attempts, clock_timestamp() + make_interval(secs => due_in), route, error, blocks,
       unsure, case when counted then now() end, case when counted then now() end
  from unnest($3::bigint[], $4::text[], $5::text[], $6::integer[], $7::float8[], $8::text[], $9::text[], $10::boolean[],
              $11::boolean[], $12::boolean[])
       as new (position, key, state, attempts, due_in, route, error, blocks, unsure, counted)
on conflict (position, sink) do update
   set lane = excluded.lane, key = excluded.key, state = excluded.state, attempts = excluded.attempts,
       due_at = excluded.due_at, epoch = null, route = excluded.route, blocks = excluded.blocks,
       unsure = deferred.unsure or excluded.unsure, error = coalesce(excluded.error, deferred.error),
       first_failed_at = coalesce(deferred.first_failed_at, excluded.first_failed_at),
       last_failed_at = coalesce(excluded.last_failed_at, deferred.last_failed_at)

-- name: hold_behind
-- As `defer`, for messages that are only held. $3: positions; $4: keys; $5: those up to this position are unsure.
insert into {schema}.deferred (sink, lane, position, key, state, blocks, unsure)
select $1, $2, position, key, 'held', true, position <= $5::bigint
  from unnest($3::bigint[], $4::text[]) as new (position, key)
on conflict (position, sink) do update
   set lane = excluded.lane, key = excluded.key, state = excluded.state, attempts = 0, due_at = null, epoch = null,
       route = null, blocks = excluded.blocks, unsure = deferred.unsure or excluded.unsure

-- name: note_attempts
insert into {schema}.attempts (sink, position, attempt, failed_at, error)
select $1, position, attempt, now(), error
  from unnest($2::bigint[], $3::integer[], $4::text[]) as failed (position, attempt, error)

-- name: forget_published
-- They are no longer deferred; the time of delivery is kept.
with forgotten as (
    delete from {schema}.deferred where sink = $1 and position = any($2) returning position),
rewound as (
    delete from {schema}.rewound where sink = $1 and position = any($2))
insert into {schema}.delivered (sink, position)
select $1, position from forgotten
on conflict (position, sink) do update set delivered_at = excluded.delivered_at

-- name: claim
-- Mark the messages that may be sent now, and read them. $1: sink; $2: lane; $3: epoch; $4: rows; $5: routes; $6: followers of a key;
-- $7: bytes.
-- `due` and `routed` are heads of their keys, if they have one. Heads are found with min(position), because for "not exists"
-- a planner without fresh statistics compares every due row with every row of the lane. One row more than wanted is read,
-- to know whether any are left. A head that was only held takes along the messages that merely waited for it, up to the
-- first one of the key that waits for something of its own. A message that probes a blocked route is sent by itself.
-- Rows that an application is canceling are locked: they are skipped, and so are the messages behind them, because their
-- transaction may be rolled back. `locked`: there were some. No statement of a lane waits for an application.
-- A row is locked before its state counts: the application may have canceled it since this statement began.
with due as materialized (
    select position, key, state, due_at, route from {schema}.deferred d
     where sink = $1 and lane = $2 and due_at <= now() and state in ('retrying', 'held')
       and position = coalesce((select min(position) from {schema}.deferred head
                                 where sink = $1 and lane = $2 and head.key = d.key and blocks), position)
     order by due_at, position limit $4::integer + 1
       for update skip locked),
routed as (
    select found.*
      from unnest($5::text[]) as open (route),
           lateral (select position, key, state, due_at, d.route from {schema}.deferred d
                     where sink = $1 and lane = $2 and d.route = open.route and state in ('retrying', 'held')
                       and not exists (select from {schema}.holds h where h.sink = $1 and h.key in (d.key, split_part(d.key, chr(31), 1)))
                       and position = coalesce((select min(position) from {schema}.deferred head
                                                 where sink = $1 and lane = $2 and head.key = d.key and blocks), position)
                     order by position limit $4::integer + 1
                       for update skip locked) found),
heads as materialized (
    select *, row_number() over (order by due_at nulls last, position) as number
      from (select * from due union select * from routed) ready
     order by number limit $4::integer + 1),
waiting as materialized (
    select behind.position, heads.key
      from heads,
           lateral (select position,
                           bool_and(state = 'held' and due_at is null and route is null) over (order by position) as goes
                      from (select position, state, due_at, route from {schema}.deferred
                             where sink = $1 and lane = $2 and key = heads.key and blocks and position > heads.position
                             order by position
                             limit greatest(0, least($6::integer, $4::integer - (select count(*) from heads)))) next
                   ) behind
     where heads.state = 'held' and (heads.route is null or heads.route = any($5)) and behind.goes),
free as materialized (
    select position from {schema}.deferred
     where sink = $1 and position = any(array(select position from waiting)) and state = 'held'
       for update skip locked),
ends as (
    select key, min(position) as position from waiting where position not in (select position from free) group by key),
followers as (
    select waiting.position from waiting left join ends using (key)
     where ends.position is null or waiting.position < ends.position),
chosen as materialized (
    select position
      from (select first.position, sum(size) over (
                       order by follows, first.position rows between unbounded preceding and 1 preceding) as bytes_before
              from (select *
                      from (select position, false as follows from heads where number <= $4::integer
                            union all
                            select position, true from followers) going
                     order by follows, position limit $4::integer) first
              left join (select *, {size} as size from {schema}.outbox) o on o.position = first.position) sized
     where coalesce(bytes_before, 0) < $7),
marked as (
    update {schema}.deferred d
       set state = 'sending', due_at = null, epoch = $3
      from chosen
     where d.sink = $1 and d.position = chosen.position and d.state in ('retrying', 'held')
    returning d.position, d.attempts, d.route, extract(epoch from now() - d.deferred_at)::float8 as waited)
select o.position, o.id, o.topic, o.key, o.slot, o.type, {contents}, o.created_at,
       marked.attempts, marked.route, r.rewind, r.new_id, marked.waited,
       exists (select from heads where position not in (select position from chosen)) as more,
       marked.position as claimed,
       exists (select from ends)
       or exists (select from {schema}.deferred d
                   where sink = $1 and lane = $2 and due_at <= now() and state in ('retrying', 'held')
                     and position not in (select position from heads)
                     and (select count(*) from heads) <= $4::integer
                     and position = coalesce((select min(position) from {schema}.deferred head
                                               where sink = $1 and lane = $2 and head.key = d.key and blocks), position))
       or exists (select from unnest($5::text[]) as open (route), {schema}.deferred d
                   where sink = $1 and lane = $2 and d.route = open.route and state in ('retrying', 'held')
                     and position not in (select position from heads)
                     and (select count(*) from heads) <= $4::integer
                     and not exists (select from {schema}.holds h where h.sink = $1 and h.key in (d.key, split_part(d.key, chr(31), 1)))
                     and position = coalesce((select min(position) from {schema}.deferred head
                                               where sink = $1 and lane = $2 and head.key = d.key and blocks), position)
                 ) as locked
  from (select) one
  left join marked on true
  left join (select *, {size} as size from {schema}.outbox) o on o.position = marked.position
  left join {schema}.rewound r on r.position = marked.position and r.sink = $1
 order by o.position

-- name: forget_gone
-- Deferred messages that were deleted from the log by hand.
delete from {schema}.deferred d
 where sink = $1 and lane = $2
   and not exists (select from {schema}.outbox o where o.position = d.position)

-- name: add_copies
-- Copies of messages that died in sink $1 just now. A copy of an earlier death that still waits is replaced.
-- $2: sinks; $3: positions; $4: ids; $5: attempts; $6: errors.
insert into {schema}.copies (dead_in, sink, position, id, attempts, error)
select $1, new.* from unnest($2::text[], $3::bigint[], $4::uuid[], $5::integer[], $6::text[])
       as new (sink, position, id, attempts, error)
on conflict (position, sink, dead_in) do update
   set id = excluded.id, attempts = excluded.attempts, error = excluded.error, died_at = excluded.died_at, tries = 0,
       due_at = excluded.due_at

-- name: due_copies
-- The copies for sink $1 that may be published now, at most $2. Copies of messages that were deleted from the log by hand
-- are left out.
select o.position, o.id, o.topic, o.key, o.slot, o.type, {contents}, o.created_at,
       c.id, c.dead_in, c.attempts, c.error, c.died_at, c.tries
  from {schema}.copies c
  join (select *, {size} as size from {schema}.outbox) o on o.position = c.position
 where c.sink = $1 and c.due_at <= now()
 order by c.died_at, c.position limit $2

-- name: settle_copies
-- $1: sink; $2: ids of copies that are published, or given up; $3 to $5: those to be published again, when, and whether
-- they were refused.
with done as (
    delete from {schema}.copies where sink = $1 and id = any($2::uuid[]))
update {schema}.copies c
   set due_at = clock_timestamp() + make_interval(secs => later.due_in), tries = tries + later.counted::integer
  from unnest($3::uuid[], $4::float8[], $5::boolean[]) as later (id, due_in, counted)
 where c.sink = $1 and c.id = later.id

-- name: takes_copies
-- Whether there is such a sink, and a relay of ours publishes for it.
select exists (select from {schema}.sinks where sink = $1 and coalesce(destination, '') not like 'slot:%')

-- name: delete_passed
-- Of the rows after a position, delete those that every lane has passed, as the lanes are now, unless a deferred message
-- refers to them. A deferred message is recorded in the transaction that moves the cursor past it, so one statement can't
-- see one without the other.
-- A lane whose sink does not take a row need not have passed it.
-- Rows are compared only with the lanes that are not past the whole batch, usually none, and only with those of their slot:
-- comparing 1,000 rows with each of 10,000 lanes took over a second, with half of these 0.5 s, and now 20 ms. A lane whose
-- snapshot had no transaction in progress up to the batch's highest xid shows them all. (PostgreSQL 13 has no max of xid8.)
-- The slots of a lane are an array for the planner: it takes an array for 10 rows, and generate_series for 1,000, for whose
-- hash table it would write files.
-- A row's age counts from the beginning of its transaction, so it never decides by itself. $1: after; $2: rows; $3: age; $4: of this key
-- only, or null.
with batch as materialized (
    select position, xid, slot, topic, type, created_at < now() - $3::interval as old
      from {schema}.outbox where position > $1 order by position limit $2),
highest as materialized (
    select max(position) as position, (select xid from batch order by xid desc limit 1) as xid from batch),
lanes_within as materialized (
    select slot, l as lane, s as sink
      from {schema}.lanes l left join {schema}.sinks s using (sink), highest,
           unnest(array(select generate_series(l.first_slot::integer, l.last_slot))) as slot
     where not (l.position >= highest.position and pg_snapshot_xmin(l.snapshot) > highest.xid)),
deleted as (
    delete from {schema}.outbox o using batch
     where o.position = batch.position
       and batch.old
       and ($4::text is null or o.key = $4)
       and exists (select from {schema}.lanes)
       and not exists (select from lanes_within
                        where lanes_within.slot = batch.slot
                          and not {schema}.passed(batch.position, batch.xid, lane)
                          and {schema}.takes(sink, batch.topic, batch.type, o.headers))
       and not exists (select from {schema}.deferred d
                        where d.position = batch.position
                          and (d.state in ('retrying', 'sending', 'held', 'dead') or not d.noticed))
       and not exists (select from {schema}.copies c where c.position = batch.position)
    returning o.position),
finished as (
    delete from {schema}.deferred d using deleted where d.position = deleted.position),
history as (
    delete from {schema}.attempts a using deleted where a.position = deleted.position),
delivered as (
    delete from {schema}.delivered v using deleted where v.position = deleted.position),
rewound as (
    delete from {schema}.rewound r using deleted where r.position = deleted.position)
select (select count(*) from deleted) as deleted, coalesce(max(position), $1) as through,
       coalesce(bool_or(old), false) as more, coalesce((select min(position) from {schema}.lanes), 0) as behind
  from batch

-- name: begin_nap
-- Returns no row while another transaction changes the marks. A nap does not survive a crash, so the commit need not
-- wait for the disk. $1 and $2: the slots; $3: their marks; $4: the channel; $5: seconds; $6: the server process of the
-- LISTEN connection; $7 and $8: the lane.
with async_commit as materialized (
    select set_config('synchronous_commit', 'off', true)),
lock as materialized (
    select name from async_commit, {schema}.locks where name = 'naps' for update of locks skip locked),
marked as materialized (
    select setval('{schema}.napping'::regclass,
                  coalesce(pg_sequence_last_value('{schema}.napping'::regclass), 0) | $3::bigint)
      from lock)
insert into {schema}.naps (first_slot, last_slot, marks, channel, until, listener, sink, lane)
select $1::smallint, $2::smallint, $3, $4::text, clock_timestamp() + $5::float8 * interval '1 second', $6::integer, $7::text,
       $8::smallint
  from marked
returning id

-- name: end_naps
delete from {schema}.naps
 where id in (select id from {schema}.naps where id = any($1::bigint[]) for update skip locked)

-- name: wipe_marks
select {schema}.wipe_marks()

-- name: writers
-- A transaction that adds holds this lock from before the trigger checks the marks until after its commit is visible.
-- A prepared transaction has no process.
select virtualtransaction, pid is null as prepared
  from pg_locks
 where locktype = 'relation' and mode = 'RowExclusiveLock' and granted
   and relation = '{schema}.outbox'::regclass
   and database = (select oid from pg_database where datname = current_database())

-- name: forget_progress
-- Of the first $2 rows that are older than $1, the last one of each lane loses its time, and the others are deleted.
with old as materialized (
    select sink, lane, position, at, row_number() over (partition by sink, lane order by position desc, at desc) as number
      from (select sink, lane, position, at from {schema}.progress
             where at < now() - $1::interval
             order by at limit $2) first),
forgotten as (
    delete from {schema}.progress p using old
     where p.sink = old.sink and p.lane = old.lane and p.position = old.position and p.at = old.at and number > 1
    returning 1),
undated as (
    update {schema}.progress p set at = '-infinity'
      from old
     where p.sink = old.sink and p.lane = old.lane and p.position = old.position and p.at = old.at and number = 1
       and p.at > '-infinity')
select count(*) from forgotten

-- name: try_to_clean
-- One transaction at a time deletes. Its commit need not be durable: rows that a crash brings back are deleted again.
select true, set_config('synchronous_commit', 'off', true)
  from {schema}.locks where name = 'retention' for update skip locked

-- name: lock_row_holder
-- The transaction that has locked a row of `locks`, for an error message. $1: the row's name.
select 'server process ' || l.pid || ' (role ' || coalesce(a.usename, '?')
       || coalesce(', ' || nullif(a.application_name, ''), '') || ')'
  from {schema}.locks k
  join pg_locks l on l.locktype = 'transactionid' and l.transactionid = k.xmax and l.granted
  left join pg_stat_activity a on a.pid = l.pid
 where k.name = $1

-- name: first_time
-- Returns a row with this transaction's id if the consumer sees the message for the first time, and none if it was
-- processed before. Values are used once and in order: some drivers' placeholders have no numbers.
select true, pg_catalog.pg_current_xact_id()::text
 where {schema}.first_time($1::text, $2::text, $3::text, $4::text)

-- name: first_times
-- The same for many in one statement; returns the ids that are new.
select pg_catalog.unnest({schema}.first_times($1::text, $2::text, $3::text[], $4::text[])),
       pg_catalog.pg_current_xact_id()::text

-- name: open_inbox
-- Raises an error if the tables are missing, or the consumer's name belongs to another role.
select {schema}.open_inbox($1::text)

-- name: write_probe
-- The id of this transaction, which tells later whether it was committed.
select pg_current_xact_id()::text

-- name: read_probe
select pg_xact_status($1::text::xid8)

-- name: same_transaction
-- Returns a row if this is the transaction $1, and raises an error if a statement has failed in it.
select 1 where pg_catalog.pg_current_xact_id_if_assigned()::text = $1::text

-- name: undo_first_times
select {schema}.undo_first_times($1::text, $2::text, $3::text[])

-- name: begin_attempt
select attempts, crashes, error from {schema}.begin_attempt($1::text, $2::text, $3::text, $4::text, $5::text)

-- name: end_attempt
select {schema}.end_attempt($1::text, $2::text)

-- name: fail_attempt
select attempts
  from {schema}.fail_attempt($1::text, $2::text, $3::text, $4::text, $5::text) as attempts
 where attempts is not null

-- name: note_dead
select {schema}.note_dead($1::text, $2::text, $3::text, $4::text, $5::text)

-- name: forget_processed
select {schema}.forget_processed($1::text, $2::text::interval, $3::integer)

-- name: forget_attempts
select {schema}.forget_attempts($1::text, $2::text::interval, $3::integer)

-- name: consumer_heartbeat
select {schema}.consumer_heartbeat($1::text, $2::text::uuid, $3::text, $4::integer, $5::text, $6::text, $7::text::interval,
                                   $8::bigint, $9::bigint, $10::bigint, $11::bigint)

-- name: consumer_ended
select {schema}.consumer_ended($1::text, $2::text::uuid)

-- name: forget_consumers
select {schema}.forget_consumers($1::text, $2::text::interval)
