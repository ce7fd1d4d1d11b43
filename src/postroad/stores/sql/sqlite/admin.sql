-- The named queries of `Admin`, SQLite. ../postgresql/admin.sql has the same names and documents the parameters.
-- {now} is an expression in ../../dialects/sqlite.py.
-- Lists are JSON texts, and so are rows, which are one parameter here. A filter's parameter that is null matches everything.

-- name: sinks
select distinct sink from {schema}_lanes order by sink

-- name: sink_reports
-- Each sink's destination and filter, when a relay last served it, how many relays serve it now, and the current time.
select s.sink, s.destination, s.filter,
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
select destination, filter from {schema}_sinks where sink = ?1

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

-- name: refilter
-- Give a sink another filter.
update {schema}_sinks set filter = ?2 where sink = ?1

-- part: remove
-- Delete a sink from one of the tables that know sinks: a query for each of them is made of this.
delete from {schema}_{table} where sink = ?1

-- name: lane_reports
-- Pending messages per lane, among the first ?1 rows after its position. SQLite has no late rows.
select l.sink, l.lane, l.position, l.owner,
       exists (select 1 from {schema}_pauses p where p.sink = l.sink) as paused,
       (select count(*) from (select 1 from {schema}_outbox o
                               where o.position > l.position order by o.position limit ?1)) as seen,
       (select count(*) from (select position, slot from {schema}_outbox o
                               where o.position > l.position order by o.position limit ?1) next
         where next.slot between l.first_slot and l.last_slot
           and exists (select 1 from {schema}_taken t where t.sink = l.sink and t.position = next.position)) as mine,
       (select max(position) from (select position from {schema}_outbox o
                                    where o.position > l.position order by o.position limit ?1)) as through,
       coalesce((select max(position) from {schema}_outbox), 0) as log_end,
       0 as late_seen, 0 as late_mine,
       ({now}
        - (select created_at from (select position, slot, created_at from {schema}_outbox o
                                    where o.position > l.position order by o.position limit ?1) next
            where next.slot between l.first_slot and l.last_slot
              and exists (select 1 from {schema}_taken t where t.sink = l.sink and t.position = next.position)
            limit 1)) / 1e6 as lag_seconds
  from {schema}_lanes l
 order by l.sink, l.lane

-- name: lane_leases
-- Each lane's epoch, and for how many seconds its owner keeps it without another heartbeat. SQLite has no naps.
select l.sink, l.lane, l.epoch, iif(l.owner is null, null, (lease_until - {now}) / 1e6) as seconds, null as nap
  from {schema}_lanes l left join {schema}_leases using (sink, lane)

-- name: deferred_reports
-- How many deferred messages each lane has, by state, and the age of the oldest.
select sink, lane, state, number,
       ({now}
        - (select created_at from {schema}_outbox o where o.position = first)) / 1e6 as age, routed, since
  from (select sink, lane, state, count(*) as number, min(position) as first, count(route) as routed,
               min(coalesce(first_failed_at, deferred_at)) as since
          from {schema}_deferred
         group by sink, lane, state)

-- name: consumers
-- The running consumers, and those that died within a week.
select instance, consumer, source, host, pid, version, started_at,
       ({now} - heartbeat_at) / 1e6 as heartbeat_seconds, alive_until > {now} as alive,
       handled, duplicates, failed, dead
  from {schema}_consumers
 where alive_until > {now} - 7 * 86400000000
 order by consumer, started_at, instance

-- name: dead_letters
-- The dead letters of the last day: their consumer, how many, and when the first one died. At most ?1 are looked at.
select consumer, count(*) as number, min(dead_at) as since
  from (select consumer, dead_at from {schema}_inbox_attempts
         where dead_at > {now} - 86400000000
         order by dead_at desc limit ?1)
 group by consumer
 order by consumer

-- name: list_dead_letters
-- Dead letters of consumers, newest first. ?1: consumer; ?2: ids; ?3: type; ?4: a part of the error; ?5 and ?6: dead since, and
-- before; each of them null for any; ?7: rows.
select consumer, id, type, attempts, crashes, error, dead_at
  from {schema}_inbox_attempts
 where dead_at is not null
   and (?1 is null or consumer = ?1)
   and (?2 is null or id in (select value from json_each(?2)))
   and (?3 is null or type = ?3)
   and (?4 is null or instr(lower(error), lower(?4)) > 0)
   and (?5 is null or dead_at >= ?5)
   and (?6 is null or dead_at < ?6)
 order by dead_at desc, consumer, id
 limit ?7

