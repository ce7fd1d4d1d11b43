-- Named queries for SQLite. ../postgresql/queries.sql has the same names for the same purposes.
-- {size} and {contents} are expressions in ../../dialects/sqlite.py.

-- name: add
-- Adding the same message again is a no-op; another message with its id violates the payload's NOT NULL, so nothing is ever
-- updated here.
insert into {schema}_outbox as o (id, topic, key, slot, type, payload, content_type, headers)
values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do update set payload = null
 where (o.topic, o.key, o.type, o.payload, o.content_type, json_extract(o.headers, '$.source'))
       is not (excluded.topic, excluded.key, excluded.type, excluded.payload, excluded.content_type,
               json_extract(excluded.headers, '$.source'))

-- name: add_moved
-- Put a due message into the log. Returns no row if its id is there already.
insert into {schema}_outbox (id, topic, key, slot, type, payload, content_type, headers)
values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing
returning 1

-- name: has_another
-- Whether the log has another message with this id.
select 1 from {schema}_outbox where id = ? and payload <> ?

-- name: add_later
-- As add, for a scheduled message: due at, or due in, in microseconds.
insert into {schema}_scheduled as s (id, topic, key, slot, type, payload, content_type, headers, due_at)
values (?, ?, ?, ?, ?, ?, ?, ?,
        coalesce(?, cast((julianday('now') - 2440587.5) * 86400000000 as integer) + ?))
on conflict (id) do update set payload = null
 where (s.topic, s.key, s.type, s.payload, s.content_type, json_extract(s.headers, '$.source'))
       is not (excluded.topic, excluded.key, excluded.type, excluded.payload, excluded.content_type,
               json_extract(excluded.headers, '$.source'))

-- name: cancel_scheduled
-- The first step of canceling. It writes even if it finds nothing: from here on there is no other writer.
delete from {schema}_scheduled where id = ?
returning 1

-- name: cancel_deferred
-- Only if every lane that reads the message has passed it, and none has sent it or may have sent it.
update {schema}_deferred
   set state = 'canceled', blocks = 0, due_at = null, route = null, epoch = null
 where state in ('retrying', 'held', 'dead')
   and position = (
       select position from {schema}_outbox o
        where id = ?
          and not exists (select 1 from {schema}_lanes l
                           where o.slot between l.first_slot and l.last_slot
                             and (exists (select 1 from {schema}_taken t where t.sink = l.sink and t.position = o.position)
                                  or exists (select 1 from {schema}_deferred d
                                              where d.position = o.position and d.sink = l.sink))
                             and not (o.position <= l.position
                                      and exists (select 1 from {schema}_deferred d
                                                   where d.position = o.position and d.sink = l.sink
                                                     and (d.state in ('retrying', 'held', 'dead') and not d.unsure
                                                          or d.state = 'canceled')))))
returning 1

-- name: raise_versions
-- Make the lanes load again, if the statement before has changed something for them.
update {schema}_lanes
   set version = version + 1
 where changes() > 0
   and (select slot from {schema}_outbox where id = ?) between first_slot and last_slot
returning 1

-- name: cancel
-- The last step: whether the message is in the log, and whether it is canceled for every lane that reads it.
select count(*),
       coalesce(max(exists (select 1 from {schema}_lanes l where o.slot between l.first_slot and l.last_slot)
                    and exists (select 1 from {schema}_deferred d where d.position = o.position)
                    and not exists (select 1 from {schema}_lanes l
                                     where o.slot between l.first_slot and l.last_slot
                                       and (exists (select 1 from {schema}_taken t
                                                     where t.sink = l.sink and t.position = o.position)
                                            or exists (select 1 from {schema}_deferred d
                                                        where d.position = o.position and d.sink = l.sink))
                                       and not exists (select 1 from {schema}_deferred d
                                                        where d.position = o.position and d.sink = l.sink
                                                          and d.state = 'canceled'))), 0)
  from {schema}_outbox o
 where id = ?

-- name: scheduled_due_in
-- Seconds until the first scheduled message is due; 0 or less if one is due.
select (min(due_at) - (julianday('now') - 2440587.5) * 86400000000) / 1e6 from {schema}_scheduled
 where due_at < 253370764800000000

-- name: move_scheduled
-- Take out at most ?1 due messages, in no order. `add_moved` puts them into the log.
delete from {schema}_scheduled
 where id in (select id from {schema}_scheduled
               where due_at <= (julianday('now') - 2440587.5) * 86400000000
               order by due_at, number limit ?1)
