-- The log and the lanes that read it. SQLite has one writer at a time, so position order is commit order.

create table if not exists {schema}_migrations (
    version    integer primary key,
    applied_at text    not null default current_timestamp
);

create table if not exists {schema}_installation (
    only_row   integer primary key default 1 check (only_row = 1),
    min_client integer not null
);

-- The log. Rows are inserted and, long after they were delivered, deleted; they are never updated.
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
    created_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)) -- microseconds
);

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

insert or ignore into {schema}_installation (min_client) values (1);
insert or ignore into {schema}_migrations (version) values (1);
