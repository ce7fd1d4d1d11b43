-- The named queries of `Admin`, SQLite. ../postgresql/admin.sql has the same names and documents the parameters.
-- {now} is an expression in ../../dialects/sqlite.py.
-- Lists are JSON texts, and so are rows, which are one parameter here. A filter's parameter that is null matches everything.

-- name: sinks
select distinct sink from {schema}_lanes order by sink

-- name: sink_reports
-- Each sink's destination, when a relay last served it, how many relays serve it now, and the current time.
select s.sink, s.destination,
       max(s.served_at,
           coalesce((select max(heartbeat_at) from {schema}_relays r where r.sink = s.sink), 0),
           coalesce((select max(min(e.lease_until, clock.now))
                       from {schema}_leases e join {schema}_lanes l on l.sink = e.sink and l.lane = e.lane
                      where e.sink = s.sink and l.owner is not null), 0)),
       (select count(*) from {schema}_relays r where r.sink = s.sink and r.alive_until > clock.now),
       clock.now
  from {schema}_sinks s, (select {now} as now) clock
 order by s.sink

-- name: lock_sink
select destination from {schema}_sinks where sink = ?1

-- name: count_serving
-- How many relays serve a sink, and how many lanes have a lease that has not expired.
select (select count(*) from {schema}_relays
         where sink = ?1 and alive_until > {now}),
       (select count(*) from {schema}_lanes l
         where sink = ?1 and owner is not null
           and exists (select 1 from {schema}_leases e
                        where e.sink = l.sink and e.lane = l.lane
                          and e.lease_until > {now}))

-- name: release_lanes
-- Take the lanes from their owners: a relay that was suspended must not deliver to the old destination when it resumes.
update {schema}_lanes set owner = null where sink = ?1

-- name: retarget
update {schema}_sinks set destination = ?2 where sink = ?1

-- part: remove
-- Delete a sink from one of the tables that know sinks: a query for each of them is made of this.
delete from {schema}_{table} where sink = ?1

-- name: lane_reports
-- Pending messages per lane, among the first ?1 rows after its position. SQLite has no late rows.
select l.sink, l.lane, l.position, l.owner,
       exists (select 1 from {schema}_pauses p where p.sink = l.sink) as paused,
       (select count(*) from (select 1 from {schema}_outbox o
                               where o.position > l.position order by o.position limit ?1)) as seen,
       (select count(*) from (select slot from {schema}_outbox o
                               where o.position > l.position order by o.position limit ?1) next
         where next.slot between l.first_slot and l.last_slot) as mine,
       (select max(position) from (select position from {schema}_outbox o
                                    where o.position > l.position order by o.position limit ?1)) as through,
       coalesce((select max(position) from {schema}_outbox), 0) as log_end,
       0 as late_seen, 0 as late_mine,
       ({now}
        - (select created_at from (select slot, created_at from {schema}_outbox o
                                    where o.position > l.position order by o.position limit ?1) next
            where next.slot between l.first_slot and l.last_slot limit 1)) / 1e6 as lag_seconds
  from {schema}_lanes l
 order by l.sink, l.lane

-- name: deferred_reports
-- How many deferred messages each lane has, by state, and the age of the oldest.
select sink, lane, state, number,
       ({now}
        - (select created_at from {schema}_outbox o where o.position = first)) / 1e6 as age, routed
  from (select sink, lane, state, count(*) as number, min(position) as first, count(route) as routed
          from {schema}_deferred
         group by sink, lane, state)

-- name: throughput
-- Published and refused messages per minute of the clock, by how many minutes ago. ?1: minutes.
select sink, lane, {now} / 60000000 - at / 60000000 as ago,
       sum(published) as published, sum(refused) as refused
  from {schema}_progress
 where at >= ({now} / 60000000 - ?1 + 1) * 60000000
 group by sink, lane, ago

