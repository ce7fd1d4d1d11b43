-- What consumers have processed. What the columns mean is said in ../postgresql/0006_inbox.sql.
-- Times are microseconds since 1970.

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

insert or ignore into {schema}_migrations (version) values (6);
