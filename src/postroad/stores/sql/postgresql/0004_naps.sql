-- Who sleeps, and the trigger that wakes them: NOTIFY takes a lock of the whole cluster, so it is for sleepers only.
-- The last statement locks the log against writers for a moment, and waits for those who are at it, while new ones queue
-- behind it: `postroad migrate` gives up after a short wait and tries again. With another tool, say "set lock_timeout".

-- A lane that naps has a row here, which nobody needs after a crash. Each nap is a new row: a row that is written again
-- and again gets slow to find under a long transaction, and every writer looks here.
create unlogged table if not exists {schema}.naps (
    id         bigint      generated always as identity primary key,
    until      timestamptz not null,    -- the nap of a relay that died counts no more after this
    first_slot smallint    not null,
    last_slot  smallint    not null,
    channel    text        not null,    -- where the one who naps listens
    listener   integer                  -- and the server's process for it; if that is gone, nobody hears; null: not known
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
create index if not exists naps_until on {schema}.naps (until);

-- Wake those who nap on the slots of new rows. Nobody can call this but the trigger.
-- Volatile, so that in READ COMMITTED each statement here sees the naps of this very moment. Whoever naps first commits
-- the nap and then waits for those who hold the log's lock by then: one of the two always notices the other.
-- A transaction with a snapshot for all of its statements may not see a nap that is there: it notifies in any case, on
-- the channel with the schema's name, on which every relay listens beside its own.
-- Of a relay that died the server's process that served it is gone at once, long before its naps end. What is known of
-- processes is kept for a whole transaction unless it is cleared. Whoever finds such a nap deletes it, unless another one
-- is at it: nobody here ever waits for a nap's row.
-- A queue of notifications that is half full has a listener that does not listen; a full one would fail our commit.
-- Every INSERT pays for this function, and a SET clause would double its price: so it trusts no search_path instead, and
-- says of each function and operator where it is.
create or replace function {schema}.wake_naps() returns trigger
language plpgsql volatile security definer as
$$
declare
    nap record;
begin
    if pg_catalog.current_setting('postroad.notify', true) operator(pg_catalog.=) 'off' then
        return null;
    elsif pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed' then
        if exists (select from added) and pg_catalog.pg_notification_queue_usage() operator(pg_catalog.<=) 0.5 then
            perform pg_catalog.pg_notify('{schema}', '');
        end if;
    elsif exists (select from {schema}.naps n
                   where n.until operator(pg_catalog.>) pg_catalog.now()             -- by the index,
                     and n.until operator(pg_catalog.>) pg_catalog.clock_timestamp() -- and as of this moment
                     and exists (select from added a where a.slot operator(pg_catalog.>=) n.first_slot
                                                       and a.slot operator(pg_catalog.<=) n.last_slot)) then
        -- Almost nobody comes here, and a loop costs those who do not as much as the question above.
        for nap in
            select n.id, n.channel, n.first_slot, n.last_slot, n.listener
              from {schema}.naps n
             where n.until operator(pg_catalog.>) pg_catalog.clock_timestamp()
               and exists (select from added a where a.slot operator(pg_catalog.>=) n.first_slot
                                                 and a.slot operator(pg_catalog.<=) n.last_slot)
        loop
            perform pg_catalog.pg_stat_clear_snapshot();
            if not exists (select from pg_catalog.pg_stat_get_activity(nap.listener)) then
                delete from {schema}.naps d
                 where d.id operator(pg_catalog.=) (select n.id from {schema}.naps n
                                                     where n.id operator(pg_catalog.=) nap.id for update skip locked);
            elsif pg_catalog.pg_notification_queue_usage() operator(pg_catalog.<=) 0.5 then
                perform pg_catalog.pg_notify(nap.channel, pg_catalog.concat(nap.first_slot, '-', nap.last_slot));
            end if;
        end loop;
    end if;
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
    if not exists (select from pg_trigger where tgname = 'wake_scheduled' and tgrelid = '{schema}.scheduled'::regclass) then
        create trigger wake_scheduled after insert on {schema}.scheduled
            referencing new table as added for each statement execute function {schema}.wake_scheduled();
    end if;
    if not exists (select from pg_trigger where tgname = 'wake_naps' and tgrelid = '{schema}.outbox'::regclass) then
        create trigger wake_naps after insert on {schema}.outbox
            referencing new table as added for each statement execute function {schema}.wake_naps();
    end if;
end
$$;