-- name: forget_dead_letters
-- Delete the records of letters that were retried or dropped. ?1: consumers, ids, and when they died: a message that has died
-- again since then keeps its record.
delete from {schema}_inbox_attempts
 where rowid in (select a.rowid
                   from json_each(?1) these
                   join {schema}_inbox_attempts a
                     on a.consumer = these.value ->> 0 and a.id = these.value ->> 1 and a.dead_at = these.value ->> 2)
returning id

-- name: blocked_routes
-- Of each sink: how many messages wait for a blocked route, one of these routes, and since when.
select sink, count(*) as number, min(route) as route, min(deferred_at) as since
  from {schema}_deferred
 where route is not null and blocks
 group by sink
 order by sink

-- name: throughput
-- Published and refused messages per minute of the clock, by how many minutes ago. ?1: minutes.
select sink, lane, {now} / 60000000 - at / 60000000 as ago,
       sum(published) as published, sum(refused) as refused
  from {schema}_progress
 where at >= ({now} / 60000000 - ?1 + 1) * 60000000
 group by sink, lane, ago

-- name: latencies
-- Of the progress of sink ?1 from ?2 until ?3, at most its newest ?5 rows: which step of ?4 microseconds, which bucket, counted
-- from 1, and how many messages.
select step, counted.key + 1 as bucket, sum(counted.value) as messages
  from (select (at - ?2) / ?4 as step, latencies
          from {schema}_progress
         where at >= ?2 and at < ?3 and sink = ?1 and latencies is not null
         order by at desc
         limit ?5) few,
       json_each(few.latencies) counted
 where counted.value > 0
 group by step, bucket

-- name: scheduled_report
select (select count(*) from (select 1 from {schema}_scheduled order by due_at limit ?1)) as number,
       (select min(due_at) from {schema}_scheduled) as due_at,
       {now} as at

-- name: pauses
select sink, since, who, reason from {schema}_pauses order by sink

-- name: waiting_copies
-- Copies of dead messages that wait for each sink, and when the first of those messages died.
select sink, count(*), min(died_at) from {schema}_copies group by sink

-- name: replication_slots
-- SQLite has none.
select null, null, null, null, null, null where false

-- name: deferred_numbers
-- Of each sink and state: how many messages are deferred, counted up to ?1, and the age of the oldest.
with states (state) as (values ('retrying'), ('sending'), ('held'), ('dead'))
select sink, state, number,
       ({now} - (select created_at from {schema}_outbox o where o.position = first)) / 1e6 as age
  from (select l.sink, s.state,
               (select count(*) from (select 1 from {schema}_deferred d
                                       where d.sink = l.sink and d.state = s.state limit ?1)) as number,
               (select min(position) from {schema}_deferred d where d.sink = l.sink and d.state = s.state) as first
          from (select distinct sink from {schema}_lanes) l cross join states s)
 where number > 0

-- name: hold_numbers
select sink, count(*) from {schema}_holds group by sink

-- name: log_numbers
-- The last position, which the lanes know also when retention has emptied the log; and the age of the first row.
select max(coalesce((select max(position) from {schema}_outbox), 0),
           coalesce((select max(position) from {schema}_lanes), 0)) as position,
       coalesce(({now} - (select created_at from {schema}_outbox order by position limit 1)) / 1e6, 0.0) as oldest

-- name: table_bytes
-- The size of the file: to tell tables apart, SQLite would read all of it.
select 'database', page_count * page_size from pragma_page_count, pragma_page_size

-- name: held_keys
select sink, key, since, who, reason from {schema}_holds where ?1 is null or sink = ?1 order by sink, key

-- name: audit
-- The newest ?1 lines. ?2: who; ?3: command; ?4: a text; ?5 and ?6: since, and before; ?7: below a number; ?8: how many lines are
-- searched.
select number, at, who, null as role, command, arguments, reason, changed
  from (select * from {schema}_audit where ?7 is null or number < ?7 order by number desc limit ?8)
 where (?2 is null or who = ?2)
   and (?3 is null or command = ?3)
   and (?4 is null or instr(lower(who || ' ' || command || ' ' || arguments || ' ' || coalesce(reason, '')), lower(?4)) > 0)
   and (?5 is null or at >= ?5)
   and (?6 is null or at < ?6)
 order by number desc limit ?1

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

