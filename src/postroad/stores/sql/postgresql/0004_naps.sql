-- Who sleeps, and the trigger that wakes them: NOTIFY takes a lock of the whole cluster, so it is for sleepers only.
-- The last statement locks the log against writers for a moment, and waits for those who are at it, while new ones queue
-- behind it: `postroad migrate` gives up after a short wait and tries again. With another tool, say "set lock_timeout".

-- A lane that naps has a row here, which nobody needs after a crash. Each nap is a new row: a row that is written again
-- and again gets slow to find under a long transaction.
create unlogged table if not exists {schema}.naps (
    id         bigint      generated always as identity primary key,
    until      timestamptz not null,    -- the nap of a relay that died counts no more after this
    first_slot smallint    not null,
    last_slot  smallint    not null,
    marks      bigint      not null,    -- a bit for each 16 slots in which there is one of them; the sign is the first
    channel    text        not null,    -- where the one who naps listens
    listener   integer                  -- and the server's process for it; if that is gone, nobody hears; null: not known
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- The marks of all naps, as one number. Not a counter: a sequence is the one thing in a database that all see as it is at
-- this moment, whatever their snapshots.
-- A nap is marked before it is committed, and while it lasts its marks are there. Marks that nobody naps for any more are
-- wiped by a writer that finds them. Both happen under one advisory lock, for which nobody waits.
create sequence if not exists {schema}.napping as bigint minvalue -9223372036854775808 start 0;
grant select on sequence {schema}.napping to public;

-- Wake those who nap on the slots of a new row. Nobody can call this but the trigger, for a row in whose slot is a mark.
-- Volatile, so that in READ COMMITTED each statement here sees the naps of this very moment. Whoever naps first commits
-- the nap and then waits for those who hold the log's lock by then: one of the two always notices the other. For the same
-- reason it is enough to notify once in a transaction: "postroad.told" has the marks that are done with.
-- A transaction with a snapshot for all of its statements may not see a nap that is there: it notifies in any case, on
-- the channel with the schema's name, on which every relay listens beside its own.
-- Of a relay that died the server's process that served it is gone at once, long before its naps end. What is known of
-- processes is kept for a whole transaction unless it is cleared. Whoever finds such a nap deletes it, unless another one
-- is at it: nobody here ever waits for a nap's row.
-- A queue of notifications that is half full has a listener that does not listen; a full one would fail our commit.
create or replace function {schema}.wake_naps() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as
$$
declare
    mark bigint := 1::bigint << (63 - new.slot / 16);
    told bigint := coalesce(nullif(current_setting('postroad.told', true), ''), '0')::bigint;
    nap record;
begin
    if told & mark <> 0 or current_setting('postroad.notify', true) = 'off' then
        return null;
    elsif current_setting('transaction_isolation') <> 'read committed' then
        told := -1;
        if pg_notification_queue_usage() <= 0.5 then
            perform pg_notify('{schema}', '');
        end if;
    else
        for nap in
            select n.* from {schema}.naps n where n.until > clock_timestamp() and n.marks & mark <> 0
        loop
            perform pg_stat_clear_snapshot();
            if not exists (select from pg_stat_get_activity(nap.listener)) then
                delete from {schema}.naps d
                 where d.id = (select n.id from {schema}.naps n where n.id = nap.id for update skip locked);
            else
                told := told | mark;
                if pg_notification_queue_usage() <= 0.5 then
                    perform pg_notify(nap.channel, concat(nap.first_slot, '-', nap.last_slot));
                end if;
            end if;
        end loop;
        if told & mark = 0 then
            if pg_try_advisory_xact_lock(x'706F7374'::int, hashtext('{schema}.naps')) then
                perform setval('{schema}.napping', coalesce((select bit_or(n.marks) from {schema}.naps n
                                                              where n.until > clock_timestamp()), 0));
            end if;
            return null;
        end if;
    end if;
    perform set_config('postroad.told', told::text, true);
    return null;
end
$$;

-- What was scheduled is looked for every few seconds; what is due sooner is told of.
create or replace function {schema}.wake_scheduled() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as
$$
begin
    if current_setting('postroad.notify', true) is distinct from 'off'
       and exists (select from added where due_at < clock_timestamp() + interval '10 s')
       and pg_notification_queue_usage() <= 0.5 then
        perform pg_notify('{schema}', '');
    end if;
    return null;
end
$$;

revoke all on function {schema}.wake_naps() from public;
revoke all on function {schema}.wake_scheduled() from public;

insert into {schema}.migrations (version) values (4) on conflict do nothing;

do $$
begin
    perform setval('{schema}.napping', 0) where pg_sequence_last_value('{schema}.napping') is null;
    if not exists (select from pg_trigger where tgname = 'wake_scheduled' and tgrelid = '{schema}.scheduled'::regclass) then
        create trigger wake_scheduled after insert on {schema}.scheduled
            referencing new table as added for each statement execute function {schema}.wake_scheduled();
    end if;
    if not exists (select from pg_trigger where tgname = 'wake_naps' and tgrelid = '{schema}.outbox'::regclass) then
        create trigger wake_naps after insert on {schema}.outbox for each row
            when (pg_sequence_last_value('{schema}.napping') << (new.slot / 16) < 0)  -- every INSERT pays for each step
            execute function {schema}.wake_naps();
    end if;
end
$$;
