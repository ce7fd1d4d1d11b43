-- The whole schema of postroad for SQLite. What the tables and columns mean is in ../postgresql/0001_initial.sql; this file
-- says what differs. Every statement may run again.
--
-- SQLite has one writer at a time, so the order of positions is the order of commits: no transaction ids, no snapshots.
-- It has no roles: whatever can open the file can do everything. Relays notice changes by "pragma data_version", so there
-- are no naps to be woken from. Times are microseconds since 1970.

create table if not exists {schema}_migrations (
    version    integer primary key,
    applied_at text    not null default current_timestamp
);

create table if not exists {schema}_installation (
    only_row   integer primary key default 1 check (only_row = 1),
    min_client integer not null
);


-- == The log ============================================================================================================

-- AUTOINCREMENT: without it a cleanup would free positions below the cursors, and new rows would never be read.
create table if not exists {schema}_outbox (
    position     integer primary key autoincrement,
    id           text    not null unique,
    topic        text    not null check (length(cast(topic as blob)) between 1 and 255),
    key          text             check (length(cast(key as blob)) between 1 and 1024),
    slot         integer not null check (slot between 0 and 1023),
    type         text    not null check (length(cast(type as blob)) between 1 and 255),
    payload      blob    not null,
    content_type text    not null,
    headers      text    not null,
    created_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer))
);

create table if not exists {schema}_scheduled (
    number       integer primary key,
    due_at       integer not null,
    created_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    id           text    not null unique,
    slot         integer not null check (slot between 0 and 1023),
    topic        text    not null check (length(cast(topic as blob)) between 1 and 255),
    type         text    not null check (length(cast(type as blob)) between 1 and 255),
    key          text             check (length(cast(key as blob)) between 1 and 1024),
    content_type text    not null,
    headers      text    not null,
    payload      blob    not null
);
create index if not exists {schema}_scheduled_due on {schema}_scheduled (due_at, number);

-- The limits of message.py. SQLite has no hash function to check a slot with.
create trigger if not exists {schema}_outbox_limits before insert on {schema}_outbox
 when length(new.payload) > 16777216
   or length(cast(new.headers as blob)) > 65536
   or length(cast(new.content_type as blob)) > 255
begin
    select raise(abort, 'postroad: payload has more than 16777216 bytes, headers more than 65536 or content_type more than 255');
end;

create trigger if not exists {schema}_scheduled_limits before insert on {schema}_scheduled
 when length(new.payload) > 16777216
   or length(cast(new.headers as blob)) > 65536
   or length(cast(new.content_type as blob)) > 255
begin
    select raise(abort, 'postroad: payload has more than 16777216 bytes, headers more than 65536 or content_type more than 255');
end;

create trigger if not exists {schema}_scheduled_due_at before insert on {schema}_scheduled
 when typeof(new.due_at) <> 'integer' or new.due_at not between -2208988800000000 and 253370764799999999
begin
    select raise(abort, 'postroad: due_at must be microseconds since 1970, of a time from 1900 to 9998');
end;


-- == Sinks and their lanes ==============================================================================================

create table if not exists {schema}_sinks (
    served_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    sink        text    primary key not null,
    destination text,
    filter      text
) without rowid;

-- Which sinks take which messages: sink_filter.py, in SQL alone, because an application's own connection cancels messages and
-- reads the view below. The rest of a pattern and the rest of a topic are compared word by word, in all ways at once.
create view if not exists {schema}_taken as
select s.sink, o.position
  from {schema}_sinks s, {schema}_outbox o
 where s.filter is null
    or (with recursive rests (excluded, pattern, topic) as (
            select 0, value || '.', o.topic || '.' from json_each(s.filter, '$.topics')
            union
            select 1, value || '.', o.topic || '.' from json_each(s.filter, '$.exclude_topics')
            union
            select excluded, substr(pattern, 3), topic from rests where pattern like '#.%'
            union
            select excluded, iif(pattern like '#.%', pattern, substr(pattern, instr(pattern, '.') + 1)),
                   substr(topic, instr(topic, '.') + 1)
              from rests
             where topic <> ''
               and (pattern like '#.%' or pattern like '*.%'
                    or substr(pattern, 1, instr(pattern, '.')) = substr(topic, 1, instr(topic, '.'))))
        select (json_type(s.filter, '$.topics') is null or coalesce(max(not excluded), 0)) and not coalesce(max(excluded), 0)
          from rests where pattern = '' and topic = '')
   and (json_type(s.filter, '$.types') is null
        or exists (select 1 from json_each(s.filter, '$.types') as wanted where wanted.value = o.type))
   and (json_type(s.filter, '$.sources') is null
        or exists (select 1 from json_each(s.filter, '$.sources') as wanted
                    where wanted.value = iif(json_valid(o.headers), json_extract(o.headers, '$.source'), null)));

create table if not exists {schema}_lanes (
    sink       text    not null,
    lane       integer not null,
    first_slot integer not null,
    last_slot  integer not null,
    position   integer not null,
    owner      text,
    epoch      integer not null default 0,
    version    integer not null default 0,
    primary key (sink, lane)
) without rowid;