-- name: list_positions
-- Messages by position, at one sink.
select sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_attempt_at, published_at
  from {schema}_outbox_status
 where position in (select value from json_each(?1)) and sink = ?2

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
select sink, position, error from {schema}_deferred d
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

-- name: trouble
-- The newest ?3 messages of a sink in a state that have an error, and when each was first and last refused.
select position, error, coalesce(first_failed_at, deferred_at) as first, coalesce(last_failed_at, deferred_at) as last
  from {schema}_deferred
 where sink = ?1 and state = ?2 and error is not null
 order by position desc
 limit ?3

-- name: trouble_messages
-- Ids and types by position.
select position, id, type from {schema}_outbox where position in (select value from json_each(?1))

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
select id, type, created_at
  from (select position, id, type, headers, created_at from {schema}_outbox where position > ?1 order by position limit ?3)
 where instr(headers, ?2) > 0 and json_valid(headers) and headers ->> 'causation_id' = ?2
 order by position

-- part: inbox_names
inbox_names (consumer) as (
    select min(consumer) from {schema}_inbox
    union all
    select (select min(i.consumer) from {schema}_inbox i where i.consumer > n.consumer)
      from inbox_names n where n.consumer is not null)

-- name: handled
-- Which consumers have processed messages with these identities, or have made dead letters of them.
with recursive {inbox_names},
attempt_names (consumer) as (
    select min(consumer) from {schema}_inbox_attempts
    union all
    select (select min(a.consumer) from {schema}_inbox_attempts a where a.consumer > n.consumer)
      from attempt_names n where n.consumer is not null)
select i.consumer, i.id, i.type, i.processed_at, null as dead_at, null as error
  from inbox_names n
  join {schema}_inbox i on i.consumer = n.consumer and i.id in (select value from json_each(?1))
union all
select a.consumer, a.id, a.type, null, a.dead_at, a.error
  from attempt_names n
  join {schema}_inbox_attempts a on a.consumer = n.consumer and a.id in (select value from json_each(?1))
 where a.dead_at is not null
 order by 1

-- name: handled_recently
-- The same for an ending ?1 of an identity, among the newest ?2 messages of each consumer.
with recursive {inbox_names}
select i.consumer, i.id, i.type, i.processed_at, null as dead_at, null as error
  from inbox_names n
  join {schema}_inbox i on i.rowid in (select r.rowid from {schema}_inbox r
                                        where r.consumer = n.consumer order by r.processed_at desc limit ?2)
 where substr(i.id, -length(?1)) = ?1
union all
select a.consumer, a.id, a.type, null, a.dead_at, a.error
  from (select consumer, id, type, dead_at, error from {schema}_inbox_attempts
         where dead_at is not null order by dead_at desc limit ?2) a
 where substr(a.id, -length(?1)) = ?1
 order by 1

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

-- name: restore_dropped
-- Dropped messages are dead again. The route is that of a message that no consumer had subscribed to.
update {schema}_deferred
   set state = 'dead', route = null
 where (sink, position) in (select value ->> 0, value ->> 1 from json_each(?1))
   and state = 'dropped'
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
                                       and batch.position > l.position
                                       and exists (select 1 from {schema}_taken t
                                                    where t.sink = l.sink and t.position = batch.position))
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
                                where batch.slot between l.first_slot and l.last_slot and batch.position > l.position
                                  and exists (select 1 from {schema}_taken t
                                               where t.sink = l.sink and t.position = batch.position))
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
               (?4 is null or key = ?4) and (?5 is null or type = ?5) and (?7 is null or created_at >= ?7)
               and exists (select 1 from {schema}_taken t where t.sink = ?1 and t.position = outbox.position) as matches
          from {schema}_outbox outbox
         where position >= ?2 and position <= ?3
         order by position limit ?6) o
  join {schema}_lanes l on l.sink = ?1 and o.slot between l.first_slot and l.last_slot