returning due_at, number, id, topic, key, slot, type, payload, content_type, headers

-- name: schema_version
-- The last migration that was applied, and the oldest client that may use the schema.
select (select max(version) from {schema}_migrations) as version,
       (select min_client from {schema}_installation) as min_client

-- name: load_lane
-- Loading writes, so an owner that can't write fails before it publishes. The last columns: whether the sink is paused, and
-- the time. Before them: the file's schema version. Copying a backup into the file raises it (as does any change of the
-- schema), so a lane that was loaded before has another one, and its fence fails.
update {schema}_lanes
   set version = version + 1
 where sink = ?1 and lane = ?2 and owner = ?3 and epoch = ?4
returning sink, lane, first_slot, last_slot, owner, epoch, version, position,
          (select schema_version from pragma_schema_version),
          (select filter from {schema}_sinks s where s.sink = ?1),
          exists (select 1 from {schema}_pauses where sink = ?1),
          cast((julianday('now') - 2440587.5) * 86400000000 as integer)

-- name: log_end
select coalesce(max(position), 0) from {schema}_outbox

-- name: is_current
-- Whether a lane is unchanged since it was loaded, for an owner that has nothing to write.
select exists (select 1 from {schema}_lanes
                where sink = ?1 and lane = ?2 and owner = ?3 and epoch = ?4 and version = ?5
                  and ?6 = (select schema_version from pragma_schema_version))

-- name: read_page
-- Next rows, and a last row whose position is the highest that was ever assigned (a backup may have lowered it) and whose
-- key is the lane's version (null if another relay owns the lane).
-- ?1 and ?2: the slots; ?3: position; ?4: rows; ?5: bytes; ?6 to ?10: sink, lane, owner, epoch and incarnation.
-- The end of the page is found from the lengths; payloads are read only then.
-- What is in {? ?} is only in the statement for a sink with a filter, ?11. As in PostgreSQL, that walks over a number of
-- positions only; the content type of the last row is how far. postroad_takes is a function of the store's connection: the
-- view `taken` has the same answer, and is slower.
with sized as (
    select position, {size} as size from {schema}_outbox
     where position > ?3 and slot between ?1 and ?2
       {?and position <= coalesce((select min(position) from {schema}_outbox where position > ?3), ?3) + {positions}
         and postroad_takes(?11, topic, type, headers)?}
     order by position limit ?4),
sums as (
    select position, size,
           sum(size) over (order by position rows between unbounded preceding and 1 preceding) as bytes_before
      from sized)
select * from (
    select o.position, id, topic, key, slot, type, {contents}, created_at
      from sums join {schema}_outbox o on o.position = sums.position
     where coalesce(bytes_before, 0) < ?5
     order by o.position)
union all
select coalesce((select seq from sqlite_sequence where name = '{schema}_outbox'), 0), null, null,
       (select version from {schema}_lanes
         where sink = ?6 and lane = ?7 and owner = ?8 and epoch = ?9
           and ?10 = (select schema_version from pragma_schema_version)),
       null, null, null,
       coalesce({?coalesce((select min(position) from {schema}_outbox where position > ?3), ?3) + {positions}, ?}null, null),
       null, null

-- name: settle
-- Zero rows changed: the lane has changed since it was loaded.
update {schema}_lanes
   set position = ?6, version = version + 1
 where sink = ?1 and lane = ?2 and owner = ?3 and epoch = ?4 and version = ?5
   and ?7 = (select schema_version from pragma_schema_version)

-- name: note_progress
-- How far the lane has come, within its transaction. ?3: published; ?4: refused; ?5: latencies, a JSON text. Two at the same moment (a clock may tick in
-- milliseconds) become one row.
insert into {schema}_progress (sink, lane, position, published, refused, latencies)
select sink, lane, position, ?3, ?4, ?5 from {schema}_lanes where sink = ?1 and lane = ?2
on conflict (sink, lane, position, at) do update
   set published = published + excluded.published, refused = refused + excluded.refused,
       latencies = iif(latencies is null or excluded.latencies is null, coalesce(latencies, excluded.latencies),
                       (select json_group_array(a.value + b.value)
                          from json_each(latencies) a join json_each(excluded.latencies) b using (key)))

