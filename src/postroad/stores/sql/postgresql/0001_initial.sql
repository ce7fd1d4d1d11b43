-- The whole schema of postroad.
-- Every statement may run again: what `postroad migrate --sql` prints can be applied twice.
--
-- Names are looked up in pg_catalog alone, whatever the caller's search_path is: another role could put a function or an
-- operator of the same name into a schema on that path. The migration itself runs with search_path pg_catalog, pg_temp.
-- Functions can be executed only by roles that were granted them (see grants/). What one process at a time may do is
-- guarded by a row lock in a table of this schema, because any role can take an advisory lock.

create schema if not exists {schema};

-- One row per migration that was applied.
create table if not exists {schema}.migrations (
    version    integer     primary key,
    applied_at timestamptz not null default now()
);

-- One row. `min_client` is the oldest version of the schema whose code may still work with this database.
-- `system_identifier` names the cluster: transaction ids (outbox.xid) and snapshots (lanes) mean something only there.
create table if not exists {schema}.installation (
    only_row          boolean primary key default true check (only_row),
    min_client        integer not null,
    system_identifier bigint  not null
);

-- One row for each job that only one transaction may do at a time. The transaction locks the row and does not change it.
create table if not exists {schema}.locks (name text primary key);
insert into {schema}.locks (name) values ('naps'), ('retention'), ('scheduled') on conflict do nothing;


-- == The log ==========================================================================================================

-- Rows are inserted and, long after they were delivered, deleted. They are never updated.
-- Columns of a fixed width come first, where PostgreSQL finds them fastest.
create table if not exists {schema}.outbox (
    xid          xid8        not null default pg_current_xact_id(),
    position     bigint      not null generated always as identity primary key,
    created_at   timestamptz not null default now(),
    id           uuid        not null,
    slot         smallint    not null check (slot between 0 and 1023),
    topic        text        not null check (octet_length(topic) between 1 and 255),
    type         text        not null check (octet_length(type) between 1 and 255),
    key          text                 check (octet_length(key) between 1 and 1024),
    content_type text        not null,
    headers      json        not null check (json_typeof(headers) = 'object'),
    payload      bytea       not null,
    -- The role that added the message, which may cancel it. session_user, because an application can change current_user
    -- (SET ROLE), and a SECURITY DEFINER function does.
    added_by     text        default session_user,
    constraint outbox_id unique (id)
);
create index if not exists outbox_xid on {schema}.outbox (xid);

-- Messages to be sent later. A due message moves into the log and gets its position there. Of messages that are due at the
-- same time, the one that was added first moves first, so the messages of a key stay in order.
create table if not exists {schema}.scheduled (
    number       bigint      not null generated always as identity,
    due_at       timestamptz not null,
    created_at   timestamptz not null default now(),
    id           uuid        not null primary key,
    slot         smallint    not null check (slot between 0 and 1023),
    topic        text        not null check (octet_length(topic) between 1 and 255),
    type         text        not null check (octet_length(type) between 1 and 255),
    key          text                 check (octet_length(key) between 1 and 1024),
    content_type text        not null,
    headers      json        not null check (json_typeof(headers) = 'object'),
    payload      bytea       not null,
    added_by     text        default session_user,
    constraint scheduled_due_at_check check ( -- what every calendar has, Python's among them
        due_at >= timestamptz '1900-01-01 00:00:00+00' and due_at < timestamptz '9999-01-01 00:00:00+00')
);
create index if not exists scheduled_due on {schema}.scheduled (due_at, number);

-- With lz4, messages of 20 KB are added about twice as fast as with pglz, PostgreSQL's default. It needs PostgreSQL 14, and a
-- server that was built with it. A column whose storage or compression was set by hand stays as it is.
do $$
declare
    log text;
begin
    if not exists (select from pg_settings where name = 'default_toast_compression' and 'lz4' = any(enumvals)) then
        return;
    end if;
    for log in
        select attrelid::regclass from pg_attribute
         where attrelid in ('{schema}.outbox'::regclass, '{schema}.scheduled'::regclass)
           and attname = 'payload' and attstorage = 'x' and attcompression = ''
    loop
        execute format('alter table %s alter column payload set compression lz4', log);
    end loop;
end
$$;


-- == Sinks and their lanes ============================================================================================

-- One row per sink. Whatever gives the sink a destination or a filter, takes one of its lanes or removes the sink locks this
-- row, so these never happen at the same time.
-- `filter` is the filter as its relays have it (sink_filter.py). The columns after it are made of it, for `takes`: a topic is
-- wanted if it is like one of `topics` and, unless that is null, matches `topics_regex`. Null: the filter does not ask.
create table if not exists {schema}.sinks (
    served_at      timestamptz not null default clock_timestamp(), -- when a relay was last started for it, or stopped
    sink           text        not null primary key,
    destination    text,       -- where its relays deliver to, without secrets; null: not known
    filter         text,       -- null: it takes every message
    topics         text[],
    topics_regex   text,
    excluded       text[],
    excluded_regex text,
    types          text[],
    sources        text[]
);

-- A lane's cursor: it has dealt with every row of its slots with a position up to `position` that `snapshot` shows.
-- `late_position` and `late_snapshot` are how far a pass over late rows has come.
-- `horizon`: no row with this xid or a higher one has a position up to `position`; null: not known. read_page in queries.sql
-- says why, and what it is for. Whatever moves a cursor by hand, or gives rows another xid, sets it to null.
create table if not exists {schema}.lanes (
    sink          text        not null,
    lane          smallint    not null,
    first_slot    smallint    not null,
    last_slot     smallint    not null,
    position      bigint      not null,
    snapshot      pg_snapshot not null,
    late_position bigint,
    late_snapshot pg_snapshot,
    horizon       xid8,
    owner         uuid,                         -- the relay that owns it, until lease_until
    epoch         bigint      not null default 0,   -- raised whenever the owner changes
    version       bigint      not null default 0,   -- raised by every write
    lease_until   timestamptz,
    primary key (sink, lane),
    check ((late_position is null) = (late_snapshot is null))
) with (fillfactor = 10); -- updated all the time: free space on the page keeps the updates HOT