-- name: scheduled_report
select (select count(*) from (select 1 from {schema}_scheduled order by due_at limit ?1)) as number,
       (select min(due_at) from {schema}_scheduled) as due_at,
       {now} as at

-- name: held_keys
select sink, key, since, who, reason from {schema}_holds where ?1 is null or sink = ?1 order by sink, key

-- name: audit
select number, at, who, null as role, command, arguments, reason, changed
  from {schema}_audit order by number desc limit ?1

-- name: log_ends
-- The first and the last position of the log, and the lowest and highest position of a sink's lanes.
select (select min(position) from {schema}_outbox) as first,
       (select max(position) from {schema}_outbox) as last,
       coalesce(min(position), 0) as behind, coalesce(max(position), 0) as before
  from {schema}_lanes where ?1 is null or sink = ?1

-- name: look_back
-- Count the rows at or below position ?1, at most ?2, and return the lowest position among them.
select count(*) as rows, min(position) as position
  from (select position from {schema}_outbox where position <= ?1 order by position desc limit ?2)

-- name: created_at
-- The newest time at which one of the 100 rows from a position on was added.
select max(created_at) from (select created_at from {schema}_outbox where position >= ?1 order by position limit 100)

-- part: log_filter
position between ?1 and ?2
and (?3 is null or sink = ?3)
and (?4 is null or state in (select value from json_each(?4)))
and (?5 is null or key = ?5)
and (?6 is null or type = ?6)
and (?7 is null or topic = ?7)
and (?8 is null or instr(lower(error), lower(?8)) > 0)
and (?9 is null or created_at >= ?9)
and (?10 is null or created_at < ?10)

-- name: list_log
-- Messages between two positions, newest first.
select sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_attempt_at, published_at
  from {schema}_outbox_status
 where {log_filter}
 order by position desc, sink
 limit ?11

-- name: count_log
-- The same, counted.
select count(*) from {schema}_outbox_status where {log_filter}

-- name: list_added
-- As list_log, for a log without a sink: every message is waiting.
select * from (
    select '' as sink, 0 as lane, position, id, type, topic, key, 'waiting' as state, 0 as attempts, null as error,
           null as route, created_at, null as next_attempt_at, null as published_at
      from {schema}_outbox) added
 where {log_filter}
 order by position desc
 limit ?11

-- name: find_ids
-- Ids between ?1 and ?2, which begin with the same digits; and, among the newest ?4 messages of the log, the scheduled and
-- the deferred ones, ids that end with the digits ?3. At most ?5.
select id from {schema}_outbox where id between ?1 and ?2
union
select id from {schema}_scheduled where id between ?1 and ?2
union
select id from (select id from {schema}_outbox order by position desc limit ?4)
 where replace(id, '-', '') like '%' || ?3
union
select id from (select id from {schema}_scheduled order by due_at, number limit ?4)
 where replace(id, '-', '') like '%' || ?3
union
select id from (select position from {schema}_deferred order by position desc limit ?4)
  join {schema}_outbox using (position)
 where replace(id, '-', '') like '%' || ?3
 limit ?5

-- name: list_ids
-- Messages by id, at one sink or at all.
select sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_attempt_at, published_at
  from {schema}_outbox_status
 where id in (select value from json_each(?1)) and (?2 is null or sink = ?2)
 order by position desc, sink

-- part: deferred_filter
(?1 is null or sink = ?1)
and state in (select value from json_each(?2))
and (?3 is null or ?3 in (key, substr(key, 1, instr(key || char(31), char(31)) - 1)))
and (?4 is null or instr(lower(error), lower(?4)) > 0)

-- part: message_filter
(not ?5
 or (select (?6 is null or o.type = ?6)
        and (?7 is null or o.topic = ?7)
        and (?8 is null or o.created_at >= ?8)
        and (?9 is null or o.created_at < ?9)
       from {schema}_outbox o where o.position = d.position))

