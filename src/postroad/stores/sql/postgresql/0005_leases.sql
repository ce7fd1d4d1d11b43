-- Who has which lane until when, and which relays there are. Nothing here touches the log: applications add while this
-- runs.

alter table {schema}.lanes add column if not exists lease_until timestamptz;

-- One row per relay. It goes when the relay ends; of one that died it stays for a day, for those who look.
create table if not exists {schema}.relays (
    owner          uuid        primary key,
    pid            integer     not null,
    beats          bigint      not null default 1,
    started_at     timestamptz not null default clock_timestamp(),
    heartbeat_at   timestamptz not null default clock_timestamp(),
    alive_until    timestamptz not null,    -- unless it beats again
    lock_key       bigint,                  -- of the advisory lock that its session holds; null: it holds none
    server_started text,                    -- what server_started() said on the server that has it
    sink           text        not null,
    host           text        not null,
    version        text        not null,
    constraint relays_lock check ((lock_key is null) = (server_started is null))
) with (fillfactor = 50);

-- When the server was started, or has gone through a crash, which makes it forget its statistics and all locks.
create or replace function {schema}.server_started() returns text language sql stable as $$
    select pg_postmaster_start_time()::text || coalesce(' ' || (select stats_reset::text from pg_stat_bgwriter), '')
$$;

-- The server processes that hold an advisory lock of this database. Who asks never holds it.
create or replace function {schema}.lock_holders(key bigint) returns setof integer language sql stable as $$
    select pid from pg_locks
     where locktype = 'advisory' and granted and objsubid = 1
       and database = (select oid from pg_database where datname = current_database())
       and ((classid::bigint << 32) | objid::bigint) = key
$$;

-- A relay from before takes all lanes, whoever has them: it is refused from now on. Applications are not asked.
update {schema}.installation set min_client = greatest(min_client, 5);
insert into {schema}.migrations (version) values (5) on conflict do nothing;
