-- The log, the lanes that read it, and the function that adds to it.
-- Every statement may run again: what is printed by `postroad migrate --sql` can be applied twice.

create schema if not exists {schema};

create table if not exists {schema}.migrations (
    version    integer     primary key,
    applied_at timestamptz not null default now()
);

-- One row. The numbers in the log's xid column and in the cursors' snapshots mean something in one cluster only.
create table if not exists {schema}.installation (
    only_row          boolean primary key default true check (only_row),
    min_client        integer not null,
    system_identifier bigint  not null
);

-- The log. Rows are inserted and, long after they were delivered, deleted; they are never updated.
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
    constraint outbox_id unique (id)
);
create index if not exists outbox_xid on {schema}.outbox (xid);

create table if not exists {schema}.lanes (
    sink          text        not null,
    lane          smallint    not null,
    first_slot    smallint    not null,
    last_slot     smallint    not null,
    position      bigint      not null,
    snapshot      pg_snapshot not null,
    late_position bigint,
    late_snapshot pg_snapshot,
    owner         uuid,
    epoch         bigint      not null default 0,
    version       bigint      not null default 0,
    primary key (sink, lane),
    check ((late_position is null) = (late_snapshot is null))
) with (fillfactor = 10); -- rewritten all the time: room on the page keeps the updates HOT

-- "Passed": dealt with by a lane. The one rule that retention, status and views go by.
create or replace function {schema}.passed("position" bigint, xid xid8, lane {schema}.lanes) returns boolean
language sql immutable parallel safe as
$$ select $1 <= ($3).position and pg_visible_in_snapshot($2, ($3).snapshot) $$;

create or replace function {schema}.slot_of(text) returns smallint
language sql immutable strict parallel safe as
$$ select ((get_byte(digest, 0) * 256 + get_byte(digest, 1)) % 1024)::smallint
     from sha256(convert_to($1, 'UTF8')) digest $$;

-- Add a message from SQL, in the caller's transaction, with the slots that Outbox.add gives.
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
    values (message_id, coalesce($6, $2), $5, {schema}.slot_of(coalesce($5, message_id::text)), $2, $3, $4,
            ($8 || jsonb_strip_nulls(jsonb_build_object(
                'source', $1, 'correlation_id', $9, 'causation_id', $10)))::json)
    on conflict (id) do nothing;
    return message_id;
end
$$;

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

insert into {schema}.installation (min_client, system_identifier)
select 1, system_identifier from pg_control_system()
on conflict do nothing;
insert into {schema}.migrations (version) values (1) on conflict do nothing;
