-- The named queries of `Admin`, PostgreSQL. ../sqlite/admin.sql has the same names.
-- Times are microseconds since 1970, in parameters and results. A filter's parameter that is null matches everything.
-- A part is used by several queries, as {its name}.

-- name: sinks
select distinct sink from {schema}.lanes order by sink

-- name: sink_reports
-- Each sink's destination, when a relay last served it, how many relays serve it now, and the current time.
select s.sink, s.destination,
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
select destination from {schema}.sinks where sink = $1 for update

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

-- part: remove
-- Delete a sink from one of the tables that know sinks: a query for each of them is made of this.
delete from {schema}.{table} where sink = $1

-- name: lane_reports
-- Pending messages per lane, among the first $1 rows after its position, and the first $1 that its snapshot does not see.
-- Rows of all slots are read, so that the number of rows is bounded; `seen` counts them, `mine` those of the lane's slots.
select l.sink, l.lane, l.position, l.owner,
       exists (select from {schema}.pauses p where p.sink = l.sink) as paused,
       next.seen, next.mine, next.through, coalesce((select max(position) from {schema}.outbox), 0) as log_end,
       late.seen as late_seen, late.mine as late_mine,
       extract(epoch from now() - least(next.oldest, late.oldest))::float8 as lag_seconds
  from {schema}.lanes l,
       lateral (select count(*) as seen,
                       count(*) filter (where slot between l.first_slot and l.last_slot) as mine,
                       max(position) as through,
                       min(created_at) filter (where slot between l.first_slot and l.last_slot) as oldest
                  from (select position, slot, created_at from {schema}.outbox
                         where position > l.position
                         order by position limit $1) ahead) next,
       lateral (select count(*) as seen,
                       count(*) filter (where waits) as mine,
                       min(created_at) filter (where waits) as oldest
                  from (select created_at,
                               position <= l.position and slot between l.first_slot and l.last_slot
                               and not coalesce(position <= l.late_position
                                                and pg_visible_in_snapshot(xid, l.late_snapshot), false) as waits
                          from ((select position, slot, xid, created_at from {schema}.outbox
                                  where xid >= pg_snapshot_xmax(l.snapshot) and xid < coalesce(l.horizon, '{last_xid}')
                                  order by xid limit $1)
                                union all
                                (select position, slot, xid, created_at from {schema}.outbox
                                  where xid = any(array(select pg_snapshot_xip(l.snapshot)))
                                  limit $1)) unseen) behind) late
 order by l.sink, l.lane

-- name: deferred_reports
-- How many deferred messages each lane has, by state, and the age of the oldest.
-- "position > 0" lets the planner use the primary key. Without it, with sequential scans disabled, every plan costs so much
-- that the planner does not see that hashing is cheaper than sorting. `routed`: how many of them wait for a route.
select sink, lane, state, number,
       extract(epoch from now() - (select created_at from {schema}.outbox o where o.position = first))::float8 as age, routed
  from (select sink, lane, state, count(*) as number, min(position) as first, count(route) as routed
          from {schema}.deferred
         where position > 0
         group by sink, lane, state) counts

-- name: throughput
-- Published and refused messages per minute of the clock, by how many minutes ago. $1: minutes.
select sink, lane, (extract(epoch from date_trunc('minute', now()) - date_trunc('minute', at)) / 60)::integer as ago,
       sum(published)::bigint as published, sum(refused)::bigint as refused
  from {schema}.progress
 where at >= date_trunc('minute', now()) - make_interval(mins => $1::integer - 1)
 group by sink, lane, ago

-- name: scheduled_report
-- Scheduled messages, counted up to $1; when the first is due; and the current time.
select (select count(*) from (select from {schema}.scheduled order by due_at limit $1) first) as number,
       (select min(due_at) from {schema}.scheduled) as due_at,
       now() as at

-- name: held_keys
select sink, key, since, who, reason from {schema}.holds where $1::text is null or sink = $1 order by sink, key

-- name: audit
select number, at, who, role, command, arguments::text, reason,
       changed + coalesce((select sum(changed) from {schema}.audit more
                           where more.continues = a.number and more.role is not distinct from a.role), 0)::bigint
  from {schema}.audit a
 where continues is null
    or role is distinct from (select first.role from {schema}.audit first where first.number = a.continues)
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
select sink, position from {schema}.deferred d
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
select id, type
  from (select position, id, type, headers from {schema}.outbox where position > $1 order by position limit $3) next
 where strpos(headers::text, $2) > 0 and headers ->> 'causation_id' = $2
 order by position

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
             and not exists (select from {schema}.lanes l
                              where batch.slot between l.first_slot and l.last_slot
                                and not {schema}.passed(batch.position, batch.xid, l))
             and not exists (select from {schema}.deferred d
                              where d.position = batch.position
                                and (d.state in ('retrying', 'sending', 'held', 'dead') or not d.noticed))) as matching,
       count(*) as seen, max(position) as through
  from (select position, xid, slot, created_at < now() - $3::bigint * interval '1 microsecond' as old
          from {schema}.outbox where position >= $1 order by position limit $2) batch

-- name: count_of_key
-- Of the first $2 rows after position $1, how many messages of key $3 every sink has had, and how many not; how many rows there
-- are, and where the last one is.
with batch as materialized (
    select position, xid, slot, key from {schema}.outbox where position > $1 order by position limit $2)
select count(*) filter (where delivered) as delivered, count(*) filter (where not delivered) as undelivered,
       (select count(*) from batch) as seen, (select max(position) from batch) as through
  from (select exists (select from {schema}.lanes)
               and not exists (select from {schema}.lanes l
                                where batch.slot between l.first_slot and l.last_slot
                                  and not {schema}.passed(batch.position, batch.xid, l))
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
               and ($7::bigint is null or created_at >= timestamptz 'epoch' + $7 * interval '1 microsecond') as matches
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
               and ($7::bigint is null or created_at >= timestamptz 'epoch' + $7 * interval '1 microsecond') as matches
          from {schema}.outbox
         where position >= $2 and position <= $3
         order by position limit $6) o
  join {schema}.lanes l on l.sink = $1 and o.slot between l.first_slot and l.last_slot
 order by o.position

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