-- One row per sink that follows a replication slot, by which another program reads the log and carries it. A slot that was
-- dropped and made anew has the same name, and what was added in between is in neither of the two. PostgreSQL tells slots of
-- one name apart only by how many transactions they have decoded: a number that falls belongs to another slot, unless the
-- server has lost its statistics. A server that was promoted has another timeline, and no slot, or another one.
create table if not exists {schema}.replication_slots (
    transactions bigint not null,            -- decoded by the slot when the sink's cursor was last moved
    sink         text   not null primary key,
    slot         text   not null,
    timeline     text   not null,
    statistics   text   not null,            -- since when the server has counted; a crash begins anew
    lost         text                        -- why the slot is not the one that the sink followed; null: it is
);

-- One row per relay. A relay deletes its row when it stops; the row of one that died is kept for a day, for operators.
create table if not exists {schema}.relays (
    owner          uuid        primary key,
    pid            integer     not null,
    heartbeats     bigint      not null default 1,
    started_at     timestamptz not null default clock_timestamp(),
    heartbeat_at   timestamptz not null default clock_timestamp(),
    alive_until    timestamptz not null,    -- unless there is another heartbeat
    lock_key       bigint,                  -- the advisory lock that its session holds; null: it holds none
    server_started text,                    -- server_started() of the server on which it holds that lock
    sink           text        not null,
    host           text        not null,
    version        text        not null,
    lock_pid       integer,                 -- the server process that holds the lock; another holder does not count
    constraint relays_lock check ((lock_key is null) = (server_started is null))
) with (fillfactor = 50);

-- Whether a lane has dealt with a message. Retention, status and views all use this one rule.
-- This function and slot_of are used inside larger statements and must be inlined, which PostgreSQL does only for functions
-- without SET. So every name in them is qualified. (Every "operator(...)" has the same precedence, hence the parentheses.)
create or replace function {schema}.passed("position" bigint, xid xid8, lane {schema}.lanes) returns boolean
language sql immutable parallel safe as
$$ select $1 operator(pg_catalog.<=) ($3).position and pg_catalog.pg_visible_in_snapshot($2, ($3).snapshot) $$;
revoke all on function {schema}.passed(bigint, xid8, {schema}.lanes) from public;

-- Whether a sink takes a message. The reading statements have the same rule as {taken}.
-- ->> fails on a text with a NUL, hence the test for \u0000: the headers may be an application's own.
create or replace function {schema}.takes(sink {schema}.sinks, topic text, type text, headers json) returns boolean
language sql immutable parallel safe as
$$ select ($1).filter is null
       or (($1).topics is null or $2 operator(pg_catalog.~~) any (($1).topics)
                                  and (($1).topics_regex is null or $2 operator(pg_catalog.~) ($1).topics_regex))
          and not (($1).excluded is not null and $2 operator(pg_catalog.~~) any (($1).excluded)
                   and (($1).excluded_regex is null or $2 operator(pg_catalog.~) ($1).excluded_regex))
          and (($1).types is null or $3 operator(pg_catalog.=) any (($1).types))
          and (($1).sources is null
               or coalesce(case when pg_catalog.json_typeof($4 operator(pg_catalog.->) 'source') operator(pg_catalog.=) 'string'
                                 and pg_catalog.strpos($4::pg_catalog.text, '\u0000') operator(pg_catalog.=) 0
                                then ($4 operator(pg_catalog.->>) 'source') operator(pg_catalog.=) any (($1).sources) end, false)) $$;
revoke all on function {schema}.takes({schema}.sinks, text, text, json) from public;

-- The slot of a key, as message.py has it.
create or replace function {schema}.slot_of(text) returns smallint
language sql immutable strict parallel safe as
$$ select (((pg_catalog.get_byte(digest, 0) operator(pg_catalog.*) 256)
            operator(pg_catalog.+) pg_catalog.get_byte(digest, 1)) operator(pg_catalog.%) 1024)::pg_catalog.int2
     from pg_catalog.sha256(pg_catalog.convert_to($1, 'UTF8')) digest $$;
revoke all on function {schema}.slot_of(text) from public;

-- When the server was started. It includes when statistics were reset, because a crash of one process resets them and
-- drops all advisory locks without a restart of the postmaster.
create or replace function {schema}.server_started() returns text
language sql stable set search_path = pg_catalog, pg_temp as
$$ select pg_postmaster_start_time()::text || coalesce(' ' || (select stats_reset::text from pg_stat_bgwriter), '') $$;
revoke all on function {schema}.server_started() from public;

-- A replication slot; no row if there is none with this name. The statistics are read after the slot, so that they are never
-- those of an earlier slot. `confirmed` is confirmed_flush_lsn as a number: what its reader has carried.
-- In plpgsql, because PostgreSQL 13 has no statistics of slots, and would refuse the function.
create or replace function {schema}.replication_slot(name text)
returns table (
    active boolean, confirmed bigint, of_this_database boolean, wal_status text, transactions bigint, timeline text,
    statistics text)