-- name: fence
-- The first statement of a transaction that records or claims for a lane. Returns the time; no row if the lane has changed
-- since it was loaded.
update {schema}_lanes
   set position = ?6, version = version + 1
 where sink = ?1 and lane = ?2 and owner = ?3 and epoch = ?4 and version = ?5
   and ?7 = (select schema_version from pragma_schema_version)
returning cast((julianday('now') - 2440587.5) * 86400000000 as integer)

-- name: put_back
-- Messages that were being sent when the lane was lost or reloaded: the broker may have them. Only the head of a key becomes
-- due, unless an operator holds the key. ?3: now.
update {schema}_deferred
   set state = iif(attempts > 0
                     and not exists (select 1 from {schema}_holds h
                                      where h.sink = ?1 and h.key in ({schema}_deferred.key, substr({schema}_deferred.key, 1, instr({schema}_deferred.key || char(31), char(31)) - 1))),
                   'retrying', 'held'),
       due_at = iif((attempts > 0
                       or position = coalesce((select min(position) from {schema}_deferred head
                                                where sink = ?1 and lane = ?2 and head.key = {schema}_deferred.key
                                                  and blocks), position))
                     and not exists (select 1 from {schema}_holds h
                                      where h.sink = ?1 and h.key in ({schema}_deferred.key, substr({schema}_deferred.key, 1, instr({schema}_deferred.key || char(31), char(31)) - 1))),
                    ?3, null),
       epoch = null, unsure = 1
 where sink = ?1 and lane = ?2 and epoch is not null

-- name: scope_keys
-- As in PostgreSQL. ?3: by key and source.
update {schema}_deferred
   set key = (select iif(?3, o.key || char(31) || coalesce(json_extract(o.headers, '$.source'), ''), o.key)
                from {schema}_outbox o where o.position = {schema}_deferred.position)
 where sink = ?1 and lane = ?2 and key is not null and (instr(key, char(31)) = 0) = ?3
   and exists (select 1 from {schema}_outbox o
                where o.position = {schema}_deferred.position and (?3 or o.key <> {schema}_deferred.key))

-- name: holds
-- The keys of some slots that an operator holds.
select key from {schema}_holds where sink = ?1 and slot between ?2 and ?3

-- name: forget_ahead
-- Delete the rows that the lane has passed.
delete from {schema}_ahead
 where sink = ?1 and lane = ?2
   and (position <= (select position from {schema}_lanes where sink = ?1 and lane = ?2)
        or not exists (select 1 from {schema}_outbox o where o.position = {schema}_ahead.position))

-- name: ahead
-- Messages that an operator has decided about before the lane has read them.
select position from {schema}_ahead where sink = ?1 and lane = ?2

-- name: heads
select key, min(position) as position
  from {schema}_deferred
 where sink = ?1 and lane = ?2 and blocks and key is not null
 group by key

-- name: heads_of
-- The head of one key.
select key, position
  from {schema}_deferred
 where sink = ?1 and lane = ?2 and key = ?3 and blocks
 order by position limit 1

-- name: routes
-- The blocked routes of a lane, and the first message of each that waits for nothing else and is not held by an operator.
select route, min(position) as position
  from {schema}_deferred d
 where sink = ?1 and lane = ?2 and route is not null and state = 'held'
   and position = coalesce((select min(position) from {schema}_deferred head
                             where sink = ?1 and lane = ?2 and head.key = d.key and blocks), position)
   and not exists (select 1 from {schema}_holds h where h.sink = ?1 and h.key in (d.key, substr(d.key, 1, instr(d.key || char(31), char(31)) - 1)))
 group by route

-- name: make_due
-- Make a held message due. ?2: position; ?3: also if it waits for a route; ?4: when.
update {schema}_deferred
   set due_at = ?4
 where sink = ?1 and position = ?2 and state = 'held' and (?3 or route is null)
   and (due_at is null or due_at > ?4)

-- name: due_in
-- Microseconds from ?3, which is now, until a message is due that is due later than ?4.
select min(due_at) - ?3 from {schema}_deferred where sink = ?1 and lane = ?2 and due_at > ?4

-- name: defer
-- An existing row is replaced; the time of its first failure is kept, and so is its error unless there is a new one.
-- ?3: now; ?4 and on: the columns.
insert into {schema}_deferred (
       sink, lane, position, key, state, attempts, due_at, route, error, blocks, unsure, first_failed_at, last_failed_at)