-- name: find_deferred
-- Deferred messages after a place, in order.
select sink, position from {schema}_deferred d
 where (position, sink) > (?10, ?11)
   and {deferred_filter}
   and {message_filter}
 order by position, sink
 limit ?12

-- name: list_deferred
-- Deferred messages, newest first.
select d.sink, d.lane, d.position, o.id, o.type, o.topic, o.key, d.state, d.attempts, d.error, d.route, o.created_at,
       d.due_at as next_attempt_at, null as published_at
  from (select * from (
            select * from {schema}_deferred
             where position < ?10
               and {deferred_filter}
             order by position desc, sink
             limit ?11) d
         where {message_filter}
         order by position desc, sink
         limit ?12) d
  join {schema}_outbox o on o.position = d.position
 order by d.position desc, d.sink

-- name: count_deferred
-- Of the newest ?10 deferred messages that match by the columns of `deferred`: how many there are, and how many also match by
-- the columns of the log.
select count(*) as seen,
       coalesce(sum({message_filter}), 0) as matching
  from (select position from {schema}_deferred
         where {deferred_filter}
         order by position desc
         limit ?10) d

-- name: look_back_deferred
-- Count the deferred messages below position ?5 that match by the columns of `deferred`, at most ?6, and return the lowest
-- position among them.
select count(*) as seen, min(position) as through
  from (select position from {schema}_deferred
         where position < ?5
           and {deferred_filter}
         order by position desc
         limit ?6) looked_at

-- name: message
-- A message from the log, without its payload.
select position, type, topic, key, content_type, headers, created_at, null as deliver_at
  from {schema}_outbox where id = ?1

-- name: scheduled_message
-- The same, of a scheduled message.
select null as position, type, topic, key, content_type, headers, created_at, due_at as deliver_at
  from {schema}_scheduled where id = ?1

-- name: may_read_payloads
select 1

-- name: payload
-- The first ?2 bytes of a message's payload, and its size.
select substr(payload, 1, ?2) as payload, length(payload) as size
  from (select id, payload from {schema}_outbox union all select id, payload from {schema}_scheduled) messages
 where id = ?1

-- name: failures
select sink, attempt, failed_at, error from {schema}_attempts where position = ?1 order by failed_at, attempt

-- name: caused
-- Messages whose causation id is ?2, among the ?3 rows after position ?1.
select id, type
  from (select position, id, type, headers from {schema}_outbox where position > ?1 order by position limit ?3)
 where instr(headers, ?2) > 0 and json_valid(headers) and headers ->> 'causation_id' = ?2
 order by position

-- name: lock_for_change
-- SQLite has one writer at a time, so the lanes are locked already.
select sink, lane, first_slot, last_slot from {schema}_lanes
 where ?1 is null or sink = ?1
 order by sink, lane

-- name: raise_version
-- Make the owner of a lane reload it.
update {schema}_lanes set version = version + 1
 where (sink, lane) in (select value ->> 0, value ->> 1 from json_each(?1))

-- name: add_audit
-- ?6: the number of the first line of the same command, for a later batch.
insert into {schema}_audit (number, who, command, arguments, reason, changed) values (?6, ?1, ?2, ?3, ?4, ?5)
on conflict (number) do update set changed = changed + excluded.changed
returning number

-- name: retry
-- Retry dead messages, after earlier messages that block their keys. One that its lane has not reached yet stays dead: it
-- would overtake earlier messages.
update {schema}_deferred
   set state = iif(blocked, 'held', 'retrying'),
       due_at = iif(blocked, null, {now}),
       attempts = 0, blocks = 1, route = null
  from (select dead.sink as its_sink, dead.position as its_position,
               dead.key is not null
               and (exists (select 1 from {schema}_holds h where h.sink = dead.sink and h.key in (dead.key, substr(dead.key, 1, instr(dead.key || char(31), char(31)) - 1)))
                    or exists (select 1 from {schema}_deferred head
                                where head.sink = dead.sink and head.lane = dead.lane and head.key = dead.key
                                  and head.blocks and head.position < dead.position)) as blocked
          from json_each(?1) these
          join {schema}_deferred dead on dead.sink = these.value ->> 0 and dead.position = these.value ->> 1
         where dead.state = 'dead'
           and not exists (select 1 from {schema}_lanes l
                            where l.sink = dead.sink and l.lane = dead.lane and l.position < dead.position)) found
 where sink = its_sink and position = its_position