-- Until when a lane's owner has it. A column of `lanes` in PostgreSQL.
create table if not exists {schema}_leases (
    sink        text    not null,
    lane        integer not null,
    lease_until integer not null,
    primary key (sink, lane)
) without rowid;

create table if not exists {schema}_relays (
    owner        text    primary key not null,
    pid          integer not null,
    heartbeats   integer not null default 1,
    started_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    heartbeat_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    alive_until  integer not null,
    sink         text    not null,
    host         text    not null,
    version      text    not null
) without rowid;


-- == Deferred messages ==================================================================================================

create table if not exists {schema}_deferred (
    sink            text    not null,
    position        integer not null,
    lane            integer not null,
    attempts        integer not null default 0 check (attempts >= 0),
    due_at          integer,
    epoch           integer,
    blocks          integer not null,
    unsure          integer not null default 0,
    state           text    not null,
    key             text,
    route           text,
    error           text    check (length(error) <= 2000),
    deferred_at     integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    first_failed_at integer,
    last_failed_at  integer,
    primary key (position, sink),
    constraint deferred_state check (
        state in ('retrying', 'sending', 'held', 'dead', 'canceled', 'dropped', 'skipped')),
    constraint deferred_blocks check (
        state = 'dead' or blocks = (state in ('retrying', 'sending', 'held'))),
    constraint deferred_due check (
        case state when 'retrying' then due_at is not null when 'held' then true else due_at is null end),
    constraint deferred_epoch check ((epoch is not null) = (state = 'sending'))
) without rowid;
create index if not exists {schema}_deferred_due on {schema}_deferred (sink, lane, due_at) where due_at is not null;
create index if not exists {schema}_deferred_key on {schema}_deferred (sink, lane, key, position)
    where blocks and key is not null;
create index if not exists {schema}_deferred_sending on {schema}_deferred (sink, lane) where epoch is not null;
create index if not exists {schema}_deferred_route on {schema}_deferred (sink, lane, route, position)
    where route is not null;
create index if not exists {schema}_deferred_state on {schema}_deferred (sink, state, position);
create index if not exists {schema}_deferred_error on {schema}_deferred (sink, state, position) where error is not null;

create table if not exists {schema}_attempts (
    sink      text    not null,
    position  integer not null,
    attempt   integer not null,
    failed_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    error     text    not null check (length(error) <= 2000),
    primary key (position, sink, failed_at, attempt)
) without rowid;


-- == What operators see and do ==========================================================================================

-- A row at 0 has passed its messages at a time that is not known.
create table if not exists {schema}_progress (
    sink      text    not null,
    lane      integer not null,
    position  integer not null,
    at        integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    published integer not null,
    refused   integer not null,
    latencies text,
    primary key (sink, lane, position, at)
) without rowid;
create index if not exists {schema}_progress_at on {schema}_progress (at);

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

create table if not exists {schema}_copies (
    sink     text    not null,
    dead_in  text    not null,
    position integer not null,
    id       text    not null,
    attempts integer not null,
    error    text    not null,
    died_at  integer not null,
    tries    integer not null default 0,
    due_at   integer not null,
    primary key (position, sink, dead_in)
) without rowid;
create index if not exists {schema}_copies_due on {schema}_copies (sink, due_at);

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
  left join {schema}_deferred d on d.position = o.position and d.sink = l.sink
 where d.position is not null
    or exists (select 1 from {schema}_taken t where t.sink = l.sink and t.position = o.position);


-- == The inbox ==========================================================================================================

create table if not exists {schema}_inbox (
    processed_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    consumer     text    not null check (length(cast(consumer as blob)) between 1 and 255),
    id           text    not null check (length(cast(id as blob)) between 1 and 1024),
    type         text    not null check (length(cast(type as blob)) <= 255),
    primary key (consumer, id)
);
create index if not exists {schema}_inbox_processed_at on {schema}_inbox (consumer, processed_at);

create table if not exists {schema}_inbox_attempts (
    attempts   integer not null default 0 check (attempts >= 0),
    crashes    integer not null default 0 check (crashes >= 0),
    running    integer not null default 0,
    changed_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    dead_at    integer,
    consumer   text    not null check (length(cast(consumer as blob)) between 1 and 255),
    id         text    not null check (length(cast(id as blob)) between 1 and 1024),
    type       text    not null check (length(cast(type as blob)) <= 255),
    error      text    check (length(error) <= 2000),
    primary key (consumer, id)
);

create index if not exists {schema}_inbox_attempts_dead on {schema}_inbox_attempts (dead_at) where dead_at is not null;

create table if not exists {schema}_consumers (
    instance     text    primary key not null,
    pid          integer not null,
    heartbeats   integer not null default 1,
    started_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    heartbeat_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    alive_until  integer not null,
    handled      integer not null,
    duplicates   integer not null,
    failed       integer not null,
    dead         integer not null,
    consumer     text    not null check (length(cast(consumer as blob)) between 1 and 255),
    source       text    not null check (length(cast(source as blob)) <= 1024),
    host         text    not null,
    version      text    not null
) without rowid;

insert or ignore into {schema}_installation (min_client) values (1);
insert or ignore into {schema}_migrations (version) values (1);
