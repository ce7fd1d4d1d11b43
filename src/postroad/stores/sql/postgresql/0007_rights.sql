-- What other roles of the database can do to us. Names are looked up in pg_catalog alone, whatever the caller's
-- search_path is; functions are for the roles that have been granted them; and what only one process may do at a time is
-- guarded by rows of our own, because any role can hold an advisory lock.
-- The last statement locks the log against writers for a moment, as that of 0004 does: `postroad migrate` gives up after a
-- short wait and tries again. With another tool, say "set lock_timeout".

-- A row for each thing that only one transaction may do at a time; it locks the row, and changes nothing in it.
create table if not exists {schema}.locks (name text primary key);
insert into {schema}.locks (name) values ('naps'), ('retention'), ('scheduled') on conflict do nothing;

-- The server's process that holds a relay's advisory lock: another role that gets hold of the lock, once the relay is
-- dead, does not keep it alive. Null: a relay from before, for which any holder counts.
alter table {schema}.relays add column if not exists lock_pid integer;

-- Who says to have done it, and beside it the role that has logged in, which only a superuser can change. A later
-- batch of a command is a line of its own, with the number of the first: lines are added, and never changed.
alter table {schema}.audit add column if not exists role text;
alter table {schema}.audit alter column role set default session_user;
alter table {schema}.audit add column if not exists continues bigint;
create index if not exists audit_continues on {schema}.audit (continues) where continues is not null;

-- These two are part of larger statements and must stay inlined, which PostgreSQL does only for functions without SET. So
-- every name in them is written in full. (Every "operator(...)" has the same precedence, hence the parentheses.)
create or replace function {schema}.passed("position" bigint, xid xid8, lane {schema}.lanes) returns boolean
language sql immutable parallel safe as
$$ select $1 operator(pg_catalog.<=) ($3).position and pg_catalog.pg_visible_in_snapshot($2, ($3).snapshot) $$;

create or replace function {schema}.slot_of(text) returns smallint
language sql immutable strict parallel safe as
$$ select (((pg_catalog.get_byte(digest, 0) operator(pg_catalog.*) 256)
            operator(pg_catalog.+) pg_catalog.get_byte(digest, 1)) operator(pg_catalog.%) 1024)::pg_catalog.int2
     from pg_catalog.sha256(pg_catalog.convert_to($1, 'UTF8')) digest $$;

-- When the server was started, or has gone through a crash, which makes it forget its statistics and all locks.
create or replace function {schema}.server_started() returns text
language sql stable set search_path = pg_catalog, pg_temp as
$$ select pg_postmaster_start_time()::text || coalesce(' ' || (select stats_reset::text from pg_stat_bgwriter), '') $$;

-- The server processes that hold an advisory lock of this database. The caller never holds it.
create or replace function {schema}.lock_holders(key bigint) returns setof integer
language sql stable set search_path = pg_catalog, pg_temp as
$$ select pid from pg_locks
    where locktype = 'advisory' and granted and objsubid = 1
      and database = (select oid from pg_database where datname = current_database())
      and ((classid::bigint << 32) | objid::bigint) = key $$;

-- Wipe the marks of the naps that have ended. A nap that is being marked has the lock until it can be seen, and with the
-- lock we look again. A nap that begins afterwards waits for us as for every writer, so the lock is released at once: by
-- an error, which does not bring back a sequence. An old snapshot may not show all naps.
create or replace function {schema}.wipe_marks() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp as
$$
declare
    moment timestamptz := clock_timestamp();    -- before the snapshot: a nap is renewed long before its end
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        return;
    end if;
    perform from {schema}.locks where name = 'naps' for update skip locked;
    if found then
        perform pg_stat_clear_snapshot();
        perform setval('{schema}.napping'::regclass,
                       coalesce((select bit_or(n.marks) from {schema}.naps n
                                  where n.until > moment
                                    and exists (select from pg_stat_get_activity(n.listener))), 0));
        raise sqlstate 'PR000';
    end if;
exception
    when sqlstate 'PR000' then null;
end
$$;

-- A view keeps what its names meant when it was made: it is made again.
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

revoke all on function {schema}.passed(bigint, xid8, {schema}.lanes) from public;
revoke all on function {schema}.slot_of(text) from public;
revoke all on function {schema}.add_bytes(text, text, bytea, text, text, text, uuid, jsonb, text, text) from public;
revoke all on function {schema}.add(text, text, jsonb, text, text, uuid, jsonb, text, text) from public;
revoke all on function {schema}.server_started() from public;
revoke all on function {schema}.lock_holders(bigint) from public;

-- A relay from before knows advisory locks only, and would move scheduled messages beside another: it is refused from
-- now on. Applications are not asked.
update {schema}.installation set min_client = greatest(min_client, 7);
insert into {schema}.migrations (version) values (7) on conflict do nothing;

-- So does a trigger's condition. Every INSERT pays for each step of it.
do $$
begin
    drop trigger if exists wake_naps on {schema}.outbox;
    create trigger wake_naps after insert on {schema}.outbox for each row
        when (pg_sequence_last_value('{schema}.napping'::regclass) << (new.slot / 16) < 0)
        execute function {schema}.wake_naps();
end
$$;

-- Defaults and checks keep what their names meant, too. Those of PostgreSQL itself are not noted as dependencies.
do $$
declare
    foreign_name text;
begin
    select pg_describe_object(d.classid, d.objid, d.objsubid) || ' uses '
               || pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
      into foreign_name
      from pg_depend d
      left join pg_proc f on d.refclassid = 'pg_proc'::regclass and f.oid = d.refobjid
      left join pg_operator o on d.refclassid = 'pg_operator'::regclass and o.oid = d.refobjid
     where (d.classid = 'pg_attrdef'::regclass
            and d.objid in (select a.oid from pg_attrdef a join pg_class c on c.oid = a.adrelid
                             where c.relnamespace = '{schema}'::regnamespace)
            or d.classid = 'pg_constraint'::regclass
            and d.objid in (select oid from pg_constraint where connamespace = '{schema}'::regnamespace))
       and coalesce(f.pronamespace, o.oprnamespace) <> '{schema}'::regnamespace
     limit 1;
    if found then
        raise exception 'postroad: % of another schema: an earlier migration ran with that schema on its search_path; '
                        'find out who made it, and make the default or constraint again', foreign_name;
    end if;
end
$$;