returning sink, lane, position

-- name: drop
update {schema}_deferred
   set state = 'dropped', blocks = 0
 where (sink, position) in (select value ->> 0, value ->> 1 from json_each(?1))
   and state = 'dead'
returning sink, lane, position

-- name: skip
update {schema}_deferred
   set state = 'skipped', blocks = 0, due_at = null, route = null
 where (sink, position) in (select value ->> 0, value ->> 1 from json_each(?1))
   and state in ('retrying', 'held', 'dead')
returning sink, lane, position

-- name: poison
-- ?2: the error; ?3: hold later messages of the keys.
update {schema}_deferred
   set state = 'dead', blocks = ?3, due_at = null, route = null, error = ?2,
       first_failed_at = coalesce(first_failed_at, {now}),
       last_failed_at = {now}
 where (sink, position) in (select value ->> 0, value ->> 1 from json_each(?1))
   and state in ('retrying', 'held')
returning sink, lane, position

-- name: decide_ahead
-- Give messages that their lanes have not passed the state ?2: skipped or dead. ?3: the error; ?4: hold later messages of the keys.
-- Unsure: the lane may have published them without having saved its cursor.
insert into {schema}_deferred (sink, lane, position, key, state, blocks, error, unsure, first_failed_at, last_failed_at)
select l.sink, l.lane, o.position, o.key, ?2, ?4, ?3, 1,
       iif(?2 = 'dead', {now}, null),
       iif(?2 = 'dead', {now}, null)
  from json_each(?1) these
  join {schema}_outbox o on o.position = these.value ->> 1
  join {schema}_lanes l on l.sink = these.value ->> 0 and o.slot between l.first_slot and l.last_slot
 where o.position > l.position
on conflict (position, sink) do nothing
returning sink, lane, position

-- name: add_ahead
-- The lanes will not publish these.
insert into {schema}_ahead (sink, lane, position)
select value ->> 0, value ->> 1, value ->> 2 from json_each(?1)
 where true
on conflict do nothing

-- name: add_poison_attempt
-- Record the poisoning in the messages' history. ?2: the error.
insert into {schema}_attempts (sink, position, attempt, failed_at, error)
select d.sink, d.position, d.attempts, {now}, ?2
  from json_each(?1) these
  join {schema}_deferred d on d.sink = these.value ->> 0 and d.position = these.value ->> 1

-- name: hold
insert into {schema}_holds (sink, key, slot, who, reason) values (?1, ?2, ?3, ?4, ?5)
on conflict (sink, key) do nothing
returning 1

-- name: hold_deferred
-- Hold the deferred messages of a key.
update {schema}_deferred set state = 'held', due_at = null
 where sink = ?1 and lane = ?2 and ?3 in (key, substr(key, 1, instr(key || char(31), char(31)) - 1))
   and blocks and state in ('retrying', 'held')

-- name: release
delete from {schema}_holds where sink = ?1 and key = ?2
returning 1

-- name: pause
insert into {schema}_pauses (sink, who, reason) values (?1, ?2, ?3) on conflict (sink) do nothing
returning 1

-- name: resume
delete from {schema}_pauses where sink = ?1
returning 1

-- name: count_old
-- Of the first ?2 rows from position ?1 on: how many retention would delete now, how many there are, and where the last
-- one is. ?3: microseconds.
select coalesce(sum(batch.old
                    and exists (select 1 from {schema}_lanes)
                    and not exists (select 1 from {schema}_lanes l
                                     where batch.slot between l.first_slot and l.last_slot
                                       and batch.position > l.position)
                    and not exists (select 1 from {schema}_deferred d
                                     where d.position = batch.position
                                       and d.state in ('retrying', 'sending', 'held', 'dead'))), 0) as matching,
       count(*) as seen, max(position) as through
  from (select position, slot, created_at <= {now} - ?3 as old
          from {schema}_outbox where position >= ?1 order by position limit ?2) batch