values (?1, ?2, ?4, ?5, ?6, ?7, ?3 + cast(?8 * 1000000 as integer), ?9, ?10, ?11, ?12,
        iif(?13, ?3, null), iif(?13, ?3, null))
on conflict (position, sink) do update
   set lane = excluded.lane, key = excluded.key, state = excluded.state, attempts = excluded.attempts,
       due_at = excluded.due_at, epoch = null, route = excluded.route, blocks = excluded.blocks,
       unsure = unsure or excluded.unsure, error = coalesce(excluded.error, error),
       first_failed_at = coalesce(first_failed_at, excluded.first_failed_at),
       last_failed_at = coalesce(excluded.last_failed_at, last_failed_at)

-- name: note_attempts
insert into {schema}_attempts (sink, position, attempt, failed_at, error) values (?1, ?2, ?3, ?4, ?5)

-- name: forget_published
delete from {schema}_deferred where sink = ?1 and position = ?2

-- name: forget_rewound
delete from {schema}_rewound where sink = ?1 and position = ?2

-- name: note_delivered
-- When a message was published that had been deferred. ?3: now.
insert into {schema}_delivered (sink, position, delivered_at) values (?1, ?2, ?3)
on conflict (position, sink) do update set delivered_at = excluded.delivered_at

-- name: find_due
-- Due messages that are the head of their key, if they have one. ?3: now; ?4: rows.
select position, key, state, due_at, route from {schema}_deferred d
 where sink = ?1 and lane = ?2 and due_at <= ?3 and state in ('retrying', 'held')
   and position = coalesce((select min(position) from {schema}_deferred head
                             where sink = ?1 and lane = ?2 and head.key = d.key and blocks), position)
 order by due_at, position limit ?4

-- name: find_routed
-- Messages that wait for a route and are the head of their key, if they have one. ?3: route; ?4: rows.
select position, key, state, due_at, route from {schema}_deferred d
 where sink = ?1 and lane = ?2 and route = ?3 and state in ('retrying', 'held')
   and not exists (select 1 from {schema}_holds h where h.sink = ?1 and h.key in (d.key, substr(d.key, 1, instr(d.key || char(31), char(31)) - 1)))
   and position = coalesce((select min(position) from {schema}_deferred head
                             where sink = ?1 and lane = ?2 and head.key = d.key and blocks), position)
 order by position limit ?4

-- name: find_followers
-- Messages behind a head, and whether each waits for nothing else. ?3: key; ?4: the head's position; ?5: rows.
select position, state = 'held' and due_at is null and route is null as goes
  from {schema}_deferred
 where sink = ?1 and lane = ?2 and key = ?3 and blocks and position > ?4
 order by position limit ?5

-- name: claim
-- ?2: position; ?3: epoch; ?4: now.
update {schema}_deferred
   set state = 'sending', due_at = null, epoch = ?3
 where sink = ?1 and position = ?2
returning attempts, route, (?4 - deferred_at) / 1e6,
          (select rewind from {schema}_rewound r where r.sink = ?1 and r.position = ?2),
          (select new_id from {schema}_rewound r where r.sink = ?1 and r.position = ?2)

-- name: read_one
select position, id, topic, key, slot, type, {contents}, created_at
  from (select *, {size} as size from {schema}_outbox where position = ?1)

-- name: forget_gone
-- Deferred messages that were deleted from the log by hand.
delete from {schema}_deferred
 where sink = ?1 and lane = ?2
   and not exists (select 1 from {schema}_outbox o where o.position = {schema}_deferred.position)

-- name: look_at_batch
-- The last position of a batch of retention, whether a row in it is old enough, and how far all lanes have come. ?1: after;
-- ?2: rows; ?3: microseconds.
select coalesce(max(position), ?1) as through,
       coalesce(max(created_at <= (julianday('now') - 2440587.5) * 86400000000 - ?3), 0) as more,
       coalesce((select min(position) from {schema}_lanes), 0) as behind
  from (select position, created_at from {schema}_outbox where position > ?1 order by position limit ?2)

