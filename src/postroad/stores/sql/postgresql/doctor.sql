-- The facts of `postroad doctor`, PostgreSQL; ../sqlite/doctor.sql has those that a file has, by the same names.
-- Each runs alone, in a transaction that can't write. A query returns numbers, texts and booleans; ages are in seconds.
-- `schema_version`, `server_facts` and `blockers` in queries.sql are facts too.

-- name: server
select current_setting('server_version') as version, current_setting('server_version_num')::integer as number,
       session_user::text as role, current_database()::text as database

-- name: notification_queue
select pg_notification_queue_usage()::float8 as usage

-- name: triggers
-- Triggers on the tables to which applications add, without those of constraints.
select c.relname::text as table, t.tgname::text as name, t.tgenabled::text as enabled,
       p.pronamespace = '{schema}'::regnamespace as ours
  from pg_trigger t
  join pg_class c on c.oid = t.tgrelid
  join pg_proc p on p.oid = t.tgfoid
 where t.tgrelid in ('{schema}.outbox'::regclass, '{schema}.scheduled'::regclass) and not t.tgisinternal
 order by c.relname, t.tgname

-- name: indexes
-- The indexes of all tables of the schema, and whether the migration made them.
select t.relname::text as table, c.relname::text as name, i.indisvalid and i.indisready as valid,
       pg_get_indexdef(c.oid) as definition
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  join pg_class t on t.oid = i.indrelid
 where t.relnamespace = '{schema}'::regnamespace
 order by t.relname, c.relname

-- name: transactions
-- The oldest transactions of this database. `seconds` is null where this role may not know the age.
select pid, usename::text as role, coalesce(application_name, '') as application, coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as seconds
  from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid()
   and (xact_start is not null or backend_xid is not null or backend_xmin is not null)
 order by xact_start nulls last, pid
 limit 20

-- name: prepared_transactions
select gid, owner::text as role, extract(epoch from clock_timestamp() - prepared)::float8 as seconds
  from pg_prepared_xacts
 where database = current_database()
 order by prepared

-- name: replication_slots
-- The slots that no receiver uses, and how much WAL each of them keeps.
select slot_name::text as name, slot_type as type,
       case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint end as bytes
  from pg_replication_slots
 where not active and not temporary
 order by slot_name

-- name: replication
-- What logical replication needs of the server, and how much of it is used.
select current_setting('wal_level') as wal_level,
       current_setting('max_replication_slots')::integer as slots,
       (select count(*) from pg_replication_slots) as slots_used,
       current_setting('max_wal_senders')::integer as senders,
       (select count(*) from pg_stat_get_wal_senders()) as senders_used

-- name: publications
-- The publications of the log. Row filters and lists of columns are as PostgreSQL 15 has them; older servers have none.
select p.pubname::text as name, p.pubinsert as inserts, p.pubupdate or p.pubdelete or p.pubtruncate as more,
       to_jsonb(r) ->> 'prqual' is not null as filtered, to_jsonb(r) ->> 'prattrs' is not null as columns
  from pg_publication p
  left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = '{schema}.outbox'::regclass
 where p.pubname in (select t.pubname from pg_publication_tables t where t.schemaname = '{schema}' and t.tablename = 'outbox')
 order by p.pubname

-- name: logical_slots
-- The slots of logical replication, of all databases.
select slot_name::text as name, plugin::text as plugin, database = current_database() as of_this_database, active, wal_status,
       case when not pg_is_in_recovery()
            then pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn)::bigint end as behind_bytes,
       (select k.lost from {schema}.replication_slots k where k.slot = slot_name::text and k.lost is not null limit 1) as lost
  from pg_replication_slots
 where slot_type = 'logical'
 order by slot_name

-- name: replication_roles
-- The roles that could carry the log, and what they may do.
select rolname::text as role, rolcanlogin as login, rolreplication or rolsuper as replication,
       has_schema_privilege(oid, '{schema}', 'usage') as usage,
       has_table_privilege(oid, '{schema}.outbox'::regclass, 'select') as reads
  from pg_roles
 where rolname !~ '^pg_'
 order by rolname

