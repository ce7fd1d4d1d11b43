-- What operators see and do. What the tables mean is said in ../postgresql/0003_operations.sql. Times are microseconds
-- since 1970; a progress row of time 0 has no time.

create table if not exists {schema}_progress (
    sink      text    not null,
    lane      integer not null,
    position  integer not null,
    at        integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    published integer not null,
    refused   integer not null,
    primary key (sink, lane, position, at)
) without rowid;
create index if not exists {schema}_progress_at on {schema}_progress (at);
insert into {schema}_progress (sink, lane, position, at, published, refused)
select sink, lane, position, 0, 0, 0
  from {schema}_lanes
 where not exists (select 1 from {schema}_progress);

create table if not exists {schema}_delivered (
    sink         text    not null,
    position     integer not null,
    delivered_at integer not null,
    primary key (position, sink)
) without rowid;

create table if not exists {schema}_holds (
    sink   text    not null,
    key    text    not null,
    slot   integer not null,
    since  integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    who    text    not null,
    reason text,
    primary key (sink, key)
) without rowid;

create table if not exists {schema}_pauses (
    sink   text    not null primary key,
    since  integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    who    text    not null,
    reason text
) without rowid;

create table if not exists {schema}_ahead (
    sink     text    not null,
    lane     integer not null,
    position integer not null,
    primary key (sink, lane, position)
) without rowid;

create table if not exists {schema}_rewound (
    sink     text    not null,
    position integer not null,
    rewind   text    not null,
    new_id   text,
    primary key (position, sink)
) without rowid;

create table if not exists {schema}_audit (
    number    integer primary key autoincrement,
    at        integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    who       text    not null,
    command   text    not null,
    arguments text    not null,
    reason    text,
    changed   integer not null
);

create view if not exists {schema}_outbox_status as
select o.id, l.sink, o.type, o.topic, o.key,
       coalesce(d.state, iif(o.position <= l.position, 'published', 'waiting')) as state,
       coalesce(d.attempts, 0) as attempts,
       d.error,
       o.created_at,
       d.due_at as next_attempt_at,
       case when d.state is null then
           coalesce((select delivered_at from {schema}_delivered v where v.position = o.position and v.sink = l.sink),
                    (select nullif(p.at, 0) from {schema}_progress p
                      where p.sink = l.sink and p.lane = l.lane and p.position >= o.position
                      order by p.position, p.at limit 1)) end as published_at,
       d.route,
       l.lane,
       o.position
  from {schema}_outbox o
  join {schema}_lanes l on o.slot between l.first_slot and l.last_slot
  left join {schema}_deferred d on d.position = o.position and d.sink = l.sink;

update {schema}_installation set min_client = max(min_client, 3);
insert or ignore into {schema}_migrations (version) values (3);