-- name: add_copy
-- A copy of a message that died in sink ?1 just now, for sink ?3. ?2: now.
insert into {schema}_copies (dead_in, died_at, due_at, sink, position, id, attempts, error)
values (?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (position, sink, dead_in) do update
   set id = excluded.id, attempts = excluded.attempts, error = excluded.error, died_at = excluded.died_at, tries = 0,
       due_at = excluded.due_at

-- name: due_copies
-- The copies for sink ?1 that may be published now, at most ?2. Copies of messages that were deleted from the log by hand
-- are left out.
select o.position, o.id, o.topic, o.key, o.slot, o.type, {contents}, o.created_at,
       c.id, c.dead_in, c.attempts, c.error, c.died_at, c.tries
  from {schema}_copies c
  join (select *, {size} as size from {schema}_outbox) o on o.position = c.position
 where c.sink = ?1 and c.due_at <= {now}
 order by c.died_at, c.position limit ?2

-- name: forget_copy
delete from {schema}_copies where sink = ?1 and id = ?2

-- name: postpone_copy
-- ?3: microseconds; ?4: whether it was refused.
update {schema}_copies set due_at = {now} + ?3, tries = tries + ?4 where sink = ?1 and id = ?2

-- name: takes_copies
-- Whether there is such a sink, and a relay of ours publishes for it.
select exists (select 1 from {schema}_sinks where sink = ?1)

-- name: delete_passed
-- Of the rows up to a position, delete those that every lane has passed, as the lanes are now, unless a deferred message
-- refers to them. A lane whose sink does not take a row need not have passed it. ?1: after; ?2: through; ?3: microseconds; ?4: of this key only, or null.
delete from {schema}_outbox
 where position > ?1 and position <= ?2
   and created_at <= (julianday('now') - 2440587.5) * 86400000000 - ?3
   and (?4 is null or key = ?4)
   and exists (select 1 from {schema}_lanes)
   and not exists (select 1 from {schema}_lanes l
                    where {schema}_outbox.slot between l.first_slot and l.last_slot
                      and {schema}_outbox.position > l.position
                      and exists (select 1 from {schema}_taken t
                                   where t.sink = l.sink and t.position = {schema}_outbox.position))
   and not exists (select 1 from {schema}_deferred d
                    where d.position = {schema}_outbox.position
                      and d.state in ('retrying', 'sending', 'held', 'dead'))
   and not exists (select 1 from {schema}_copies c where c.position = {schema}_outbox.position)

-- name: delete_finished
-- A deferred row in a final state is deleted with its message.
delete from {schema}_deferred
 where position > ?1 and position <= ?2
   and not exists (select 1 from {schema}_outbox o where o.position = {schema}_deferred.position)

-- name: delete_history
delete from {schema}_attempts
 where position > ?1 and position <= ?2
   and not exists (select 1 from {schema}_outbox o where o.position = {schema}_attempts.position)

-- name: tick
-- The relay's lanes, and which of them have something to look at.
select lane, epoch, version,
       position < coalesce((select max(position) from {schema}_outbox), 0)
       or (lane = 0 and exists (select 1 from {schema}_copies c where c.sink = ?1 and c.due_at <= {now})) as has_work
  from {schema}_lanes
 where sink = ?1 and owner = ?2

-- name: data_version
-- A number that changes whenever another connection, of this process or any other, has committed.
pragma data_version

-- name: delete_delivered
delete from {schema}_delivered
 where position > ?1 and position <= ?2
   and not exists (select 1 from {schema}_outbox o where o.position = {schema}_delivered.position)

-- name: delete_rewound
delete from {schema}_rewound
 where position > ?1 and position <= ?2
   and not exists (select 1 from {schema}_outbox o where o.position = {schema}_rewound.position)

-- name: find_old_progress
-- The first ?2 rows that are older than ?1 microseconds.
select sink, lane, position, at from {schema}_progress
 where at < (julianday('now') - 2440587.5) * 86400000000 - ?1
 order by at limit ?2

-- name: forget_progress
delete from {schema}_progress where sink = ?1 and lane = ?2 and position = ?3 and at = ?4

-- name: undate_progress
update {schema}_progress set at = 0 where sink = ?1 and lane = ?2 and position = ?3 and at = ?4

-- name: first_time
-- Returns the id and the row's time if the consumer sees it for the first time, and no row if it was processed before.
insert into {schema}_inbox (consumer, id, type)
values (?, ?, ?)
on conflict do nothing
returning id, processed_at

-- name: first_times
-- The same for many, given as a JSON array of ids and types.
insert into {schema}_inbox (consumer, id, type)
select wanted.consumer, json_extract(value, '$[0]'), json_extract(value, '$[1]')
  from (select ? as consumer, ? as messages) wanted, json_each(wanted.messages)
 where true -- without it SQLite would read "on" as the beginning of a join's condition
on conflict do nothing
returning id, processed_at

-- name: open_inbox
-- Raises an error if the tables are missing.
select i.id, a.id from {schema}_inbox i, {schema}_inbox_attempts a where i.consumer = ? limit 0

-- name: write_probe
-- A row that tells later whether the transaction was committed.
insert into {schema}_inbox (consumer, id, type) values (?, ?, '')
returning id

-- name: read_probe
delete from {schema}_inbox where consumer = ? and id = ?
returning id

-- name: mark_transaction
-- SQLite's transactions have no ids, but a savepoint goes when its transaction ends.
savepoint postroad_handler

-- name: same_transaction
-- Raises an error if the transaction that was marked has ended; else it is marked again, for the next handler in it.
release postroad_handler

-- name: undo_first_times
-- Called after a handler has failed. If the handler has committed its transaction by itself, the inbox's rows are there and
-- are deleted. The first value is their time: rows of a later transaction stay.
delete from {schema}_inbox
 where processed_at = ? and consumer = ? and id in (select value from json_each(?))
returning id

-- name: begin_attempt
-- Called before the handler of a redelivered message. An attempt that is still marked as running ended with its process.
-- Returns no row if the message was processed. A dead letter begins anew: it was sent again.
insert into {schema}_inbox_attempts as a (consumer, id, type, running)
select ?, ?, ?, 1
 where not exists (select 1 from {schema}_inbox i where i.consumer = ? and i.id = ?)
on conflict (consumer, id) do update
   set attempts = case when a.dead_at is null then a.attempts + a.running else 0 end,
       crashes = case when a.dead_at is null then a.crashes + a.running else 0 end,
       error = case when a.running then ? else a.error end,
       running = 1, dead_at = null,
       changed_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
returning attempts, crashes, error

-- name: end_attempt
-- Called in the handler's own transaction: undone if that is rolled back, or its process dies.
update {schema}_inbox_attempts set running = 0 where consumer = ? and id = ?
returning id

-- name: fail_attempt
-- Returns no row if the message was processed after all: the answer to a COMMIT may be lost.
insert into {schema}_inbox_attempts as a (consumer, id, type, error, attempts)
select ?, ?, ?, ?, 1
 where not exists (select 1 from {schema}_inbox i where i.consumer = ? and i.id = ?)
on conflict (consumer, id) do update
   set attempts = case when a.dead_at is null then a.attempts + 1 else 1 end,
       crashes = case when a.dead_at is null then a.crashes else 0 end,
       error = excluded.error, running = 0, dead_at = null,
       changed_at = cast((julianday('now') - 2440587.5) * 86400000000 as integer)
returning attempts

-- name: note_dead
insert into {schema}_inbox_attempts as a (consumer, id, type, error, dead_at)
values (?, ?, ?, ?, cast((julianday('now') - 2440587.5) * 86400000000 as integer))
on conflict (consumer, id) do update
   set error = excluded.error, running = 0, dead_at = excluded.dead_at, changed_at = excluded.dead_at
returning attempts

-- name: forget_processed
-- Delete a batch of messages that a consumer has processed longer ago than so many microseconds.
delete from {schema}_inbox
 where rowid in (
       select rowid from {schema}_inbox
        where consumer = ? and processed_at < (julianday('now') - 2440587.5) * 86400000000 - ?
        order by processed_at limit ?)
returning id

-- name: forget_attempts
delete from {schema}_inbox_attempts
 where rowid in (
       select rowid from {schema}_inbox_attempts
        where consumer = ? and changed_at < (julianday('now') - 2440587.5) * 86400000000 - ?
        limit ?)
returning id

-- name: consumer_heartbeat
insert into {schema}_consumers as c (
       consumer, instance, host, pid, version, source, alive_until, handled, duplicates, failed, dead)
values (?, ?, ?, ?, ?, ?, cast({now} + ? as integer), ?, ?, ?, ?)
on conflict (instance) do update
   set heartbeats = c.heartbeats + 1, heartbeat_at = {now}, alive_until = excluded.alive_until,
       handled = excluded.handled, duplicates = excluded.duplicates, failed = excluded.failed, dead = excluded.dead
returning 1

-- name: consumer_ended
delete from {schema}_consumers where consumer = ? and instance = ?
returning 1

-- name: forget_consumers
-- Delete the rows of consumers that died at least so many microseconds ago. The first value is the consumer that asks.
delete from {schema}_consumers where ? is not null and alive_until < {now} - ?
returning 1
