-- The named queries of `Admin`, PostgreSQL. ../sqlite/admin.sql has the same names.
-- Times are microseconds since 1970, in parameters and results. A filter's parameter that is null matches everything.
-- A part is used by several queries, as {its name}.

-- name: sinks
select distinct sink from {schema}.lanes order by sink

-- name: sink_reports
-- Each sink's destination and filter, when a relay last served it, how many relays serve it now, and the current time.
select s.sink, s.destination, s.filter,
       greatest(s.served_at,
                (select max(heartbeat_at) from {schema}.relays r where r.sink = s.sink),
                (select max(least(lease_until, now())) from {schema}.lanes l
                  where l.sink = s.sink and lease_until is not null)) as served_at,
       (select count(*) from {schema}.relays r where r.sink = s.sink and r.alive_until > now()) as relays,
       now() as at
  from {schema}.sinks s
 order by s.sink

-- name: lock_sink
-- Until the transaction ends, no relay takes a lane of the sink or is started for it.
select destination, filter from {schema}.sinks where sink = $1 for update

-- name: count_serving
-- How many relays serve a sink, and how many lanes have a lease that has not expired.
select (select count(*) from {schema}.relays where sink = $1 and alive_until > clock_timestamp()) as relays,
       (select count(*) from {schema}.lanes
         where sink = $1 and owner is not null and lease_until > clock_timestamp()) as lanes

-- name: release_lanes
-- Take the lanes from their owners: a relay that was suspended must not deliver to the old destination when it resumes.
update {schema}.lanes set owner = null, lease_until = null where sink = $1

-- name: retarget
update {schema}.sinks set destination = $2 where sink = $1

-- name: refilter
-- Give a sink another filter. $2: the filter; $3 to $8: what it is compared by.
update {schema}.sinks
   set filter = $2, topics = $3, topics_regex = $4, excluded = $5, excluded_regex = $6, types = $7, sources = $8
 where sink = $1

-- part: remove
-- Delete a sink from one of the tables that know sinks: a query for each of them is made of this.
delete from {schema}.{table} where sink = $1

-- name: lane_reports
-- Pending messages per lane, among the first $1 rows after its position, and the first $1 that its snapshot does not see.
-- Rows of all slots are read, so that the number of rows is bounded; `seen` counts them, `mine` those of the lane's slots that
-- its sink takes.
select l.sink, l.lane, l.position, l.owner,
       exists (select from {schema}.pauses p where p.sink = l.sink)
       or exists (select from {schema}.replication_slots k where k.sink = l.sink and k.lost is not null) as paused,
       next.seen, next.mine, next.through, coalesce((select max(position) from {schema}.outbox), 0) as log_end,
       late.seen as late_seen, late.mine as late_mine,
       extract(epoch from now() - least(next.oldest, late.oldest))::float8 as lag_seconds
  from {schema}.lanes l left join {schema}.sinks s using (sink),
       lateral (select count(*) as seen,
                       count(*) filter (where waits) as mine,
                       max(position) as through,
                       min(created_at) filter (where waits) as oldest
                  from (select position, created_at,
                               slot between l.first_slot and l.last_slot
                               and {schema}.takes(s, topic, type, headers) as waits
                          from {schema}.outbox
                         where position > l.position
                         order by position limit $1) ahead) next,
       lateral (select count(*) as seen,
                       count(*) filter (where waits) as mine,
                       min(created_at) filter (where waits) as oldest
                  from (select created_at,
                               position <= l.position and slot between l.first_slot and l.last_slot
                               and not coalesce(position <= l.late_position
                                                and pg_visible_in_snapshot(xid, l.late_snapshot), false)
                               and {schema}.takes(s, topic, type, headers) as waits
                          from ((select position, slot, xid, created_at, topic, type, headers from {schema}.outbox
                                  where xid >= pg_snapshot_xmax(l.snapshot) and xid < coalesce(l.horizon, '{last_xid}')
                                  order by xid limit $1)
                                union all
                                (select position, slot, xid, created_at, topic, type, headers from {schema}.outbox
                                  where xid = any(array(select pg_snapshot_xip(l.snapshot)))
                                  limit $1)) unseen) behind) late
 order by sink, l.lane

-- name: lane_leases
-- Each lane's epoch; for how many seconds its owner keeps it without another heartbeat; and for how many it naps.
select l.sink, l.lane, l.epoch,
       case when l.owner is not null then extract(epoch from l.lease_until - clock_timestamp())::float8 end as seconds,
       (select extract(epoch from max(n.until) - clock_timestamp())::float8 from {schema}.naps n
         where n.until > clock_timestamp() and n.sink = l.sink and n.lane = l.lane) as nap
  from {schema}.lanes l

-- name: deferred_reports
-- How many deferred messages each lane has, by state, the age of the oldest, and when the first of them was refused.
-- "position > 0" lets the planner use the primary key. Without it, with sequential scans disabled, every plan costs so much
-- that the planner does not see that hashing is cheaper than sorting. `routed`: how many of them wait for a route.
select sink, lane, state, number,
       extract(epoch from now() - (select created_at from {schema}.outbox o where o.position = first))::float8 as age, routed, since
  from (select sink, lane, state, count(*) as number, min(position) as first, count(route) as routed,
               min(coalesce(first_failed_at, deferred_at)) as since
          from {schema}.deferred
         where position > 0
         group by sink, lane, state) counts

