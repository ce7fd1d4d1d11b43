-- Messages that need care of their own: refused ones, those behind them, and those whose time has not come.
-- What the columns mean is said in ../postgresql/0002_trouble.sql. Times are microseconds since 1970.

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

create table if not exists {schema}_attempts (
    sink      text    not null,
    position  integer not null,
    attempt   integer not null,
    failed_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    error     text    not null check (length(error) <= 2000),
    primary key (position, sink, failed_at, attempt)
) without rowid;

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

update {schema}_installation set min_client = max(min_client, 2);
insert or ignore into {schema}_migrations (version) values (2);
