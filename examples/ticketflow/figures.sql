-- How the workers are doing, from the view with a row per message and sink. It reads the whole log; `postroad status` does
-- not. A lane records once a second when it has published; until then, the time of the message stands for it.

-- name: now
select count(*) filter (where state = 'waiting') as pending,
       count(*) filter (where state = 'retrying') as failing,
       count(*) filter (where state = 'dead') as dead,
       count(*) filter (where state = 'published'
                          and coalesce(published_at, created_at) > now() - interval '1 hour') as processed
  from postroad.outbox_status
 where sink = 'default';

-- name: per_minute
select to_char(date_trunc('minute', coalesce(published_at, created_at)), 'HH24:MI') as minute, count(*) as processed
  from postroad.outbox_status
 where sink = 'default' and state = 'published' and coalesce(published_at, created_at) > now() - interval '1 hour'
 group by 1
 order by 1;