-- name: consumers
-- The running consumers, and those that died within a week.
select instance, consumer, source, host, pid, version, started_at,
       extract(epoch from now() - heartbeat_at)::float8 as heartbeat_seconds, alive_until > now() as alive,
       handled, duplicates, failed, dead
  from {schema}.consumers
 where alive_until > now() - interval '7 days'
 order by consumer, started_at, instance

-- name: dead_letters
-- The dead letters of the last day: their consumer, how many, and when the first one died. At most $1 are looked at.
select consumer, count(*) as number, min(dead_at) as since
  from (select consumer, dead_at from {schema}.inbox_attempts
         where dead_at > now() - interval '1 day'
         order by dead_at desc limit $1) recent
 group by consumer
 order by consumer

-- name: list_dead_letters
-- Dead letters of consumers, newest first. $1: consumer; $2: ids; $3: type; $4: a part of the error; $5 and $6: dead since, and
-- before, in microseconds; each of them null for any; $7: rows.
select consumer, id, type, attempts, crashes, error, dead_at
  from {schema}.inbox_attempts
 where dead_at is not null
   and ($1::text is null or consumer = $1)
   and ($2::text[] is null or id = any($2))
   and ($3::text is null or type = $3)
   and ($4::text is null or strpos(lower(error), lower($4)) > 0)
   and ($5::bigint is null or dead_at >= timestamptz 'epoch' + $5 * interval '1 microsecond')
   and ($6::bigint is null or dead_at < timestamptz 'epoch' + $6 * interval '1 microsecond')
 order by dead_at desc, consumer, id
 limit $7

-- name: forget_dead_letters
-- Delete the records of letters that were retried or dropped. $1: consumers; $2: ids; $3: when they died: a message that has
-- died again since then keeps its record.
delete from {schema}.inbox_attempts a
 using unnest($1::text[], $2::text[], $3::bigint[]) as these (consumer, id, dead_at)
 where a.consumer = these.consumer and a.id = these.id
   and a.dead_at = timestamptz 'epoch' + these.dead_at * interval '1 microsecond'
returning a.id

-- name: blocked_routes
-- Of each sink: how many messages wait for a blocked route, one of these routes, and since when.
select sink, count(*) as number, min(route) as route, min(deferred_at) as since
  from {schema}.deferred
 where route is not null and blocks
 group by sink
 order by sink

-- name: throughput
-- Published and refused messages per minute of the clock, by how many minutes ago. $1: minutes. Grouped by the minute, and not
-- by `ago`, which would then be computed for every row.
select sink, lane, (extract(epoch from date_trunc('minute', now()) - date_trunc('minute', at)) / 60)::integer as ago,
       sum(published)::bigint as published, sum(refused)::bigint as refused
  from {schema}.progress
 where at >= date_trunc('minute', now()) - make_interval(mins => $1::integer - 1)
 group by sink, lane, date_trunc('minute', at)

-- name: latencies
-- Of the progress of sink $1 from $2 until $3, at most its newest $5 rows: which step of $4 microseconds, which bucket, counted
-- from 1, and how many messages.
select step, bucket, sum(number)::bigint as messages
  from (select floor(((extract(epoch from at) * 1000000)::bigint - $2::bigint) / $4::bigint)::bigint as step, latencies
          from {schema}.progress
         where at >= timestamptz 'epoch' + $2 * interval '1 microsecond'
           and at < timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
           and sink = $1 and latencies is not null
         order by at desc
         limit $5) few,
       unnest(latencies) with ordinality as counted (number, bucket)
 where number > 0
 group by step, bucket

-- name: scheduled_report
-- Scheduled messages, counted up to $1; when the first is due; and the current time.
select (select count(*) from (select from {schema}.scheduled order by due_at limit $1) first) as number,
       (select min(due_at) from {schema}.scheduled) as due_at,
       now() as at

-- name: pauses
select sink, since, who, reason from {schema}.pauses order by sink

-- name: waiting_copies
-- Copies of dead messages that wait for each sink, and when the first of those messages died.
select sink, count(*), min(died_at) from {schema}.copies group by sink

