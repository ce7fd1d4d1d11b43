-- What is known of a sink beside its lanes.
-- What the columns mean is said in ../postgresql/0010_sinks.sql. Times are microseconds since 1970.

create table if not exists {schema}_sinks (
    served_at   integer not null default (cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
    sink        text    primary key not null,
    destination text
) without rowid;
insert or ignore into {schema}_sinks (sink) select distinct sink from {schema}_lanes;

update {schema}_installation set min_client = max(min_client, 10);
insert or ignore into {schema}_migrations (version) values (10);
