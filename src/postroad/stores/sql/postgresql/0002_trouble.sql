-- Messages that need care of their own: refused ones, those behind them, and those whose time has not come.
-- Nothing here touches the log: applications add while this runs.

-- One row per message in trouble and sink. It refers to the log's row by its position and copies no payload.
-- lifecycle.py says which state follows which, and who moves a message on.
-- Retention and cancel ask by position, so that comes first in the primary keys.
-- The first blocking row of a key is its head. Of the rows of a key only the head is ever due; the others wait for it.
create table if not exists {schema}.deferred (
    sink            text        not null,
    position        bigint      not null,
    lane            smallint    not null,
    attempts        integer     not null default 0 check (attempts >= 0),
    due_at          timestamptz,                -- not before then; null: something else must happen first
    epoch           bigint,                     -- of the lane that is sending it
    blocks          boolean     not null,       -- later messages of its key wait for it
    unsure          boolean     not null default false, -- it was sent, and nobody could note what the broker said
    state           text        not null,
    key             text,                       -- null: no order is to be kept
    route           text,                       -- the way to its consumers that is out, for which it waits
    error           text        check (length(error) <= 2000),
    deferred_at     timestamptz not null default now(),
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
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

-- Every attempt that failed. It outlives the row in `deferred`, and goes when the message leaves the log.
create table if not exists {schema}.attempts (
    sink      text        not null,
    position  bigint      not null,
    attempt   integer     not null,
    failed_at timestamptz not null default clock_timestamp(),
    error     text        not null check (length(error) <= 2000),
    primary key (position, sink, failed_at, attempt)
);

-- What is to be sent later. When it is due it moves into the log, and only there it gets its position. Of those that are
-- due at the same time, the first one added goes first: a key's messages stay in order.
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
    payload      bytea       not null
);
create index if not exists scheduled_due on {schema}.scheduled (due_at, number);

-- Take a message back, in the caller's transaction: 'canceled', 'too late' or 'unknown', and that is the truth once the
-- transaction commits. Who moves a message into the log, or sends it, locks the same rows as this function does.
-- Every statement sees what was committed before it began; under REPEATABLE READ the loser of a race gets an error.
create or replace function {schema}.cancel(id uuid) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$
#variable_conflict use_column
declare
    was_scheduled boolean;
    message       record;
begin
    delete from {schema}.scheduled where id = $1;
    was_scheduled := found;
    select position, xid, slot into message from {schema}.outbox where id = $1;
    if not found then
        return case when was_scheduled then 'canceled' else 'unknown' end;
    end if;
    -- Most messages in the log are on their way or have arrived: no lane has to stand still for those.
    if not exists (select from {schema}.deferred where position = message.position) then
        return 'too late';
    end if;
    -- Until the transaction ends, no lane that reads this message writes anything.
    perform from {schema}.lanes where message.slot between first_slot and last_slot order by sink, lane for update;
    if exists (select from {schema}.lanes l
                where message.slot between l.first_slot and l.last_slot
                  and not (({schema}.passed(message.position, message.xid, l)
                            or coalesce(message.position <= l.late_position
                                        and pg_visible_in_snapshot(message.xid, l.late_snapshot), false))
                           and exists (select from {schema}.deferred d
                                        where d.position = message.position and d.sink = l.sink
                                          and (d.state in ('retrying', 'held', 'dead') and not d.unsure
                                               or d.state = 'canceled')))) then
        return 'too late';
    end if;
    update {schema}.deferred
       set state = 'canceled', blocks = false, due_at = null, route = null, epoch = null
     where position = message.position and state <> 'canceled';
    if found then
        update {schema}.lanes set version = version + 1 where message.slot between first_slot and last_slot;
    end if;
    return 'canceled';
end
$$;
-- It may do what its caller may not.
revoke all on function {schema}.cancel(uuid) from public;

-- A relay from before would publish what is held here: it is refused from now on. Applications are not asked.
update {schema}.installation set min_client = greatest(min_client, 2);
insert into {schema}.migrations (version) values (2) on conflict do nothing;
