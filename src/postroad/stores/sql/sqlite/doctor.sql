-- The facts of `postroad doctor` that a file has; ../postgresql/doctor.sql says what each of them is.

-- name: sinks
select s.sink, s.destination,
       ({now} - max(s.served_at,
                    coalesce((select max(heartbeat_at) from {schema}_relays r where r.sink = s.sink), 0),
                    coalesce((select max(min(e.lease_until, {now}))
                                from {schema}_leases e join {schema}_lanes l on l.sink = e.sink and l.lane = e.lane
                               where e.sink = s.sink and l.owner is not null), 0)))
           / 1e6 as unserved_seconds,
       (select count(*) from {schema}_relays r where r.sink = s.sink and r.alive_until > {now}) as relays,
       (select count(*) from {schema}_lanes l where l.sink = s.sink) as lanes,
       ({now} - p.since) / 1e6 as paused_seconds, p.who as paused_by
  from {schema}_sinks s
  left join {schema}_pauses p on p.sink = s.sink
 order by s.sink

-- name: log_age
select ({now} - created_at) / 1e6 as seconds, position,
       (select sink from {schema}_lanes order by position, sink limit 1) as slowest,
       (select min(position) from {schema}_lanes) as slowest_position,
       exists (select 1 from {schema}_deferred d
                where d.position = o.position and d.state in ('retrying', 'sending', 'held', 'dead')) as deferred
  from (select position, created_at from {schema}_outbox order by position limit 1) o

-- name: relays
select sink, version, host, pid, alive_until > {now} as alive, ({now} - heartbeat_at) / 1e6 as heartbeat_seconds
  from {schema}_relays
 order by sink, started_at

-- name: epochs
select sink, lane, epoch from {schema}_lanes order by sink, lane

-- name: holds
select sink, key, who, ({now} - since) / 1e6 as seconds from {schema}_holds order by since

-- name: blocked_routes
select sink, route, count(*) as messages, ({now} - min(deferred_at)) / 1e6 as seconds, max(error) as error
  from {schema}_deferred
 where route is not null and state = 'held'
 group by sink, route
 order by messages desc, sink, route
 limit 20

-- name: refused_dead_letters
select sink, error
  from {schema}_deferred
 where state = 'dead' and error like '%; its dead letter for topic % was refused: %'
 order by position desc
 limit 20

-- name: newest_messages
select topic, type, key, headers from {schema}_outbox order by position desc limit 200

-- name: largest_message
select max(length(payload)) as bytes
  from (select payload from {schema}_outbox order by position desc limit 200) newest

-- name: consumers
select consumer, sum(alive_until > {now}) as alive, ({now} - max(heartbeat_at)) / 1e6 as heartbeat_seconds,
       host || ' (' || pid || ')' as last -- of the row with the newest heartbeat
  from {schema}_consumers
 group by consumer
 order by consumer

-- name: running_attempts
select consumer, count(*) as messages, max(({now} - changed_at) / 1e6) as seconds
  from {schema}_inbox_attempts
 where running and dead_at is null
 group by consumer
 order by consumer