-- name: replication_slots
-- The replication slots that sinks follow: why one is lost, the slot as it is now, and how many bytes of the write-ahead log
-- its reader has not confirmed.
select k.sink, k.slot, k.lost, s.active, s.wal_status,
       ((pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint - s.confirmed) as behind
  from {schema}.replication_slots k
  left join lateral {schema}.replication_slot(k.slot) s on true
 order by k.sink

-- name: adopt_slot
-- From now on the sink follows the slot of this name as it is.
update {schema}.replication_slots k
   set lost = null, transactions = s.transactions, timeline = s.timeline, statistics = s.statistics
  from {schema}.replication_slot($2) s
 where k.sink = $1 and k.slot = $2
returning 1

-- name: deferred_numbers
-- Of each sink and state: how many messages are deferred, counted up to $1, and the age of the oldest.
select l.sink, s.state, counted.number,
       extract(epoch from now() - (select created_at from {schema}.outbox o where o.position = counted.first))::float8 as age
  from (select distinct sink from {schema}.lanes) l
 cross join (values ('retrying'), ('sending'), ('held'), ('dead')) s (state)
 cross join lateral (select count(*) as number, min(position) as first
                       from (select position from {schema}.deferred d
                              where d.sink = l.sink and d.state = s.state
                              order by position limit $1) oldest) counted
 where counted.number > 0

-- name: hold_numbers
select sink, count(*) from {schema}.holds group by sink

-- name: log_numbers
-- The last position, which the lanes know also when retention has emptied the log; and the age of the first row.
select greatest(coalesce((select max(position) from {schema}.outbox), 0),
                coalesce((select max(position) from {schema}.lanes), 0)) as position,
       coalesce(extract(epoch from now() - (select created_at from {schema}.outbox order by position limit 1)),
                0)::float8 as oldest

-- name: table_bytes
-- Each table's size, with its indexes and what is stored out of line.
select relname::text as name, pg_total_relation_size(oid) as bytes
  from pg_class
 where relnamespace = '{schema}'::regnamespace and relkind = 'r'
 order by relname

-- name: held_keys
select sink, key, since, who, reason from {schema}.holds where $1::text is null or sink = $1 order by sink, key

-- name: audit
-- The newest $1 lines. $2: who; $3: command; $4: a text; $5 and $6: since, and before; $7: below a number; $8: how many lines are
-- searched. A command's later batches are added to its first line.
select number, at, who, role, command, arguments::text, reason,
       changed + coalesce((select sum(changed) from {schema}.audit more
                           where more.continues = a.number and more.role is not distinct from a.role), 0)::bigint
  from (select * from {schema}.audit where $7::bigint is null or number < $7 order by number desc limit $8) a
 where (continues is null
        or role is distinct from (select first.role from {schema}.audit first where first.number = a.continues))
   and ($2::text is null or who = $2)
   and ($3::text is null or command = $3)
   and ($4::text is null
        or strpos(lower(concat_ws(' ', who, command, arguments::text, reason)), lower($4)) > 0)
   and ($5::bigint is null or at >= timestamptz 'epoch' + $5 * interval '1 microsecond')
   and ($6::bigint is null or at < timestamptz 'epoch' + $6 * interval '1 microsecond')
 order by number desc limit $1

-- name: log_ends
-- The first and the last position of the log, and the lowest and highest position of a sink's lanes.
select (select min(position) from {schema}.outbox) as first,
       (select max(position) from {schema}.outbox) as last,
       coalesce(min(position), 0) as behind, coalesce(max(position), 0) as before
  from {schema}.lanes where $1::text is null or sink = $1

-- name: look_back
-- Count the rows at or below position $1, at most $2, and return the lowest position among them.
select count(*) as rows, min(position) as position
  from (select position from {schema}.outbox where position <= $1 order by position desc limit $2) looked_at

-- name: created_at
-- The newest time at which one of the 100 rows from a position on was added: rows of a long transaction are older than
-- their neighbours.
select max(created_at) from (select created_at from {schema}.outbox where position >= $1 order by position limit 100) few

-- part: log_filter
-- $1: from; $2: to; $3: sink; $4: states; $5: key; $6: type; $7: topic; $8: error; $9: since; $10: before.
position between $1 and $2
and ($3::text is null or sink = $3)
and ($4::text[] is null or state = any($4))
and ($5::text is null or key = $5)
and ($6::text is null or type = $6)
and ($7::text is null or topic = $7)
and ($8::text is null or strpos(lower(error), lower($8)) > 0)
and ($9::bigint is null or created_at >= timestamptz 'epoch' + $9 * interval '1 microsecond')
and ($10::bigint is null or created_at < timestamptz 'epoch' + $10 * interval '1 microsecond')

-- name: list_log
-- Messages between two positions, newest first. $11: rows.
select sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_attempt_at, published_at
  from {schema}.outbox_status
 where {log_filter}
 order by position desc, sink
 limit $11

-- name: count_log
-- The same, counted.
select count(*) from {schema}.outbox_status where {log_filter}

-- name: list_added
-- As list_log, for a log without a sink: every message is waiting. Parameters as there.
select * from (
    select '' as sink, 0 as lane, position, id, type, topic, key, 'waiting' as state, 0 as attempts, null::text as error,
           null::text as route, created_at, null::timestamptz as next_attempt_at, null::timestamptz as published_at
      from {schema}.outbox) added
 where {log_filter}
 order by position desc
 limit $11

-- name: find_ids
-- Ids between $1 and $2, which begin with the same digits; and, among the newest $4 messages of the log, the scheduled and
-- the deferred ones, ids that end with the digits $3. At most $5.
select id from {schema}.outbox where id between $1 and $2
union
select id from {schema}.scheduled where id between $1 and $2
union
select id from (select id from {schema}.outbox order by position desc limit $4) newest
 where replace(id::text, '-', '') like '%' || $3::text
union
select id from (select id from {schema}.scheduled order by due_at, number limit $4) waiting
 where replace(id::text, '-', '') like '%' || $3::text
union
select id from (select position from {schema}.deferred order by position desc limit $4) newest
  join {schema}.outbox using (position)
 where replace(id::text, '-', '') like '%' || $3::text
 limit $5

-- name: list_ids
-- Messages by id, at one sink or at all.
select sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_attempt_at, published_at
  from {schema}.outbox_status
 where id = any($1::uuid[]) and ($2::text is null or sink = $2)
 order by position desc, sink

-- name: list_positions
-- Messages by position, at one sink.
select sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_attempt_at, published_at
  from {schema}.outbox_status
 where position = any($1::bigint[]) and sink = $2

-- part: deferred_filter
-- $1: sink; $2: states; $3: key; $4: error.
($1::text is null or sink = $1)
and state = any($2::text[])
and ($3::text is null or $3 in (key, split_part(key, chr(31), 1)))
and ($4::text is null or strpos(lower(error), lower($4)) > 0)

-- part: message_filter
-- The columns of the log are read only if $5, one message at a time: with a join, the planner would read the whole log.
-- $6: type; $7: topic; $8: since; $9: before.
(not $5::boolean
 or (select ($6::text is null or o.type = $6)
        and ($7::text is null or o.topic = $7)
        and ($8::bigint is null or o.created_at >= timestamptz 'epoch' + $8 * interval '1 microsecond')
        and ($9::bigint is null or o.created_at < timestamptz 'epoch' + $9 * interval '1 microsecond')
       from {schema}.outbox o where o.position = d.position))

-- name: find_deferred
-- Deferred messages after position $10 and sink $11, in order. $12: rows.
select sink, position, error from {schema}.deferred d
 where (position, sink) > ($10::bigint, $11::text)
   and {deferred_filter}
   and {message_filter}
 order by position, sink
 limit $12

-- name: list_deferred
-- Deferred messages, newest first. $10: below; $11: rows to read; $12: rows.
select d.sink, d.lane, d.position, o.id, o.type, o.topic, o.key, d.state, d.attempts, d.error, d.route, o.created_at,
       d.due_at as next_attempt_at, null::timestamptz as published_at
  from (select * from (
            select * from {schema}.deferred
             where position < $10::bigint
               and {deferred_filter}
             order by position desc, sink
             limit $11) d
         where {message_filter}
         order by position desc, sink
         limit $12) d
  join {schema}.outbox o on o.position = d.position
 order by d.position desc, d.sink

-- name: count_deferred
-- Of the newest $10 deferred messages that match by the columns of `deferred`: how many there are, and how many also match by
-- the columns of the log.
select count(*) as seen,
       count(*) filter (where {message_filter}) as matching
  from (select position from {schema}.deferred
         where {deferred_filter}
         order by position desc
         limit $10) d

-- name: look_back_deferred
-- Count the deferred messages below position $5 that match by the columns of `deferred`, at most $6, and return the lowest
-- position among them.
select count(*) as seen, min(position) as through
  from (select position from {schema}.deferred
         where position < $5
           and {deferred_filter}
         order by position desc
         limit $6) looked_at

-- name: trouble
-- The newest $3 messages of a sink in a state that have an error, and when each was first and last refused.
select position, error, coalesce(first_failed_at, deferred_at) as first, coalesce(last_failed_at, deferred_at) as last
  from {schema}.deferred
 where sink = $1 and state = $2 and error is not null
 order by position desc
 limit $3

-- name: trouble_messages
-- Ids and types by position.
select position, id, type from {schema}.outbox where position = any($1::bigint[])

-- name: message
-- A message from the log, without its payload, which not every role may read.
select position, type, topic, key, content_type, headers::text, created_at, null::timestamptz as deliver_at
  from {schema}.outbox where id = $1

-- name: scheduled_message
-- The same, of a scheduled message.
select null::bigint as position, type, topic, key, content_type, headers::text, created_at, due_at as deliver_at
  from {schema}.scheduled where id = $1

-- name: may_read_payloads
select has_column_privilege('{schema}.outbox'::regclass, 'payload', 'select')

-- name: payload
-- The first $2 bytes of a message's payload, and its size.
select substring(payload from 1 for $2::integer) as payload, octet_length(payload) as size
  from (select id, payload from {schema}.outbox union all select id, payload from {schema}.scheduled) messages
 where id = $1

-- name: failures
select sink, attempt, failed_at, error from {schema}.attempts where position = $1 order by failed_at, attempt

-- name: caused
-- Messages whose causation id is $2, among the $3 rows after position $1.
select id, type, created_at
  from (select position, id, type, headers, created_at from {schema}.outbox
         where position > $1 order by position limit $3) next
 where strpos(headers::text, $2) > 0 and headers ->> 'causation_id' = $2
 order by position

-- part: inbox_names
-- The consumers with messages in the inbox, each found by its index.
inbox_names (consumer) as (
    (select consumer from {schema}.inbox order by consumer limit 1)
    union all
    select (select i.consumer from {schema}.inbox i where i.consumer > n.consumer order by i.consumer limit 1)
      from inbox_names n where n.consumer is not null)

-- name: handled
-- Which consumers have processed messages with these identities, or have made dead letters of them.
with recursive {inbox_names},
attempt_names (consumer) as (
    (select consumer from {schema}.inbox_attempts order by consumer limit 1)
    union all
    select (select a.consumer from {schema}.inbox_attempts a where a.consumer > n.consumer order by a.consumer limit 1)
      from attempt_names n where n.consumer is not null)
select i.consumer, i.id, i.type, i.processed_at, null::timestamptz as dead_at, null::text as error
  from inbox_names n cross join lateral (
       select * from {schema}.inbox i where i.consumer = n.consumer and i.id = any($1::text[])) i
union all
select a.consumer, a.id, a.type, null, a.dead_at, a.error
  from attempt_names n cross join lateral (
       select consumer, id, type, dead_at, error from {schema}.inbox_attempts a
        where a.consumer = n.consumer and a.id = any($1::text[])) a
 where a.dead_at is not null
 order by 1

-- name: handled_recently
-- The same for an ending $1 of an identity, among the newest $2 messages of each consumer.
with recursive {inbox_names}
select i.consumer, i.id, i.type, i.processed_at, null::timestamptz as dead_at, null::text as error
  from inbox_names n cross join lateral (
       select consumer, id, type, processed_at from {schema}.inbox i
        where i.consumer = n.consumer order by i.processed_at desc limit $2) i
 where right(i.id, length($1)) = $1
union all
select a.consumer, a.id, a.type, null, a.dead_at, a.error
  from (select consumer, id, type, dead_at, error from {schema}.inbox_attempts
         where dead_at is not null order by dead_at desc limit $2) a
 where right(a.id, length($1)) = $1
 order by 1

-- name: lock_for_change
-- Lock the lanes of a sink, or of all sinks, so that no relay writes them until the transaction ends.
select sink, lane, first_slot, last_slot from {schema}.lanes
 where $1::text is null or sink = $1
 order by sink, lane
   for update

-- name: raise_version
-- Make the owner of a lane reload it, and wake it up.
with raised as (
    update {schema}.lanes set version = version + 1
     where (sink, lane) in (select * from unnest($1::text[], $2::smallint[]))
    returning 1)
select pg_notify('{schema}', '') where exists (select from raised)

-- name: add_audit
-- $6: the number of the first line of the same command, for a later batch.
insert into {schema}.audit (who, command, arguments, reason, changed, continues)
values ($1, $2, $3::text::json, $4, $5, $6)
returning number

-- name: retry
-- Retry dead messages, after earlier messages that block their keys. $1: sinks; $2: positions. One that its lane has not
-- reached yet stays dead: it would overtake earlier messages.
update {schema}.deferred d
   set state = case when blocked then 'held' else 'retrying' end,
       due_at = case when not blocked then now() end,
       attempts = 0, blocks = true, route = null, epoch = null
  from (select dead.sink, dead.position,
               dead.key is not null
               and (exists (select from {schema}.holds h where h.sink = dead.sink and h.key in (dead.key, split_part(dead.key, chr(31), 1)))
                    or exists (select from {schema}.deferred head
                                where head.sink = dead.sink and head.lane = dead.lane and head.key = dead.key
                                  and head.blocks and head.position < dead.position)) as blocked
          from unnest($1::text[], $2::bigint[]) as these (sink, position)
          join {schema}.deferred dead on dead.sink = these.sink and dead.position = these.position
         where dead.state = 'dead'
           and not exists (select from {schema}.lanes l
                            where l.sink = dead.sink and l.lane = dead.lane and l.position < dead.position)) found
 where d.sink = found.sink and d.position = found.position
returning d.sink, d.lane, d.position

-- name: drop
update {schema}.deferred d
   set state = 'dropped', blocks = false
  from unnest($1::text[], $2::bigint[]) as these (sink, position)
 where d.sink = these.sink and d.position = these.position and d.state = 'dead'
returning d.sink, d.lane, d.position

-- name: restore_dropped
-- Dropped messages are dead again. The route is that of a message that no consumer had subscribed to.
update {schema}.deferred d
   set state = 'dead', route = null
  from unnest($1::text[], $2::bigint[]) as these (sink, position)
 where d.sink = these.sink and d.position = these.position and d.state = 'dropped'
returning d.sink, d.lane, d.position

-- name: skip
update {schema}.deferred d
   set state = 'skipped', blocks = false, due_at = null, route = null
  from unnest($1::text[], $2::bigint[]) as these (sink, position)
 where d.sink = these.sink and d.position = these.position and d.state in ('retrying', 'held', 'dead')
returning d.sink, d.lane, d.position

-- name: poison
-- $3: the error; $4: hold later messages of the keys.
update {schema}.deferred d
   set state = 'dead', blocks = $4, due_at = null, route = null, error = $3,
       first_failed_at = coalesce(first_failed_at, now()), last_failed_at = now()
  from unnest($1::text[], $2::bigint[]) as these (sink, position)
 where d.sink = these.sink and d.position = these.position and d.state in ('retrying', 'held')
returning d.sink, d.lane, d.position

-- name: decide_ahead
-- Give messages that their lanes have not passed the state $3: skipped or dead. $4: the error; $5: hold later messages of the keys.
-- Unsure: the lane may have published them without having saved its cursor.
insert into {schema}.deferred (sink, lane, position, key, state, blocks, error, unsure, first_failed_at, last_failed_at)
select l.sink, l.lane, o.position, o.key, $3, $5, $4::text, true,
       case when $3 = 'dead' then now() end, case when $3 = 'dead' then now() end
  from unnest($1::text[], $2::bigint[]) as these (sink, position)
  join {schema}.outbox o on o.position = these.position
  join {schema}.lanes l on l.sink = these.sink and o.slot between l.first_slot and l.last_slot
 where not {schema}.passed(o.position, o.xid, l)
   and not coalesce(o.position <= l.late_position and pg_visible_in_snapshot(o.xid, l.late_snapshot), false)
on conflict (position, sink) do nothing
returning sink, lane, position

-- name: add_ahead
-- The lanes will not publish these.
insert into {schema}.ahead (sink, lane, position)
select * from unnest($1::text[], $2::smallint[], $3::bigint[])
on conflict do nothing

-- name: add_poison_attempt
-- Record the poisoning in the messages' history. $3: the error.
insert into {schema}.attempts (sink, position, attempt, failed_at, error)
select d.sink, d.position, d.attempts, now(), $3
  from unnest($1::text[], $2::bigint[]) as these (sink, position)
  join {schema}.deferred d on d.sink = these.sink and d.position = these.position

-- name: hold
insert into {schema}.holds (sink, key, slot, who, reason) values ($1, $2, $3, $4, $5)
on conflict (sink, key) do nothing
returning 1

-- name: hold_deferred
-- Hold the deferred messages of a key.
update {schema}.deferred set state = 'held', due_at = null
 where sink = $1 and lane = $2 and $3 in (key, split_part(key, chr(31), 1)) and blocks and state in ('retrying', 'held')

-- name: release
delete from {schema}.holds where sink = $1 and key = $2
returning 1

-- name: pause
insert into {schema}.pauses (sink, who, reason) values ($1, $2, $3) on conflict (sink) do nothing
returning 1

-- name: resume
delete from {schema}.pauses where sink = $1
returning 1

-- name: count_old
-- Of the first $2 rows from position $1 on: how many retention would delete now, how many there are, and where the
-- last one is. $3: microseconds.
select count(*) filter (
           where batch.old
             and exists (select from {schema}.lanes)
             and not exists (select from {schema}.lanes l left join {schema}.sinks s using (sink)
                              where batch.slot between l.first_slot and l.last_slot
                                and not {schema}.passed(batch.position, batch.xid, l)
                                and {schema}.takes(s, batch.topic, batch.type, batch.headers))
             and not exists (select from {schema}.deferred d
                              where d.position = batch.position
                                and (d.state in ('retrying', 'sending', 'held', 'dead') or not d.noticed))) as matching,
       count(*) as seen, max(position) as through
  from (select position, xid, slot, topic, type, headers,
               created_at < now() - $3::bigint * interval '1 microsecond' as old
          from {schema}.outbox where position >= $1 order by position limit $2) batch

-- name: count_of_key
-- Of the first $2 rows after position $1, how many messages of key $3 every sink has had, and how many not; how many rows there
-- are, and where the last one is.
with batch as materialized (
    select position, xid, slot, key, topic, type, headers from {schema}.outbox
     where position > $1 order by position limit $2)
select count(*) filter (where delivered) as delivered, count(*) filter (where not delivered) as undelivered,
       (select count(*) from batch) as seen, (select max(position) from batch) as through
  from (select exists (select from {schema}.lanes)
               and not exists (select from {schema}.lanes l left join {schema}.sinks s using (sink)
                                where batch.slot between l.first_slot and l.last_slot
                                  and not {schema}.passed(batch.position, batch.xid, l)
                                  and {schema}.takes(s, batch.topic, batch.type, batch.headers))
               and not exists (select from {schema}.deferred d
                                where d.position = batch.position
                                  and d.state in ('retrying', 'sending', 'held', 'dead')) as delivered
          from batch
         where key = $3) of_key

-- name: count_scheduled_of_key
select count(*) from {schema}.scheduled where key = $1

-- name: forget_in_audit
-- Remove a key from the audit, and the reasons of those lines, which may name it too.
-- $1: key; $2: the audit line of this command, written in the same transaction.
select {schema}.forget_in_audit($1, $2)

-- name: count_rewind
-- Of the first $6 rows from position $2 to $3, how many a rewind of sink $1 would re-publish, how many there are, and
-- where the last one is. $4: key; $5: type; $7: since.
select count(*) filter (
           where o.matches and {schema}.passed(o.position, o.xid, l)
             and not exists (select from {schema}.deferred d where d.position = o.position and d.sink = l.sink)) as matching,
       count(*) as seen, max(o.position) as through
  from (select position, xid, slot,
               ($4::text is null or key = $4) and ($5::text is null or type = $5)
               and ($7::bigint is null or created_at >= timestamptz 'epoch' + $7 * interval '1 microsecond')
               and {schema}.takes((select s from {schema}.sinks s where s.sink = $1), topic, type, headers) as matches
          from {schema}.outbox
         where position >= $2 and position <= $3
         order by position limit $6) o
  join {schema}.lanes l on l.sink = $1 and o.slot between l.first_slot and l.last_slot

-- name: find_rewind
-- The same rows as count_rewind, each with whether it would be re-published.
select l.lane, o.position, o.key,
       o.matches and {schema}.passed(o.position, o.xid, l)
       and not exists (select from {schema}.deferred d where d.position = o.position and d.sink = l.sink) as goes
  from (select position, xid, slot, key,
               ($4::text is null or key = $4) and ($5::text is null or type = $5)
               and ($7::bigint is null or created_at >= timestamptz 'epoch' + $7 * interval '1 microsecond')
               and {schema}.takes((select s from {schema}.sinks s where s.sink = $1), topic, type, headers) as matches
          from {schema}.outbox
         where position >= $2 and position <= $3
         order by position limit $6) o
  join {schema}.lanes l on l.sink = $1 and o.slot between l.first_slot and l.last_slot
 order by o.position

-- name: sample_rewind
-- Of the rows of count_rewind those that would be re-published: id, type, key and source.
select o.id, o.type, o.key,
       case when json_typeof(o.headers -> 'source') = 'string' and strpos(o.headers::text, '\u0000') = 0
            then o.headers ->> 'source' end as source
  from (select position, xid, slot, id, type, key, headers,
               ($4::text is null or key = $4) and ($5::text is null or type = $5)
               and ($7::bigint is null or created_at >= timestamptz 'epoch' + $7 * interval '1 microsecond')
               and {schema}.takes((select s from {schema}.sinks s where s.sink = $1), topic, type, headers) as matches
          from {schema}.outbox
         where position >= $2 and position <= $3
         order by position limit $6) o
  join {schema}.lanes l on l.sink = $1 and o.slot between l.first_slot and l.last_slot
 where o.matches and {schema}.passed(o.position, o.xid, l)
   and not exists (select from {schema}.deferred d where d.position = o.position and d.sink = l.sink)
 order by o.position

-- name: known_identities
-- How many messages with these identities each consumer has processed.
with recursive {inbox_names}
select n.consumer, known.number
  from inbox_names n cross join lateral (
       select count(*) as number from {schema}.inbox i where i.consumer = n.consumer and i.id = any($1::text[])) known
 where known.number > 0
 order by n.consumer

-- name: kinds_of_messages
-- Of the newest $2 rows of the log: each topic, type and source, whether sink $1 has passed them, how many there are, and the
-- first of them.
select topic, type,
       case when json_typeof(headers -> 'source') = 'string' and strpos(headers::text, '\u0000') = 0
            then headers ->> 'source' end as source,
       {schema}.passed(o.position, o.xid, l) as passed, count(*) as number, min(o.position) as first
  from (select position, xid, slot, topic, type, headers from {schema}.outbox order by position desc limit $2) o
  join {schema}.lanes l on l.sink = $1 and o.slot between l.first_slot and l.last_slot
 group by 1, 2, 3, 4

-- name: rewind
-- Re-publish messages, those of a key one after the other. $2: lanes; $3: positions; $4: keys.
insert into {schema}.deferred (sink, lane, position, key, state, blocks, due_at, unsure)
select $1, lane, position, key, 'held', true, case when key is null then now() end, true -- the broker has had these
  from unnest($2::smallint[], $3::bigint[], $4::text[]) as these (lane, position, key)

-- name: lock_retention
-- Block retention until the transaction ends: it would not see what is to be re-published, and delete it.
with timeout as materialized (
    select set_config('lock_timeout', '10s', true) as now)
select name from timeout, {schema}.locks where name = 'retention' and now is not null for update of locks

-- name: add_rewound
-- Mark messages as re-published by rewind $2. $3: positions; $4: their new ids, or nulls.
insert into {schema}.rewound (sink, position, rewind, new_id)
select $1, position, $2, new_id
  from unnest($3::bigint[], $4::uuid[]) as these (position, new_id)
on conflict (position, sink) do update set rewind = excluded.rewind, new_id = excluded.new_id

-- name: why_message
-- The explainer's look-ups begin here. They run in one snapshot. A message of the log, and the current time.
select position, type, topic, key, created_at, null::timestamptz as deliver_at, now() as at
  from {schema}.outbox where id = $1

-- name: why_scheduled
-- The same of a scheduled message.
select null::bigint as position, type, topic, key, created_at, due_at as deliver_at, now() as at
  from {schema}.scheduled where id = $1

-- name: why_unknown
-- When the oldest message of the log was added, how many open transactions have written to the log, by their locks, and the
-- current time.
select (select created_at from {schema}.outbox order by position limit 1) as oldest,
       (select count(distinct virtualtransaction) from pg_locks
         where relation in ('{schema}.outbox'::regclass, '{schema}.scheduled'::regclass)
           and database = (select oid from pg_database where datname = current_database())
           and mode = 'RowExclusiveLock' and granted) as open,
       now() as at

-- name: why_lanes
-- The lane of the message at position $1 at each sink, or at sink $2: how far it has come, its owner, and what is known of
-- relays and a pause of the sink.
select l.sink, l.lane, l.position,
       case when {schema}.passed(o.position, o.xid, l)
              or coalesce(o.position <= l.late_position and pg_visible_in_snapshot(o.xid, l.late_snapshot), false)
            then 'passed'
            when o.position <= l.position then 'late' else 'ahead' end as reading,
       l.owner, l.lease_until, r.host, r.pid, r.heartbeat_at,
       greatest(s.served_at, (select max(heartbeat_at) from {schema}.relays r where r.sink = l.sink)) as served_at,
       (select count(*) from {schema}.relays r where r.sink = l.sink and r.alive_until > now()) as relays,
       p.since, p.who, p.reason,
       (select nullif(g.at, '-infinity') from {schema}.progress g where g.sink = l.sink and g.lane = l.lane
         order by g.position desc, g.at desc limit 1) as progressed_at,
       s.filter, {schema}.takes(s, o.topic, o.type, o.headers) as taken
  from {schema}.outbox o
  join {schema}.lanes l on o.slot between l.first_slot and l.last_slot
  left join {schema}.relays r on r.owner = l.owner
  left join {schema}.sinks s on s.sink = l.sink
  left join {schema}.pauses p on p.sink = l.sink
 where o.position = $1 and ($2::text is null or l.sink = $2)
 order by l.sink

-- name: why_deferred
-- The deferred rows of the message at position $1.
select d.sink, o.id, d.position, d.state, d.attempts, d.due_at, d.key, d.route,
       (select w.deferred_at from {schema}.deferred w
         where w.sink = d.sink and w.lane = d.lane and w.route = d.route
         order by w.position limit 1) as route_since,
       d.error, d.deferred_at, d.last_failed_at,
       exists (select from {schema}.rewound w where w.position = d.position and w.sink = d.sink) as rewound
  from {schema}.deferred d join {schema}.outbox o on o.position = d.position
 where d.position = $1

-- name: why_head
-- Of an ordering key $3 of a lane: the first message below position $4 that blocks it.
select position from {schema}.deferred
 where sink = $1 and lane = $2 and key = $3 and blocks and position < $4
 order by position limit 1

-- name: why_hold
-- The hold on a key $2, or on an ordering key $3.
select sink, key, since, who, reason from {schema}.holds where sink = $1 and key in ($2, $3) order by key limit 1

-- name: why_published
-- When the message at position $3 was published: if it had been deferred; or the first time at which its lane had passed
-- it; and the last at which it had not come that far.
select (select v.delivered_at from {schema}.delivered v where v.position = $3 and v.sink = $1) as delivered_at,
       (select nullif(p.at, '-infinity') from {schema}.progress p
         where p.sink = $1 and p.lane = $2 and p.position >= $3
           and pg_visible_in_snapshot((select o.xid from {schema}.outbox o where o.position = $3), p.snapshot)
         order by p.position, p.at limit 1) as before,
       (select nullif(p.at, '-infinity') from {schema}.progress p
         where p.sink = $1 and p.lane = $2 and p.position < $3
         order by p.position desc, p.at desc limit 1) as after

-- name: why_key_lanes
-- The lane of a slot $1 at each sink, or at sink $2, and the current time.
select sink, lane, position, now() as at from {schema}.lanes
 where $1::smallint between first_slot and last_slot and ($2::text is null or sink = $2)
 order by sink

-- name: why_key_head
-- The first deferred message that blocks key $3 of a lane. An ordering key may have the source behind the key: the first $4
-- deferred messages of the lane are searched for those.
select id, ordering_key, (select count(*) from (
           select from {schema}.deferred d
            where d.sink = $1 and d.lane = $2 and d.key = ordering_key and d.blocks limit $4) waiting) as waiting
  from (select * from (
            (select position, key as ordering_key from {schema}.deferred
              where sink = $1 and lane = $2 and key = $3 and blocks
              order by position limit 1)
            union all
            (select position, key from (
                 select position, key from {schema}.deferred
                  where sink = $1 and lane = $2 and blocks and key is not null
                  order by sink, lane, key limit $4) few
              where split_part(key, chr(31), 1) = $3 and key <> $3
              order by position limit 1)) both_kinds
         order by position limit 1) head
  join {schema}.outbox o using (position)

-- name: key_waiting
-- The first $4 deferred messages that an ordering key $3 of a lane waits for.
select position from {schema}.deferred
 where sink = $1 and lane = $2 and key = $3 and blocks
 order by position limit $4

-- name: why_key_unread
-- The first message of key $2 among the $3 rows after position $1 that sink $4 takes.
select id from (select position, id, key, topic, type, headers from {schema}.outbox
                 where position > $1 order by position limit $3) next
 where key = $2 and {schema}.takes((select s from {schema}.sinks s where s.sink = $4), topic, type, headers)
 order by position limit 1

-- name: why_key_newest
-- The newest message of key $1 among the newest $2 rows.
select id from (select position, id, key from {schema}.outbox order by position desc limit $2) newest
 where key = $1
 order by position desc limit 1

-- name: payload_horizon
-- A transaction id above that of every transaction that has written anything up to now: this transaction's own. The xmax of
-- a snapshot would not do: it is one past the highest id that has completed, and transactions above it may be in progress.
select pg_current_xact_id()::text

-- name: payloads_decided
-- Whether every transaction below $1 has ended, so that the rows of those that were committed are visible.
select pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8

-- name: payloads_in_use
-- Where the payloads of these messages are. One statement, because a scheduled message may be moved into the log meanwhile.
select headers ->> 'dataref' from {schema}.outbox where id = any($1::uuid[])
union all
select headers ->> 'dataref' from {schema}.scheduled where id = any($1::uuid[])