-- name: count_of_key
-- Of the first ?2 rows after position ?1, how many messages of key ?3 every sink has had, and how many not; how many rows there
-- are, and where the last one is.
select coalesce(sum(of_key and delivered), 0) as delivered, coalesce(sum(of_key and not delivered), 0) as undelivered,
       count(*) as seen, max(position) as through
  from (select position, key is ?3 as of_key,
               exists (select 1 from {schema}_lanes)
               and not exists (select 1 from {schema}_lanes l
                                where batch.slot between l.first_slot and l.last_slot and batch.position > l.position)
               and not exists (select 1 from {schema}_deferred d
                                where d.position = batch.position
                                  and d.state in ('retrying', 'sending', 'held', 'dead')) as delivered
          from (select position, slot, key from {schema}_outbox where position > ?1 order by position limit ?2) batch)

-- name: count_scheduled_of_key
select count(*) from {schema}_scheduled where key = ?1

-- name: forget_in_audit
-- Remove a key from the audit, and the reasons of those lines, which may name it too.
-- ?1: key; ?2: the audit line of this command, written in the same transaction.
update {schema}_audit
   set arguments = json_set(arguments, '$.key', '(forgotten)'), reason = iif(reason is null, null, '(forgotten)')
 where json_extract(arguments, '$.key') = ?1 and number <> ?2

-- name: count_rewind
-- Of the first ?6 rows from position ?2 to ?3, how many a rewind of sink ?1 would re-publish, how many there are, and
-- where the last one is.
select coalesce(sum(o.matches and o.position <= l.position
                    and not exists (select 1 from {schema}_deferred d
                                     where d.position = o.position and d.sink = l.sink)), 0) as matching,
       count(*) as seen, max(o.position) as through
  from (select position, slot,
               (?4 is null or key = ?4) and (?5 is null or type = ?5) and (?7 is null or created_at >= ?7) as matches
          from {schema}_outbox
         where position >= ?2 and position <= ?3
         order by position limit ?6) o
  join {schema}_lanes l on l.sink = ?1 and o.slot between l.first_slot and l.last_slot

-- name: find_rewind
-- The same rows as count_rewind, each with whether it would be re-published.
select l.lane, o.position, o.key,
       o.matches and o.position <= l.position
       and not exists (select 1 from {schema}_deferred d where d.position = o.position and d.sink = l.sink) as goes
  from (select position, slot, key,
               (?4 is null or key = ?4) and (?5 is null or type = ?5) and (?7 is null or created_at >= ?7) as matches
          from {schema}_outbox
         where position >= ?2 and position <= ?3
         order by position limit ?6) o
  join {schema}_lanes l on l.sink = ?1 and o.slot between l.first_slot and l.last_slot
 order by o.position

-- name: rewind
-- Re-publish messages, those of a key one after the other.
insert into {schema}_deferred (sink, lane, position, key, state, blocks, due_at, unsure)
select ?1, value ->> 0, value ->> 1, value ->> 2, 'held', 1,
       iif(value ->> 2 is null, {now}, null),
       1 -- the broker has had these
  from json_each(?2)

-- name: lock_retention
-- SQLite has one writer at a time, so retention is blocked already.
select 1

-- name: add_rewound
-- Mark messages as re-published by rewind ?2. ?3: positions, and their new ids or nulls.
insert into {schema}_rewound (sink, position, rewind, new_id)
select ?1, value ->> 0, ?2, value ->> 1 from json_each(?3) where true
on conflict (position, sink) do update set rewind = excluded.rewind, new_id = excluded.new_id