-- name: transaction_ids
select age(datfrozenxid)::bigint as age, current_setting('autovacuum_freeze_max_age')::bigint as freeze_max_age
  from pg_database
 where datname = current_database()

-- name: autovacuum
select current_setting('autovacuum') = 'on' as running, current_setting('track_counts') = 'on' as counting,
       array(select relname::text from pg_class
              where relnamespace = '{schema}'::regnamespace
                and exists (select from unnest(reloptions) as option
                             where option ~* '^autovacuum_enabled=(false|off|no|f|n|0)$')
              order by relname) as disabled

-- name: dead_rows
select relname::text as table, n_live_tup as live, n_dead_tup as dead,
       extract(epoch from clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float8 as vacuumed_seconds
  from pg_stat_all_tables
 where schemaname = '{schema}'
 order by n_dead_tup desc, relname

-- name: hot_updates
select n_tup_upd as updates, n_tup_hot_upd as hot from pg_stat_all_tables where relid = '{schema}.lanes'::regclass

-- name: timeouts
-- What ends sessions or statements of this session's role, and of the roles of relays that are connected: as the server
-- decides for a new session, a role's setting in this database first. A role's own value is a text such as 5s.
with roles as (
    select oid, rolname::text as role from pg_roles
     where rolname = session_user
        or oid in (select usesysid from pg_stat_activity
                    where datname = current_database() and application_name in ('postroad listen', 'postroad liveness'))),
given as (
    select r.role, s.name, substring(entry from length(s.name) + 2) as value,
           row_number() over (partition by r.role, s.name
                              order by d.setrole <> 0 desc, d.setdatabase <> 0 desc) as rank
      from roles r
      join pg_db_role_setting d on d.setrole in (0, r.oid)
       and d.setdatabase in (0, (select oid from pg_database where datname = current_database())),
           unnest(d.setconfig) as entry,
           (values ('statement_timeout'), ('idle_session_timeout'), ('transaction_timeout')) as s (name)
     where starts_with(entry, s.name || '='))
select r.role, current_database()::text as database, s.name,
       coalesce(g.value, case when own.value is null then s.reset_val else s.boot_val end) as value
  from roles r
  join pg_settings s on s.name in ('statement_timeout', 'idle_session_timeout', 'transaction_timeout')
  left join given g on g.role = r.role and g.name = s.name and g.rank = 1
  left join given own on own.role = session_user::text and own.name = s.name and own.rank = 1
 order by r.role, s.name

-- name: connections
-- Connections in use and allowed: of the server, of this database, and of this role; -1 is no limit.
select (select sum(numbackends) from pg_stat_database)::bigint as used,
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
           - coalesce(current_setting('reserved_connections', true), '0')::bigint as allowed,
       (select numbackends from pg_stat_database where datname = d.datname)::bigint as used_by_database,
       d.datconnlimit::bigint as allowed_for_database,
       (select count(*) from pg_stat_activity where usesysid = r.oid) as used_by_role,
       r.rolconnlimit::bigint as allowed_for_role, r.rolname::text as role, d.datname::text as database
  from pg_database d, pg_roles r
 where d.datname = current_database() and r.rolname = session_user

-- name: payload_readers
-- Roles that may add messages and read payloads, without being the owner or a relay: a relay may delete messages and may
-- not change payloads.
select r.rolname::text as role
  from pg_roles r, pg_class t
 where t.oid = '{schema}.outbox'::regclass
   and r.rolcanlogin and not r.rolsuper and not pg_has_role(r.oid, t.relowner, 'usage')
   and has_column_privilege(r.oid, t.oid, 'payload', 'insert')
   and has_column_privilege(r.oid, t.oid, 'payload', 'select')
   and not (has_table_privilege(r.oid, t.oid, 'delete') and not has_column_privilege(r.oid, t.oid, 'payload', 'update'))
 order by r.rolname

-- name: relay_roles
-- The roles of relays that are connected now.
select distinct r.rolname::text as role, r.rolsuper as superuser
  from pg_stat_activity a
  join pg_roles r on r.oid = a.usesysid
 where a.datname = current_database()
   and (a.application_name in ('postroad listen', 'postroad liveness')
        or a.pid in (select lock_pid from {schema}.relays where alive_until > now()))
 order by 1

-- name: sinks
-- Each sink: how long no relay has served it, its live relays and its lanes, and since when it has been paused.
select s.sink, s.destination,
       extract(epoch from clock_timestamp()
               - greatest(s.served_at,
                          (select max(heartbeat_at) from {schema}.relays r where r.sink = s.sink),
                          (select max(least(lease_until, now())) from {schema}.lanes l
                            where l.sink = s.sink and lease_until is not null)))::float8 as unserved_seconds,
       (select count(*) from {schema}.relays r where r.sink = s.sink and r.alive_until > now()) as relays,
       (select count(*) from {schema}.lanes l where l.sink = s.sink) as lanes,
       extract(epoch from clock_timestamp() - p.since)::float8 as paused_seconds, p.who as paused_by
  from {schema}.sinks s
  left join {schema}.pauses p on p.sink = s.sink
 order by s.sink

-- name: log_age
-- The oldest message, and the sink whose lane is furthest behind.
select extract(epoch from clock_timestamp() - created_at)::float8 as seconds, position,
       (select sink from {schema}.lanes order by position, sink limit 1) as slowest,
       (select min(position) from {schema}.lanes) as slowest_position,
       exists (select from {schema}.deferred d
                where d.position = o.position and d.state in ('retrying', 'sending', 'held', 'dead')) as deferred
  from (select position, created_at from {schema}.outbox order by position limit 1) o

-- name: relays
-- Live relays, and those that died less than a day ago.
select sink, version, host, pid, alive_until > now() as alive,
       extract(epoch from clock_timestamp() - heartbeat_at)::float8 as heartbeat_seconds
  from {schema}.relays
 order by sink, started_at

-- name: epochs
select sink, lane, epoch from {schema}.lanes order by sink, lane

-- name: holds
select sink, key, who, extract(epoch from clock_timestamp() - since)::float8 as seconds
  from {schema}.holds
 order by since

-- name: blocked_routes
-- Routes that messages wait for because the broker takes none, those with most messages first.
select sink, route, count(*) as messages, extract(epoch from clock_timestamp() - min(deferred_at))::float8 as seconds,
       max(error) as error
  from {schema}.deferred
 where route is not null and state = 'held'
 group by sink, route
 order by messages desc, sink, route
 limit 20

-- name: refused_dead_letters
-- Dead messages whose copy for the dead-letter topic was refused, newest first; relay/derived.py writes these words.
select sink, error
  from {schema}.deferred
 where state = 'dead' and error like '%; its dead letter for topic % was refused: %'
 order by position desc
 limit 20

-- name: newest_messages
-- What the topic of a message at a broker is made of.
select topic, type, key, headers::text as headers from {schema}.outbox order by position desc limit 200

-- name: largest_message
-- The largest payload of the newest messages. Not every role may read it.
select max(octet_length(payload))::bigint as bytes
  from (select payload from {schema}.outbox order by position desc limit 200) newest

-- name: consumers
-- How many processes of each consumer are alive, and when the last of them was seen. One that ended in good order has no row.
select consumer, count(*) filter (where alive_until > now()) as alive,
       extract(epoch from clock_timestamp() - max(heartbeat_at))::float8 as heartbeat_seconds,
       (array_agg(host || ' (' || pid || ')' order by heartbeat_at desc))[1] as last
  from {schema}.consumers
 group by consumer
 order by consumer

-- name: running_attempts
-- Handlers that are said to run, by consumer, and the oldest of them.
select consumer, count(*) as messages, max(extract(epoch from clock_timestamp() - changed_at))::float8 as seconds
  from {schema}.inbox_attempts
 where running and dead_at is null
 group by consumer
 order by consumer
