-- Which role added a message, which role a consumer belongs to, and functions that ask for it: applications that share a
-- schema can neither cancel each other's messages nor write each other's inbox.
-- The first statements lock the log against writers for a moment, and wait for open transactions: `postroad migrate` gives
-- up after a short wait and tries again. With another tool, say "set lock_timeout".

-- Null: added before this migration; any role that may cancel at all may cancel it. The default is set in a statement of
-- its own, because a column that is added together with it would rewrite the whole table.
-- session_user, because an application can change current_user (SET ROLE), and a function that is SECURITY DEFINER does.
alter table {schema}.outbox add column if not exists added_by text;
alter table {schema}.outbox alter column added_by set default session_user;
alter table {schema}.scheduled add column if not exists added_by text;
alter table {schema}.scheduled alter column added_by set default session_user;

-- False: an application has canceled the message, and its lane has not loaded that yet. Until it has, it asks.
alter table {schema}.deferred add column if not exists noticed boolean not null default true;
create index if not exists deferred_unnoticed on {schema}.deferred (sink, lane) where not noticed;

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

-- Take a message back, in the caller's transaction: 'canceled', 'too late', 'unknown' or 'not yours', and that is the truth
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
    select position, xid, slot, added_by is null or {schema}.acts_as(added_by) as ours
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
        if exists (select from {schema}.lanes l
                    where message.slot between l.first_slot and l.last_slot
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

-- Some of these ids were in the log already, or among the scheduled messages: that is fine for a message that was added
-- before, and an error for another one. An application can't read the tables itself. Volatile, so that it sees what was
-- committed, and what the calling statement has written, up to now.
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
        -- Of another role's message nothing else is told.
        raise exception 'another message has the id % already; what differs: %', other.id,
                        case when other.differs like 'the role%' then 'the role that added it' else other.differs end
              using errcode = 'PR409';
    end if;
end
$$;
revoke all on function {schema}.check_same(uuid[], text[], text[], text[], bytea[], text[], text[]) from public;

-- As in the first migration; without asking for the right to read ids, and an id that is taken is an error.
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

-- Which role a consumer's name belongs to: the first that used it, unless an operator gives it to another.
create table if not exists {schema}.consumers (
    name  text        collate "C" primary key check (octet_length(name) between 1 and 255),
    role  text        not null,
    since timestamptz not null default now()
);

-- True: noted by one of the functions below, under its source and id. False: from before, when a UUID was noted without
-- its source; that counts for every source.
alter table {schema}.inbox add column if not exists sourced boolean not null default false;

-- Make sure that the session may use a consumer's name. The first to use it gets it.
create or replace function {schema}.open_inbox(consumer text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as
$$
declare
    owner text;
begin
    select c.role into owner from {schema}.consumers c where c.name = $1;
    if not found then
        insert into {schema}.consumers (name, role) values ($1, session_user) on conflict do nothing;
        select c.role into owner from {schema}.consumers c where c.name = $1;
    end if;
    if owner <> session_user and not {schema}.acts_as(owner) then
        raise exception 'consumer "%" belongs to the role "%", and this session''s role is "%"', $1, owner, session_user
              using errcode = 'PR403',
                    hint = format('Use another name or the role "%s"; or let an operator give the name to this role: '
                                  'select {schema}.give_consumer(%L, %L)', owner, $1, session_user);
    end if;
end
$$;

-- For operators: a consumer's name, and all that is noted under it, belongs to another role from now on.
create or replace function {schema}.give_consumer(consumer text, role text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
begin
    if not exists (select from pg_roles where rolname = $2) then
        raise exception 'role is "%"; there is no such role', $2 using errcode = 'undefined_object';
    end if;
    insert into {schema}.consumers as c (name, role) values ($1, $2)
    on conflict (name) do update set role = excluded.role, since = excluded.since;
    insert into {schema}.audit (who, command, arguments, changed)
    values (session_user, 'give_consumer', json_build_object('consumer', $1, 'role', $2), 1);
end
$$;

-- Note a message as processed: true when it is for the first time. `id` is the source and the id; `plain_id`, unless null,
-- what a row from before may have noted instead.
-- Another transaction that is about to process it is waited for, but no longer than `timeout`; lock_timeout is then what
-- it was. default_transaction_read_only means nothing before the next transaction, and by then it is what it was. The
-- server reports it to the driver, and that it is off again when a statement fails or the transaction ends: so it costs
-- nothing to know whether a handler has left its transaction in good order.
create or replace function {schema}.first_time(timeout text, consumer text, id text, type text, plain_id text)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    before text := current_setting('lock_timeout');
    first  boolean;
begin
    perform set_config('lock_timeout', $1, true), set_config('default_transaction_read_only', 'on', true);
    if not exists (select from {schema}.consumers where name = $2 and role = session_user) then
        perform {schema}.open_inbox($2);
    end if;
    insert into {schema}.inbox (consumer, id, type, sourced) values ($2, $3, $4, true) on conflict do nothing;
    first := found;
    if first and $5 is not null then
        first := not exists (select from {schema}.inbox where consumer = $2 and id = $5 and not sourced);
    end if;
    perform set_config('lock_timeout', before, true);
    return first;
end
$$;

-- The same for many; gives the ids that are new. In order: two that wait for each other's rows would wait for ever.
create or replace function {schema}.first_times(timeout text, consumer text, ids text[], types text[], plain_ids text[])
returns text[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    before text := current_setting('lock_timeout');
    first  text[];
begin
    perform set_config('lock_timeout', $1, true), set_config('default_transaction_read_only', 'on', true);
    if not exists (select from {schema}.consumers where name = $2 and role = session_user) then
        perform {schema}.open_inbox($2);
    end if;
    with noted as (
        insert into {schema}.inbox (consumer, id, type, sourced)
        select $2, new.id, new.type, true
          from unnest($3, $4) as new (id, type)
         order by new.id collate "C"
        on conflict do nothing
        returning id)
    select array_agg(noted.id) into first from noted;
    if exists (select from unnest($5) as plain (id)
                 join {schema}.inbox i on i.consumer = $2 and i.id = plain.id and not i.sourced) then
        first := array(select new.id from unnest(first) as new (id)
                        where not exists (select from unnest($3, $5) as known (id, plain)
                                            join {schema}.inbox i on i.consumer = $2 and i.id = known.plain
                                                                 and not i.sourced
                                           where known.id = new.id));
    end if;
    perform set_config('lock_timeout', before, true);
    return first;
end
$$;

-- A handler has failed. If it has committed its transaction by itself, the inbox's rows are there, and the messages would
-- count as processed. Gives the state of that transaction; while it is in progress nothing is known.
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

-- Before the handler of a message that was delivered before: what is found running had ended with its process.
-- Gives nothing when the message was processed. One that had been given up begins anew: it was sent again.
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

-- In the handler's own transaction: it is undone when that is rolled back, or its process dies.
create or replace function {schema}.end_attempt(consumer text, id text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
begin
    perform {schema}.open_inbox($1);
    update {schema}.inbox_attempts set running = false where consumer = $1 and id = $2;
end
$$;

-- How many attempts have failed; null when the message was processed after all: the answer to a COMMIT may be lost.
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

-- A batch of what a consumer has processed long ago.
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

revoke all on function {schema}.open_inbox(text) from public;
revoke all on function {schema}.give_consumer(text, text) from public;
revoke all on function {schema}.first_time(text, text, text, text, text) from public;
revoke all on function {schema}.first_times(text, text, text[], text[], text[]) from public;
revoke all on function {schema}.undo_first_times(text, text, text[]) from public;
revoke all on function {schema}.begin_attempt(text, text, text, text, text) from public;
revoke all on function {schema}.end_attempt(text, text) from public;
revoke all on function {schema}.fail_attempt(text, text, text, text, text) from public;
revoke all on function {schema}.note_dead(text, text, text, text, text) from public;
revoke all on function {schema}.forget_processed(text, interval, integer) from public;
revoke all on function {schema}.forget_attempts(text, interval, integer) from public;

-- A relay from before does not ask whether a message was canceled: it is refused from now on. Applications are not asked.
update {schema}.installation set min_client = greatest(min_client, 9);
insert into {schema}.migrations (version) values (9) on conflict do nothing;