-- name: find_rewind
-- The same rows as count_rewind, each with whether it would be re-published.
select l.lane, o.position, o.key,
       o.matches and o.position <= l.position
       and not exists (select 1 from {schema}_deferred d where d.position = o.position and d.sink = l.sink) as goes
  from (select position, slot, key,
               (?4 is null or key = ?4) and (?5 is null or type = ?5) and (?7 is null or created_at >= ?7)
               and exists (select 1 from {schema}_taken t where t.sink = ?1 and t.position = outbox.position) as matches
          from {schema}_outbox outbox
         where position >= ?2 and position <= ?3
         order by position limit ?6) o
  join {schema}_lanes l on l.sink = ?1 and o.slot between l.first_slot and l.last_slot
 order by o.position

-- name: sample_rewind
-- Of the rows of count_rewind those that would be re-published: id, type, key and source.
select o.id, o.type, o.key, iif(json_valid(o.headers), json_extract(o.headers, '$.source'), null) as source
  from (select position, slot, id, type, key, headers,
               (?4 is null or key = ?4) and (?5 is null or type = ?5) and (?7 is null or created_at >= ?7)
               and exists (select 1 from {schema}_taken t where t.sink = ?1 and t.position = outbox.position) as matches
          from {schema}_outbox outbox
         where position >= ?2 and position <= ?3
         order by position limit ?6) o
  join {schema}_lanes l on l.sink = ?1 and o.slot between l.first_slot and l.last_slot
 where o.matches and o.position <= l.position
   and not exists (select 1 from {schema}_deferred d where d.position = o.position and d.sink = l.sink)
 order by o.position

-- name: known_identities
-- How many messages with these identities each consumer has processed.
with recursive {inbox_names}
select n.consumer, count(*) as number
  from inbox_names n
  join {schema}_inbox i on i.consumer = n.consumer and i.id in (select value from json_each(?1))
 group by n.consumer
 order by n.consumer

-- name: kinds_of_messages
-- Of the newest ?2 rows of the log: each topic, type and source, whether sink ?1 has passed them, how many there are, and the
-- first of them.
select topic, type, iif(json_valid(headers), json_extract(headers, '$.source'), null) as source,
       o.position <= l.position as passed, count(*) as number, min(o.position) as first
  from (select position, slot, topic, type, headers from {schema}_outbox order by position desc limit ?2) o
  join {schema}_lanes l on l.sink = ?1 and o.slot between l.first_slot and l.last_slot
 group by 1, 2, 3, 4

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

-- name: why_message
-- The explainer's look-ups begin here. They run in one snapshot. A message of the log, and the current time.
select position, type, topic, key, created_at, null as deliver_at, {now} as at from {schema}_outbox where id = ?1

-- name: why_scheduled
-- The same of a scheduled message.
select null as position, type, topic, key, created_at, due_at as deliver_at, {now} as at
  from {schema}_scheduled where id = ?1

-- name: why_unknown
-- When the oldest message of the log was added, and the current time. SQLite does not tell which transactions are open.
select (select created_at from {schema}_outbox order by position limit 1) as oldest, 0 as open, {now} as at

-- name: why_lanes
-- The lane of the message at position ?1 at each sink, or at sink ?2: how far it has come, its owner, and what is known of
-- relays and a pause of the sink.
select l.sink, l.lane, l.position, iif(o.position <= l.position, 'passed', 'ahead') as reading,
       l.owner, e.lease_until, r.host, r.pid, r.heartbeat_at,
       max(coalesce(s.served_at, 0),
           coalesce((select max(heartbeat_at) from {schema}_relays r where r.sink = l.sink), 0)) as served_at,
       (select count(*) from {schema}_relays r where r.sink = l.sink and r.alive_until > {now}) as relays,
       p.since, p.who, p.reason,
       (select nullif(g.at, 0) from {schema}_progress g where g.sink = l.sink and g.lane = l.lane
         order by g.position desc, g.at desc limit 1) as progressed_at,
       s.filter, exists (select 1 from {schema}_taken t where t.sink = l.sink and t.position = o.position) as taken
  from {schema}_outbox o
  join {schema}_lanes l on o.slot between l.first_slot and l.last_slot
  left join {schema}_leases e on e.sink = l.sink and e.lane = l.lane
  left join {schema}_relays r on r.owner = l.owner
  left join {schema}_sinks s on s.sink = l.sink
  left join {schema}_pauses p on p.sink = l.sink
 where o.position = ?1 and (?2 is null or l.sink = ?2)
 order by l.sink

