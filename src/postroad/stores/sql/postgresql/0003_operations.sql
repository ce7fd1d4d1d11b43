-- What operators see and do: when messages were published, holds, pauses, decisions ahead of a lane, rewinds, the audit.
-- Nothing here touches the log: applications add while this runs.

-- How far each lane had come, and when: at most one row a second, and none while it stands still. The first row of a
-- lane that has passed a message says when it was published. A row of -infinity says that what it has passed was dealt
-- with at a time that is not known (any more).
create table if not exists {schema}.progress (
    sink      text        not null,
    lane      smallint    not null,
    position  bigint      not null,
    at        timestamptz not null default clock_timestamp(),
    snapshot  pg_snapshot not null,
    published integer     not null,
    refused   integer     not null,
    primary key (sink, lane, position, at)
);
create index if not exists progress_at on {schema}.progress (at);
insert into {schema}.progress (sink, lane, position, at, snapshot, published, refused)
select sink, lane, position, '-infinity', snapshot, 0, 0
  from {schema}.lanes
 where not exists (select from {schema}.progress);

-- When a message was published that had been in trouble, or was published again.
create table if not exists {schema}.delivered (
    sink         text        not null,
    position     bigint      not null,
    delivered_at timestamptz not null default now(),
    primary key (position, sink)
);

-- Keys that a person holds: nothing of them is published to that sink.
create table if not exists {schema}.holds (
    sink   text        not null,
    key    text        not null,
    slot   smallint    not null,
    since  timestamptz not null default now(),
    who    text        not null,
    reason text,
    primary key (sink, key)
);

-- Sinks that a person has paused.
create table if not exists {schema}.pauses (
    sink   text        not null primary key,
    since  timestamptz not null default now(),
    who    text        not null,
    reason text
);

-- Messages that a person has decided about before their lane has read them. There is a row in `deferred` for each; the
-- lane passes over them, and forgets this row afterwards.
create table if not exists {schema}.ahead (
    sink     text     not null,
    lane     smallint not null,
    position bigint   not null,
    primary key (sink, lane, position)
);

-- Messages in `deferred` that are there because they are to be published again.
create table if not exists {schema}.rewound (
    sink     text   not null,
    position bigint not null,
    rewind   text   not null,
    new_id   uuid,
    primary key (position, sink)
);

-- Whatever a person changed. These rows stay.
create table if not exists {schema}.audit (
    number    bigint      not null generated always as identity primary key,
    at        timestamptz not null default now(),
    who       text        not null,
    command   text        not null,
    arguments json        not null,
    reason    text,
    changed   bigint      not null
);

-- Every message at every sink, for people. Ask for some of them, by id or position: there is a row for all of the log.
create or replace view {schema}.outbox_status as
select o.id, l.sink, o.type, o.topic, o.key,
       coalesce(d.state,
                case when {schema}.passed(o.position, o.xid, l)
                       or coalesce(o.position <= l.late_position and pg_visible_in_snapshot(o.xid, l.late_snapshot), false)
                     then 'published' else 'waiting' end) as state,
       coalesce(d.attempts, 0) as attempts,
       d.error,
       o.created_at,
       d.due_at as next_attempt_at,
       case when d.state is null then
           coalesce((select delivered_at from {schema}.delivered v where v.position = o.position and v.sink = l.sink),
                    (select nullif(p.at, '-infinity') from {schema}.progress p
                      where p.sink = l.sink and p.lane = l.lane and p.position >= o.position
                        and pg_visible_in_snapshot(o.xid, p.snapshot)
                      order by p.position, p.at limit 1)) end as published_at,
       d.route,
       l.lane,
       o.position
  from {schema}.outbox o
  join {schema}.lanes l on o.slot between l.first_slot and l.last_slot
  left join {schema}.deferred d on d.position = o.position and d.sink = l.sink;

-- A relay from before would publish what a person holds, has skipped or paused: it is refused from now on.
update {schema}.installation set min_client = greatest(min_client, 3);
insert into {schema}.migrations (version) values (3) on conflict do nothing;
