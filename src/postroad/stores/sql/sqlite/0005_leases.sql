-- Who has which lane until when, and which relays there are.
-- What the columns mean is said in ../postgresql/0005_leases.sql. Times are microseconds since 1970.

-- A column of `lanes` in PostgreSQL; SQLite can't add one twice, and this script may be applied again.
create table if not exists {schema}_leases (
    sink        text    not null,
    lane        integer not null,
    lease_until integer not null,
    primary key (sink, lane)
) without rowid;

create table if not exists {schema}_relays (
    owner        text    primary key not null,
    pid          integer not null,
    beats        integer not null default 1,
    started_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    heartbeat_at integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    alive_until  integer not null,
    sink         text    not null,
    host         text    not null,
    version      text    not null
) without rowid;

update {schema}_installation set min_client = max(min_client, 5);
insert or ignore into {schema}_migrations (version) values (5);