-- name: why_deferred
-- The deferred rows of the message at position ?1.
select d.sink, o.id, d.position, d.state, d.attempts, d.due_at, d.key, d.route,
       (select w.deferred_at from {schema}_deferred w
         where w.sink = d.sink and w.lane = d.lane and w.route = d.route and w.route is not null
         order by w.position limit 1) as route_since,
       d.error, d.deferred_at, d.last_failed_at,
       exists (select 1 from {schema}_rewound w where w.position = d.position and w.sink = d.sink) as rewound
  from {schema}_deferred d join {schema}_outbox o on o.position = d.position
 where d.position = ?1

-- name: why_head
-- Of an ordering key ?3 of a lane: the first message below position ?4 that blocks it.
select position from {schema}_deferred
 where sink = ?1 and lane = ?2 and key = ?3 and key is not null and blocks and position < ?4
 order by position limit 1

-- name: why_hold
-- The hold on a key ?2, or on an ordering key ?3.
select sink, key, since, who, reason from {schema}_holds where sink = ?1 and key in (?2, ?3) order by key limit 1

-- name: why_published
-- When the message at position ?3 was published: if it had been deferred; or the first time at which its lane had passed
-- it; and the last at which it had not come that far.
select (select v.delivered_at from {schema}_delivered v where v.position = ?3 and v.sink = ?1) as delivered_at,
       (select nullif(p.at, 0) from {schema}_progress p
         where p.sink = ?1 and p.lane = ?2 and p.position >= ?3
         order by p.position, p.at limit 1) as before,
       (select nullif(p.at, 0) from {schema}_progress p
         where p.sink = ?1 and p.lane = ?2 and p.position < ?3
         order by p.position desc, p.at desc limit 1) as after

-- name: why_key_lanes
-- The lane of a slot ?1 at each sink, or at sink ?2, and the current time.
select sink, lane, position, {now} as at from {schema}_lanes
 where ?1 between first_slot and last_slot and (?2 is null or sink = ?2)
 order by sink

-- name: why_key_head
-- The first deferred message that blocks key ?3 of a lane. An ordering key may have the source behind the key: the first ?4
-- deferred messages of the lane are searched for those.
select id, ordering_key, (select count(*) from (
           select 1 from {schema}_deferred d
            where d.sink = ?1 and d.lane = ?2 and d.key = ordering_key and d.key is not null and d.blocks limit ?4)) as waiting
  from (select * from (
            select * from (
                select position, key as ordering_key from {schema}_deferred
                 where sink = ?1 and lane = ?2 and key = ?3 and key is not null and blocks
                 order by position limit 1)
            union all
            select * from (
                select position, key from (
                    select position, key from {schema}_deferred
                     where sink = ?1 and lane = ?2 and blocks and key is not null
                     order by sink, lane, key limit ?4)
                 where substr(key, 1, instr(key || char(31), char(31)) - 1) = ?3 and key <> ?3
                 order by position limit 1))
         order by position limit 1) head
  join {schema}_outbox o using (position)

-- name: key_waiting
-- The first ?4 deferred messages that an ordering key ?3 of a lane waits for.
select position from {schema}_deferred
 where sink = ?1 and lane = ?2 and key = ?3 and key is not null and blocks
 order by position limit ?4

-- name: why_key_unread
-- The first message of key ?2 among the ?3 rows after position ?1 that sink ?4 takes.
select id from (select position, id, key from {schema}_outbox where position > ?1 order by position limit ?3) next
 where key = ?2 and exists (select 1 from {schema}_taken t where t.sink = ?4 and t.position = next.position)
 order by position limit 1

-- name: why_key_newest
-- The newest message of key ?1 among the newest ?2 rows.
select id from (select position, id, key from {schema}_outbox order by position desc limit ?2)
 where key = ?1
 order by position desc limit 1

-- name: payload_horizon
-- SQLite has one writer: when this transaction has the write lock, every one that has written anything has ended.
select '0'

-- name: payloads_decided
select 1 where ?1 is not null

-- name: payloads_in_use
-- Where the payloads of these messages are.
select json_extract(headers, '$.dataref') from {schema}_outbox where id in (select value from json_each(?1))
union all
select json_extract(headers, '$.dataref') from {schema}_scheduled where id in (select value from json_each(?1))
