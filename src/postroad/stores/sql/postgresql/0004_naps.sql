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
create index if not exists naps_until on {schema}.naps (until);

-- The marks of all naps, as one number. Not a counter: a sequence is the one thing in a database that all see as it is at
-- this moment, whatever their snapshots.
-- A nap is marked before it is committed, and while it lasts its marks are there. Marks that nobody naps for any more are
-- wiped. Both happen under one advisory lock, for which nobody waits.
create sequence if not exists {schema}.napping as bigint minvalue -9223372036854775808 start 0;
grant select on sequence {schema}.napping to public;

-- Wipe the marks that nobody naps for. A nap that is being marked has the lock until it can be seen, and with the lock we
-- look again. Whoever naps afterwards waits for us as for every writer, so the lock is let go at once: by an error, which
-- does not bring back a sequence. An old snapshot may not show who naps.
create or replace function {schema}.wipe_marks() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp as
$$
declare
    moment timestamptz := clock_timestamp();    -- before the snapshot: who renews a nap does so long before its end
begin
    if current_setting('transaction_isolation') = 'read committed'
       and pg_try_advisory_xact_lock(x'706F7374'::int, hashtext('{schema}.naps')) then
        perform pg_stat_clear_snapshot();
        perform setval('{schema}.napping', coalesce((select bit_or(n.marks) from {schema}.naps n
                                                      where n.until > moment
                                                        and exists (select from pg_stat_get_activity(n.listener))), 0));
        raise sqlstate 'PR000';
    end if;
exception
    when sqlstate 'PR000' then null;
end
$$;

-- Wake those who nap on the slots of a new row. Nobody can call this but the trigger, for a row in whose slot is a mark.
-- Volatile, so that in READ COMMITTED each statement here sees the naps of this very moment. Whoever naps first commits
-- the nap and then waits for those who hold the log's lock by then: one of the two always notices the other. For the same
-- reason one look in a transaction is enough: "postroad.told" has the marks that are done with.
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
    moment timestamptz := clock_timestamp();
    told bigint := coalesce(nullif(current_setting('postroad.told', true), ''), '0')::bigint;
    mark bigint;
    nap record;
    heard boolean := false;
begin
    if tg_relid <> '{schema}.outbox'::regclass then
        return null;    -- of another table's row nothing is known, not even what its types would run
    end if;
    mark := 1::bigint << (63 - new.slot / 16);
    if told & mark <> 0 or current_setting('postroad.notify', true) = 'off' then
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
                heard := true;
                if pg_notification_queue_usage() <= 0.5 then
                    perform pg_notify(nap.channel, concat(nap.first_slot, '-', nap.last_slot));
                end if;
            end if;
        end loop;
        if not heard then
            perform {schema}.wipe_marks();
        end if;
    end if;
    perform set_config('postroad.told', (told | mark)::text, true);
    return null;
end
$$;

-- What was scheduled is looked for every few seconds; what is due sooner is told of.
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

revoke all on function {schema}.wipe_marks() from public;
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