language plpgsql stable set search_path = pg_catalog, pg_temp as
$$
begin
    if current_setting('server_version_num')::integer < 140000 then
        raise exception 'postroad: a sink can follow a replication slot from PostgreSQL 14 on';
    end if;
    return query
    select s.active, (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, s.database = current_database(), s.wal_status,
           coalesce(counted.total_txns, 0), left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
           coalesce((select extract(epoch from b.stats_reset)::text from pg_stat_bgwriter b), '')
      from pg_replication_slots s
      left join lateral pg_stat_get_replication_slot(s.slot_name::text) counted on s.slot_type = 'logical'
     where s.slot_name = $1;
end
$$;
revoke all on function {schema}.replication_slot(text) from public;

-- The server processes that hold an advisory lock of this database. The caller must not hold it.
create or replace function {schema}.lock_holders(key bigint) returns setof integer
language sql stable set search_path = pg_catalog, pg_temp as
$$ select pid from pg_locks
    where locktype = 'advisory' and granted and objsubid = 1
      and database = (select oid from pg_database where datname = current_database())
      and ((classid::bigint << 32) | objid::bigint) = key $$;
revoke all on function {schema}.lock_holders(bigint) from public;


-- == Deferred messages ================================================================================================

-- One row per sink and message that needs attention of its own: it was refused, waits behind a message that was, or an
-- operator has decided about it. It refers to the log by position and copies no payload. lifecycle.py has the states, and
-- what moves a message from one to the next.
-- Retention and cancel ask by position, so the primary key begins with it.
-- The first blocking row of a key is its head. Of the rows of a key only the head is ever due; the others wait for it.
create table if not exists {schema}.deferred (
    sink            text        not null,
    position        bigint      not null,
    lane            smallint    not null,
    attempts        integer     not null default 0 check (attempts >= 0),
    due_at          timestamptz,                -- not before then; null: something else must happen first
    epoch           bigint,                     -- the lane's, while the lane sends it
    blocks          boolean     not null,       -- later messages of its key wait for it
    unsure          boolean     not null default false, -- it was sent, and the broker's answer could not be recorded
    state           text        not null,
    key             text,                       -- null: no order is to be kept
    route           text,                       -- the blocked route that it waits for
    error           text        check (length(error) <= 2000),
    deferred_at     timestamptz not null default now(),
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    noticed         boolean     not null default true,  -- false: canceled, and its lane has not loaded that yet
    primary key (position, sink),
    constraint deferred_state check (
        state in ('retrying', 'sending', 'held', 'dead', 'canceled', 'dropped', 'skipped')),
    constraint deferred_blocks check (
        state = 'dead' or blocks = (state in ('retrying', 'sending', 'held'))),
    constraint deferred_due check (
        case state when 'retrying' then due_at is not null when 'held' then true else due_at is null end),
    constraint deferred_epoch check ((epoch is not null) = (state = 'sending'))
);
create index if not exists deferred_due on {schema}.deferred (sink, lane, due_at) where due_at is not null;
create index if not exists deferred_key on {schema}.deferred (sink, lane, key, position) where blocks and key is not null;
create index if not exists deferred_sending on {schema}.deferred (sink, lane) where epoch is not null;
create index if not exists deferred_route on {schema}.deferred (sink, lane, route, position) where route is not null;
create index if not exists deferred_unnoticed on {schema}.deferred (sink, lane) where not noticed;
create index if not exists deferred_state on {schema}.deferred (sink, state, position);
create index if not exists deferred_error on {schema}.deferred (sink, state, position) where error is not null;

-- Every failed attempt. It outlives the row in `deferred` and is deleted when the message leaves the log.
create table if not exists {schema}.attempts (
    sink      text        not null,
    position  bigint      not null,
    attempt   integer     not null,
    failed_at timestamptz not null default clock_timestamp(),
    error     text        not null check (length(error) <= 2000),
    primary key (position, sink, failed_at, attempt)
);


-- == What operators see and do ========================================================================================

-- How far each lane had come, and when: at most one row a second, and none while it stands still. The first row of a
-- lane that has passed a message tells when it was published. A row at -infinity means: at a time that is not known.
create table if not exists {schema}.progress (
    sink      text        not null,
    lane      smallint    not null,
    position  bigint      not null,
    at        timestamptz not null default clock_timestamp(),
    snapshot  pg_snapshot not null,
    published integer     not null,
    refused   integer     not null,
    latencies integer[],                -- how many of the published took how long, in the buckets of latency.py; null: not measured
    primary key (sink, lane, position, at)
);
create index if not exists progress_at on {schema}.progress (at);

-- When a message was published that had been deferred, or was published again.
create table if not exists {schema}.delivered (
    sink         text        not null,
    position     bigint      not null,
    delivered_at timestamptz not null default now(),
    primary key (position, sink)
);

-- Keys that an operator holds: none of their messages is published to that sink.
create table if not exists {schema}.holds (
    sink   text        not null,
    key    text        not null,
    slot   smallint    not null,
    since  timestamptz not null default now(),
    who    text        not null,
    reason text,
    primary key (sink, key)
);

-- Sinks that an operator has paused.
create table if not exists {schema}.pauses (
    sink   text        not null primary key,
    since  timestamptz not null default now(),
    who    text        not null,
    reason text
);

-- Messages that an operator has decided about before their lane has read them. Each has a row in `deferred`; the lane
-- passes over them and deletes this row afterwards.
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

-- Copies of dead messages that wait to be published to another sink, `sink`. A copy is written in the transaction that
-- records the death, and deleted after the other sink's broker has confirmed it. While it waits, the message stays in the log.
create table if not exists {schema}.copies (
    sink     text        not null,
    dead_in  text        not null,      -- the sink in which the message died
    position bigint      not null,
    id       uuid        not null,      -- the copy's own
    attempts integer     not null,      -- of the message, in the sink in which it died
    error    text        not null check (length(error) <= 2000),
    died_at  timestamptz not null default now(),
    tries    integer     not null default 0,    -- how often the copy was refused
    due_at   timestamptz not null default now(),
    primary key (position, sink, dead_in)
);
create index if not exists copies_due on {schema}.copies (sink, due_at);

-- Everything that operators have changed. Rows are added and never changed (but see forget_in_audit) or deleted.
create table if not exists {schema}.audit (
    number    bigint      not null generated always as identity primary key,
    at        timestamptz not null default now(),
    who       text        not null,     -- the name that the operator gave
    command   text        not null,
    arguments json        not null,
    reason    text,
    changed   bigint      not null,
    role      text        default session_user, -- the role that logged in, which only a superuser can change
    continues bigint      -- a later batch of a command: the number of its first line
);
create index if not exists audit_continues on {schema}.audit (continues) where continues is not null;

-- Every message at every sink, for people. Ask by id or position: without a condition it has a row for all of the log.
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
  left join {schema}.sinks s on s.sink = l.sink
  left join {schema}.deferred d on d.position = o.position and d.sink = l.sink
 where d.position is not null or {schema}.takes(s, o.topic, o.type, o.headers);

-- Remove a key from the audit. Lines of the audit can't be changed in any other way. The caller must first write a line
-- about it, with the same role and in the same transaction; `line` is its number.
create or replace function {schema}.forget_in_audit(key text, line bigint) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
begin
    if not exists (select from {schema}.audit
                    where number = $2 and command = 'forget' and role = session_user and at = now()) then
        raise exception 'postroad: line % of the audit does not say that this transaction forgets something', $2;
    end if;
    update {schema}.audit
       set arguments = jsonb_set(arguments::jsonb, '{key}', '"(forgotten)"')::json,
           reason = case when reason is not null then '(forgotten)' end
     where arguments ->> 'key' = $1;
end
$$;
revoke all on function {schema}.forget_in_audit(text, bigint) from public;


-- == Adding and canceling =============================================================================================

-- Whether the session may act for a role: it is that role or a member of it; or it may change messages anyway, as
-- operators and the owner may.
create or replace function {schema}.acts_as(role text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as
$$
    select $1 = session_user
        or exists (select from pg_roles where rolname = $1 and pg_has_role(session_user, oid, 'member'))
        or has_table_privilege(session_user, '{schema}.deferred'::regclass, 'update')
$$;
revoke all on function {schema}.acts_as(text) from public;

-- Cancel a message in the caller's transaction. Returns 'canceled', 'too late', 'unknown' or 'not yours', which is true
-- once the transaction commits.
-- No lane is locked. What moves a message into the log, or sends it again, locks the rows that this function changes, and
-- passes over those that are locked. A message that is 'too late' stays unlocked: the error takes the changes back.
-- A lane that has passed a message with a row in `deferred` never reads it again; one that has not will send it.
-- Every statement sees what was committed before it began; under REPEATABLE READ the loser of a race gets an error.
create or replace function {schema}.cancel(id uuid) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    was_scheduled boolean;
    message       record;
begin
    delete from {schema}.scheduled where id = $1 and (added_by is null or {schema}.acts_as(added_by));
    was_scheduled := found;
    select position, xid, slot, topic, type, headers, added_by is null or {schema}.acts_as(added_by) as ours
      into message from {schema}.outbox where id = $1;
    if not found or (was_scheduled and not message.ours) then
        if was_scheduled then
            insert into {schema}.audit (who, command, arguments, changed)
            values (session_user, 'cancel', json_build_object('id', $1), 1);
            return 'canceled';
        end if;
        return case when exists (select from {schema}.scheduled where id = $1) then 'not yours' else 'unknown' end;
    elsif not message.ours then
        return 'not yours';
    end if;
    -- Most messages in the log are on their way or have arrived.
    if not exists (select from {schema}.deferred where position = message.position) then
        return 'too late';
    end if;
    begin
        update {schema}.deferred
           set state = 'canceled', blocks = false, due_at = null, route = null, noticed = false
         where position = message.position and state in ('retrying', 'held', 'dead') and not unsure;
        if found then
            insert into {schema}.audit (who, command, arguments, changed)
            values (session_user, 'cancel', json_build_object('id', $1), 1);
        end if;
        if exists (select from {schema}.lanes l left join {schema}.sinks s on s.sink = l.sink
                    where message.slot between l.first_slot and l.last_slot
                      and ({schema}.takes(s, message.topic, message.type, message.headers)
                           or exists (select from {schema}.deferred d
                                       where d.position = message.position and d.sink = l.sink))
                      and not (({schema}.passed(message.position, message.xid, l)
                                or coalesce(message.position <= l.late_position
                                            and pg_visible_in_snapshot(message.xid, l.late_snapshot), false))
                               and exists (select from {schema}.deferred d
                                            where d.position = message.position and d.sink = l.sink
                                              and d.state = 'canceled'))) then
            raise sqlstate 'PR001';
        end if;
    exception
        when sqlstate 'PR001' then return 'too late';
    end;
    return 'canceled';
end
$$;
revoke all on function {schema}.cancel(uuid) from public;

-- Called with ids that are in the log or among the scheduled messages already. That is fine if the same message was added
-- before, and an error if it is another one. An application can't read the tables itself. Volatile, so that it sees what
-- was committed, and what the calling statement has written, up to now.
create or replace function {schema}.check_same(
    ids uuid[], topics text[], keys text[], types text[], payloads bytea[], content_types text[], headers text[])
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
declare
    other record;
begin
    select new.id, concat_ws(', ',
               case when not {schema}.acts_as(there.added_by) then 'the role that added it' end,
               case when there.source is distinct from new.headers::json ->> 'source' then 'source' end,
               case when there.type <> new.type then 'type' end,
               case when there.topic <> new.topic then 'topic' end,
               case when there.key is distinct from new.key then 'key' end,
               case when there.content_type <> new.content_type then 'content type' end,
               case when there.payload <> new.payload then 'payload' end) as differs
      into other
      from unnest($1, $2, $3, $4, $5, $6, $7)
           with ordinality as new (id, topic, key, type, payload, content_type, headers, ordinality),
           lateral (select o.added_by, o.headers ->> 'source' as source, o.type, o.topic, o.key, o.content_type, o.payload
                      from {schema}.outbox o where o.id = new.id
                    union all
                    select s.added_by, s.headers ->> 'source', s.type, s.topic, s.key, s.content_type, s.payload
                      from {schema}.scheduled s where s.id = new.id) there
     where not {schema}.acts_as(there.added_by)
        or (there.source, there.type, there.topic, there.key, there.content_type, there.payload)
           is distinct from
           (new.headers::json ->> 'source', new.type, new.topic, new.key, new.content_type, new.payload)
     order by new.ordinality limit 1;
    if found then
        -- Of a message of another role, nothing else is disclosed.
        raise exception 'another message has the id % already; what differs: %', other.id,
                        case when other.differs like 'the role%' then 'the role that added it' else other.differs end
              using errcode = 'PR409';
    end if;
end
$$;
revoke all on function {schema}.check_same(uuid[], text[], text[], text[], bytea[], text[], text[]) from public;

-- Add a message from SQL, in the caller's transaction, with the slot that Outbox.add would give it.
-- `add` takes JSON, `add_bytes` anything.
create or replace function {schema}.add_bytes(
    source         text,
    type           text,
    payload        bytea,
    content_type   text  default 'application/octet-stream',
    key            text  default null,
    topic          text  default null,
    id             uuid  default null,
    headers        jsonb default '{}',
    correlation_id text  default null,
    causation_id   text  default null
) returns uuid
language plpgsql set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    -- A UUIDv7: the time in milliseconds laid over a random UUID, and its version set from 4 to 7.
    message_id uuid := coalesce($7, encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid);
    all_headers json := ($8 || jsonb_strip_nulls(jsonb_build_object(
        'source', $1, 'correlation_id', $9, 'causation_id', $10)))::json;
begin
    if $1 is null or $1 = '' then
        raise exception 'postroad: source is empty; say which service adds this message, such as ''/orders''';
    end if;
    if jsonb_typeof($8) is distinct from 'object' then
        raise exception 'postroad: headers is %; it must be an object of strings', left($8::text, 80);
    end if;
    if exists (select from jsonb_each($8) header where jsonb_typeof(header.value) <> 'string' or header.key = '') then
        raise exception 'postroad: headers is %; it must be an object of strings', left($8::text, 80);
    end if;
    if $8 ?| array['source', 'correlation_id', 'causation_id'] then
        raise exception 'postroad: headers names source, correlation_id or causation_id; use the arguments';
    end if;
    if octet_length($9) not between 1 and 255 or octet_length($10) not between 1 and 255 then
        raise exception 'postroad: correlation_id or causation_id is empty or longer than 255 bytes';
    end if;
    insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
    values (message_id, coalesce($6, $2), $5, {schema}.slot_of(coalesce($5, message_id::text)), $2, $3, $4, all_headers)
    on conflict do nothing;
    if not found then
        perform {schema}.check_same(array[message_id], array[coalesce($6, $2)], array[$5], array[$2], array[$3],
                                    array[$4], array[all_headers::text]);
    end if;
    return message_id;
end
$$;
revoke all on function {schema}.add_bytes(text, text, bytea, text, text, text, uuid, jsonb, text, text) from public;

create or replace function {schema}.add(
    source         text,
    type           text,
    payload        jsonb,
    key            text  default null,
    topic          text  default null,
    id             uuid  default null,
    headers        jsonb default '{}',
    correlation_id text  default null,
    causation_id   text  default null
) returns uuid
language sql set search_path = pg_catalog, pg_temp as
$$ select {schema}.add_bytes($1, $2, convert_to($3::text, 'UTF8'), 'application/json', $4, $5, $6, $7, $8, $9) $$;
revoke all on function {schema}.add(text, text, jsonb, text, text, uuid, jsonb, text, text) from public;

-- Raises the error about a row that breaks a limit; the triggers below call it for no other row. message.py has the same
-- limits. Triggers, not CHECKs, because a log that is restored from another cluster is updated, and a CHECK would fail for
-- a row that was there before the limit.
create or replace function {schema}.refuse_row() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp as
$$
begin
    raise exception '%', case
        when octet_length(new.payload) > 16777216 then
            format('postroad: payload has %s bytes and the limit is 16777216', octet_length(new.payload))
        when octet_length(new.headers::text) > 65536 then
            format('postroad: headers has %s bytes and the limit is 65536', octet_length(new.headers::text))
        when octet_length(new.content_type) > 255 then
            format('postroad: content_type has %s bytes and the limit is 255', octet_length(new.content_type))
        else
            format('postroad: slot is %s; for key %L it must be %s, as {schema}.slot_of(key) says',
                   new.slot, left(new.key, 80), {schema}.slot_of(new.key))
        end
        using errcode = 'check_violation', schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function {schema}.refuse_row() from public;


-- == Waking up relays =================================================================================================
-- NOTIFY takes a lock of the whole cluster, so the triggers use it only when a lane naps.

-- One row per napping lane; it means nothing after a crash. Each nap is a new row: under a long transaction, a row that is
-- updated again and again gets slow to find.
create unlogged table if not exists {schema}.naps (
    id         bigint      generated always as identity primary key,
    until      timestamptz not null,    -- the nap of a relay that died ends here
    first_slot smallint    not null,
    last_slot  smallint    not null,
    lane       smallint,                -- for operators: which lane naps
    marks      bigint      not null,    -- one bit per 16 slots, set if the lane has one of them; the sign bit is the first
    channel    text        not null,    -- the LISTEN channel of the relay
    listener   integer,                 -- the server process of its LISTEN connection; null: not known
    sink       text
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
create index if not exists naps_until on {schema}.naps (until);

-- The marks of all naps, or'ed into one number. A sequence, although nothing is counted: it is the only thing in a database
-- whose present value every transaction sees, whatever its snapshot.
-- Marks are set before the nap is committed, and stay set while it lasts. wipe_marks clears those of naps that have ended.
-- Both hold the row 'naps' of `locks`, and neither waits for it.
create sequence if not exists {schema}.napping as bigint minvalue -9223372036854775808 start 0;
grant select on sequence {schema}.napping to public;

-- Clear the marks of naps that have ended. A nap that is being marked holds the lock until it is visible, and with the
-- lock held this looks again. A nap that begins afterwards waits for this transaction as for every writer, so the lock is
-- released at once: by an error, which does not roll back a sequence. An old snapshot may not show all naps.
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
revoke all on function {schema}.wipe_marks() from public;

-- Notify the relays that nap on the slot of a new row. The trigger calls it only for a row whose slot is marked.
-- Volatile, so that in READ COMMITTED each statement here sees the naps of this moment. A relay first commits its nap and
-- then waits for the transactions that hold a lock on the log by then: one of the two always notices the other. For the
-- same reason, looking once per transaction is enough: "postroad.notified" has the marks that are done.
-- A transaction with one snapshot for all of its statements may not see a nap that is there: it always notifies, on the
-- channel named like the schema, on which every relay listens beside its own.
-- When a relay dies, the server process of its LISTEN connection is gone at once, long before its naps end. The list of
-- processes is cached for a whole transaction unless the cache is cleared. Such a nap is deleted here, unless another
-- transaction has locked its row: this function never waits for a nap's row.
-- When the notification queue is half full, a listener does not read it; a full queue would fail our commit.
create or replace function {schema}.wake_naps() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as
$$
declare
    moment timestamptz := clock_timestamp();
    notified bigint := coalesce(nullif(current_setting('postroad.notified', true), ''), '0')::bigint;
    mark bigint;
    nap record;
    listening boolean := false;
begin
    if tg_relid <> '{schema}.outbox'::regclass then
        return null;    -- the columns of another table are not known, nor what code their types would run
    end if;
    mark := 1::bigint << (63 - new.slot / 16);
    if notified & mark <> 0 or current_setting('postroad.notify', true) = 'off' then
        return null;
    elsif current_setting('transaction_isolation') <> 'read committed' then
        mark := -1;
        if pg_notification_queue_usage() <= 0.5 then
            perform pg_notify('{schema}', '');
        end if;
    else
        for nap in
            select n.* from {schema}.naps n where n.until > moment and n.marks & mark <> 0
        loop
            perform pg_stat_clear_snapshot();
            if not exists (select from pg_stat_get_activity(nap.listener)) then
                delete from {schema}.naps d
                 where d.id = (select n.id from {schema}.naps n where n.id = nap.id for update skip locked);
            else
                listening := true;
                if pg_notification_queue_usage() <= 0.5 then
                    perform pg_notify(nap.channel, concat(nap.first_slot, '-', nap.last_slot));
                end if;
            end if;
        end loop;
        if not listening then
            perform {schema}.wipe_marks();
        end if;
    end if;
    perform set_config('postroad.notified', (notified | mark)::text, true);
    return null;
end
$$;
revoke all on function {schema}.wake_naps() from public;

-- Relays look for due messages every few seconds; they are notified of those that are due sooner.
create or replace function {schema}.wake_scheduled() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as
$$
begin
    if tg_relid <> '{schema}.scheduled'::regclass then
        return null;
    end if;
    if current_setting('postroad.notify', true) is distinct from 'off'
       and exists (select from added where due_at < clock_timestamp() + interval '10 s')
       and pg_notification_queue_usage() <= 0.5 then
        perform pg_notify('{schema}', '');
    end if;
    return null;
end
$$;
revoke all on function {schema}.wake_scheduled() from public;


-- == The inbox ========================================================================================================

-- Messages that consumers have processed. A row is written in the handler's own transaction: it is there when the
-- handler's effect is there, and not otherwise.
-- Ids are texts, because those of other producers need not be UUIDs; collation "C" is the cheapest to compare.
create table if not exists {schema}.inbox (
    processed_at timestamptz not null default now(),
    consumer     text        collate "C" not null check (octet_length(consumer) between 1 and 255),
    id           text        collate "C" not null check (octet_length(id) between 1 and 1024),
    type         text        not null check (octet_length(type) <= 255),
    primary key (consumer, id)
);
create index if not exists inbox_processed_at on {schema}.inbox (consumer, processed_at);

-- Messages whose handler failed, that were delivered again, or that are dead letters. A row is written in a transaction of
-- its own, so it outlives the handler's rollback and the crash of its process.
create table if not exists {schema}.inbox_attempts (
    attempts   integer     not null default 0 check (attempts >= 0),
    crashes    integer     not null default 0 check (crashes >= 0), -- attempts that ended with their process
    running    boolean     not null default false,                  -- an attempt has begun and has not ended
    changed_at timestamptz not null default clock_timestamp(),
    dead_at    timestamptz,                                         -- when it went to the dead-letter queue
    consumer   text        collate "C" not null check (octet_length(consumer) between 1 and 255),
    id         text        collate "C" not null check (octet_length(id) between 1 and 1024),
    type       text        not null check (octet_length(type) <= 255),
    error      text        check (length(error) <= 2000),
    primary key (consumer, id)
);

-- Recent dead letters, for operators.
create index if not exists inbox_attempts_dead on {schema}.inbox_attempts (dead_at) where dead_at is not null;

-- The role that a consumer's name belongs to: the first that used it, unless an operator gives it to another.
create table if not exists {schema}.consumer_names (
    name  text        collate "C" primary key check (octet_length(name) between 1 and 255),
    role  text        not null,
    since timestamptz not null default now()
);

-- One row per running consumer. A consumer deletes its row when it ends; the row of one that died is kept for a week, for
-- operators. Consumers write it in transactions of their own `begin`, every few seconds; the numbers are those since its start.
create table if not exists {schema}.consumers (
    instance     uuid        primary key,       -- random, new for each start
    pid          integer     not null,
    heartbeats   bigint      not null default 1,
    started_at   timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    alive_until  timestamptz not null,          -- unless there is another heartbeat
    handled      bigint      not null,
    duplicates   bigint      not null,
    failed       bigint      not null,          -- attempts
    dead         bigint      not null,
    consumer     text        collate "C" not null check (octet_length(consumer) between 1 and 255),
    source       text        not null check (octet_length(source) <= 1024), -- what it receives from, without secrets
    host         text        not null check (octet_length(host) <= 255),
    version      text        not null check (octet_length(version) <= 255)
) with (fillfactor = 50);

-- Make sure that the session may use a consumer's name. The first role to use it gets it.
create or replace function {schema}.open_inbox(consumer text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as
$$
declare
    owner text;
begin
    select c.role into owner from {schema}.consumer_names c where c.name = $1;
    if not found then
        insert into {schema}.consumer_names (name, role) values ($1, session_user) on conflict do nothing;
        select c.role into owner from {schema}.consumer_names c where c.name = $1;
    end if;
    if owner <> session_user and not {schema}.acts_as(owner) then
        raise exception 'consumer "%" belongs to the role "%", and this session''s role is "%"', $1, owner, session_user
              using errcode = 'PR403',
                    hint = format('Use another name or the role "%s"; or let an operator give the name to this role: '
                                  'select {schema}.give_consumer(%L, %L)', owner, $1, session_user);
    end if;
end
$$;

-- For operators: give a consumer's name, and everything recorded under it, to another role.
create or replace function {schema}.give_consumer(consumer text, role text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
begin
    if not exists (select from pg_roles where rolname = $2) then
        raise exception 'role is "%"; there is no such role', $2 using errcode = 'undefined_object';
    end if;
    insert into {schema}.consumer_names as c (name, role) values ($1, $2)
    on conflict (name) do update set role = excluded.role, since = excluded.since;
    insert into {schema}.audit (who, command, arguments, changed)
    values (session_user, 'give_consumer', json_build_object('consumer', $1, 'role', $2), 1);
end
$$;

-- Record a message as processed; true if this is the first time. `id` is made of its source and its id.
-- If another transaction is about to process the same message, this waits for it, but no longer than `timeout`;
-- lock_timeout is restored afterwards.
-- default_transaction_read_only has no effect before the next transaction, and by then it is off again. The server reports
-- it to the driver, and that it is off again when a statement fails or the transaction ends. So the driver knows, without
-- a round trip, whether a handler has left its transaction in good order.
create or replace function {schema}.first_time(timeout text, consumer text, id text, type text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    before  text := current_setting('lock_timeout');
    setting text;  -- an assignment is evaluated at once, while `perform` runs a query
    first   boolean;
begin
    setting := set_config('lock_timeout', $1, true);
    setting := set_config('default_transaction_read_only', 'on', true);
    if not exists (select from {schema}.consumer_names where name = $2 and role = session_user) then
        perform {schema}.open_inbox($2);
    end if;
    insert into {schema}.inbox (consumer, id, type) values ($2, $3, $4) on conflict do nothing;
    first := found;
    setting := set_config('lock_timeout', before, true);
    return first;
end
$$;

-- The same for many; returns the ids that are new. Rows are inserted in the order of their ids, so two batches never
-- wait for each other in a circle.
create or replace function {schema}.first_times(timeout text, consumer text, ids text[], types text[]) returns text[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    before  text := current_setting('lock_timeout');
    setting text;
    first   text[];
begin
    setting := set_config('lock_timeout', $1, true);
    setting := set_config('default_transaction_read_only', 'on', true);
    if not exists (select from {schema}.consumer_names where name = $2 and role = session_user) then
        perform {schema}.open_inbox($2);
    end if;
    with noted as (
        insert into {schema}.inbox (consumer, id, type)
        select $2, new.id, new.type
          from unnest($3, $4) as new (id, type)
         order by new.id collate "C"
        on conflict do nothing
        returning id)
    select array_agg(noted.id) into first from noted;
    setting := set_config('lock_timeout', before, true);
    return first;
end
$$;

-- Called after a handler has failed. If the handler has committed its transaction by itself, the inbox's rows are there and
-- the messages would count as processed: they are deleted. Returns the state of that transaction; while it is in progress,
-- nothing is known.
create or replace function {schema}.undo_first_times(transaction text, consumer text, ids text[]) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    status text;
begin
    perform {schema}.open_inbox($2);
    begin
        status := pg_xact_status($1::xid8);
    exception
        when invalid_parameter_value then status := 'aborted';  -- "in the future": a crash of the server has forgotten it
    end;
    if $1::xid8 = pg_current_xact_id_if_assigned() then
        status := 'committed';  -- the handler's transaction was a savepoint of this one, and has ended
    elsif status = 'committed' and not pg_visible_in_snapshot($1::xid8, pg_current_snapshot()) then
        status := 'in progress';    -- rows that this transaction's snapshot does not see could not be deleted
    end if;
    if status = 'committed' then
        delete from {schema}.inbox where consumer = $2 and id = any($3);
    end if;
    return status;
end
$$;

-- Called before the handler of a redelivered message. An attempt that is still marked as running ended with its process.
-- Returns no row if the message was processed. A dead letter begins anew: it was sent again.
-- Here and below, a row that another handler has locked is not waited for longer than `timeout`.
create or replace function {schema}.begin_attempt(timeout text, consumer text, id text, type text, crashed text)
returns table (attempts integer, crashes integer, error text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform set_config('lock_timeout', $1, true);
    perform {schema}.open_inbox($2);
    return query
    insert into {schema}.inbox_attempts as a (consumer, id, type, running)
    select $2, $3, $4, true
     where not exists (select from {schema}.inbox i where i.consumer = $2 and i.id = $3)
    on conflict (consumer, id) do update
       set attempts = case when a.dead_at is null then a.attempts + a.running::integer else 0 end,
           crashes = case when a.dead_at is null then a.crashes + a.running::integer else 0 end,
           error = case when a.running then $5 else a.error end,
           running = true, changed_at = clock_timestamp(), dead_at = null
    returning a.attempts, a.crashes, a.error;
end
$$;

-- Called in the handler's own transaction: undone if that is rolled back, or its process dies.
create or replace function {schema}.end_attempt(consumer text, id text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform {schema}.open_inbox($1);
    update {schema}.inbox_attempts set running = false where consumer = $1 and id = $2;
end
$$;

-- Returns how many attempts have failed; null if the message was processed after all: the answer to a COMMIT may be lost.
create or replace function {schema}.fail_attempt(timeout text, consumer text, id text, type text, error text)
returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    failed integer;
begin
    perform set_config('lock_timeout', $1, true);
    perform {schema}.open_inbox($2);
    insert into {schema}.inbox_attempts as a (consumer, id, type, error, attempts)
    select $2, $3, $4, $5, 1
     where not exists (select from {schema}.inbox i where i.consumer = $2 and i.id = $3)
    on conflict (consumer, id) do update
       set attempts = case when a.dead_at is null then a.attempts + 1 else 1 end,
           crashes = case when a.dead_at is null then a.crashes else 0 end,
           error = excluded.error, running = false, changed_at = clock_timestamp(), dead_at = null
    returning attempts into failed;
    return failed;
end
$$;

create or replace function {schema}.note_dead(timeout text, consumer text, id text, type text, error text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform set_config('lock_timeout', $1, true);
    perform {schema}.open_inbox($2);
    insert into {schema}.inbox_attempts as a (consumer, id, type, error, dead_at)
    values ($2, $3, $4, $5, clock_timestamp())
    on conflict (consumer, id) do update
       set error = excluded.error, running = false, changed_at = clock_timestamp(), dead_at = clock_timestamp();
end
$$;

-- Delete a batch of messages that a consumer has processed long ago.
create or replace function {schema}.forget_processed(consumer text, older_than interval, batch integer)
returns setof text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    if $2 < interval '0' then
        raise exception 'postroad: older_than is %; it must not be negative', $2;
    end if;
    perform {schema}.open_inbox($1);
    return query
    delete from {schema}.inbox
     where ctid = any(array(
           select ctid from {schema}.inbox
            where consumer = $1 and processed_at < now() - $2
            order by processed_at limit $3 for update skip locked))
    returning id;
end
$$;

create or replace function {schema}.forget_attempts(consumer text, older_than interval, batch integer)
returns setof text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform {schema}.open_inbox($1);
    return query
    delete from {schema}.inbox_attempts
     where ctid = any(array(
           select ctid from {schema}.inbox_attempts
            where consumer = $1 and changed_at < now() - $2
            limit $3 for update skip locked))
    returning id;
end
$$;

-- A running consumer's row. It is never alive for longer than an hour without another heartbeat.
create or replace function {schema}.consumer_heartbeat(
    consumer text, instance uuid, host text, pid integer, version text, source text, alive interval,
    handled bigint, duplicates bigint, failed bigint, dead bigint)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform {schema}.open_inbox($1);
    insert into {schema}.consumers as c (
           consumer, instance, host, pid, version, source, alive_until, handled, duplicates, failed, dead)
    values ($1, $2, $3, $4, $5, $6, clock_timestamp() + least($7, interval '1 hour'), $8, $9, $10, $11)
    on conflict (instance) do update
       set heartbeats = c.heartbeats + 1, heartbeat_at = clock_timestamp(), alive_until = excluded.alive_until,
           handled = excluded.handled, duplicates = excluded.duplicates, failed = excluded.failed, dead = excluded.dead
     where c.consumer = $1;
end
$$;

create or replace function {schema}.consumer_ended(consumer text, instance uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform {schema}.open_inbox($1);
    delete from {schema}.consumers where consumer = $1 and instance = $2;
end
$$;

-- Delete the rows of consumers that died at least so long ago, and at least a day, whatever their names are: a consumer that
-- is not run any more could not do it.
create or replace function {schema}.forget_consumers(consumer text, older_than interval) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
begin
    perform {schema}.open_inbox($1);
    delete from {schema}.consumers
     where instance in (select c.instance from {schema}.consumers c
                         where c.alive_until < now() - greatest($2, interval '1 day')
                           for update skip locked);
end
$$;

revoke all on function {schema}.consumer_heartbeat(
    text, uuid, text, integer, text, text, interval, bigint, bigint, bigint, bigint) from public;
revoke all on function {schema}.consumer_ended(text, uuid) from public;
revoke all on function {schema}.forget_consumers(text, interval) from public;
revoke all on function {schema}.open_inbox(text) from public;
revoke all on function {schema}.give_consumer(text, text) from public;
revoke all on function {schema}.first_time(text, text, text, text) from public;
revoke all on function {schema}.first_times(text, text, text[], text[]) from public;
revoke all on function {schema}.undo_first_times(text, text, text[]) from public;
revoke all on function {schema}.begin_attempt(text, text, text, text, text) from public;
revoke all on function {schema}.end_attempt(text, text) from public;
revoke all on function {schema}.fail_attempt(text, text, text, text, text) from public;
revoke all on function {schema}.note_dead(text, text, text, text, text) from public;
revoke all on function {schema}.forget_processed(text, interval, integer) from public;
revoke all on function {schema}.forget_attempts(text, interval, integer) from public;


-- == Versions and triggers ============================================================================================

insert into {schema}.installation (min_client, system_identifier)
select 1, system_identifier from pg_control_system()
on conflict do nothing;
insert into {schema}.migrations (version) values (1) on conflict do nothing;

-- Every INSERT into the log evaluates these conditions, so they call no function in SQL: refuse_row's last condition is
-- slot_of(key) written out, at the price of one hash.
do $$
begin
    perform setval('{schema}.napping'::regclass, 0)
      where pg_sequence_last_value('{schema}.napping'::regclass) is null;
    if not exists (select from pg_trigger where tgname = 'wake_scheduled' and tgrelid = '{schema}.scheduled'::regclass) then
        create trigger wake_scheduled after insert on {schema}.scheduled
            referencing new table as added for each statement execute function {schema}.wake_scheduled();
    end if;
    -- A condition keeps the functions that its names meant when it was made: it is made again.
    drop trigger if exists wake_naps on {schema}.outbox;
    create trigger wake_naps after insert on {schema}.outbox for each row
        when (pg_sequence_last_value('{schema}.napping'::regclass) << (new.slot / 16) < 0)
        execute function {schema}.wake_naps();
    if not exists (select from pg_trigger where tgname = 'refuse_row' and tgrelid = '{schema}.scheduled'::regclass) then
        create trigger refuse_row before insert on {schema}.scheduled for each row
            when (octet_length(new.payload) > 16777216
                  or octet_length(new.headers::text) > 65536
                  or octet_length(new.content_type) > 255
                  or new.slot <> ('x' || encode(substring(sha256(convert_to(new.key, 'UTF8')) from 1 for 2), 'hex'))
                                 ::bit(16)::integer & 1023)
            execute function {schema}.refuse_row();
    end if;
    if not exists (select from pg_trigger where tgname = 'refuse_row' and tgrelid = '{schema}.outbox'::regclass) then
        create trigger refuse_row before insert on {schema}.outbox for each row
            when (octet_length(new.payload) > 16777216
                  or octet_length(new.headers::text) > 65536
                  or octet_length(new.content_type) > 255
                  or new.slot <> ('x' || encode(substring(sha256(convert_to(new.key, 'UTF8')) from 1 for 2), 'hex'))
                                 ::bit(16)::integer & 1023)
            execute function {schema}.refuse_row();
    end if;
end
$$;

-- Defaults and checks keep what their names meant when they were made. A table that was there before this script, made
-- with another schema on the search_path, could call functions or operators of that schema: refuse it. PostgreSQL notes
-- no dependencies on its own functions and operators.
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
        raise exception 'postroad: % of another schema: the table was made with that schema on the search_path; '
                        'find out who made it, and make the default or constraint again', foreign_name;
    end if;
end
$$;
