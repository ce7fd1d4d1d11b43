-- What a row of the log, and of what is to be sent later, must not exceed: message.py has the same numbers.
-- The rows that are there already stay as they are in the log: a relay meets one that is too large without reading its
-- contents, and puts it aside as dead. Triggers, not CHECKs, because a log that is restored from another cluster is
-- updated, and a CHECK would fail for each such row.
-- The last statement locks the log against writers for a moment, as in 0004.

-- Says what is wrong with a row; it is called for nothing else.
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

lock table {schema}.scheduled in access exclusive mode;

-- A time outside every calendar becomes the nearest one inside: never stays never, and long ago stays due.
update {schema}.scheduled
   set due_at = least(greatest(due_at, timestamptz '1900-01-01 00:00:00+00'),
                      timestamptz '9998-12-31 23:59:59+00')
 where due_at < timestamptz '1900-01-01 00:00:00+00' or due_at >= timestamptz '9999-01-01 00:00:00+00';
alter table {schema}.scheduled drop constraint if exists scheduled_due_at_check;
alter table {schema}.scheduled add constraint scheduled_due_at_check
    check (due_at >= timestamptz '1900-01-01 00:00:00+00' and due_at < timestamptz '9999-01-01 00:00:00+00');

update {schema}.scheduled set slot = {schema}.slot_of(key) where slot <> {schema}.slot_of(key);

-- What is too large can't be sent at any time, and the log would not take it later.
with too_large as (
    delete from {schema}.scheduled
     where octet_length(payload) > 16777216 or octet_length(headers::text) > 65536 or octet_length(content_type) > 255
    returning *)
insert into {schema}.outbox (id, topic, key, slot, type, payload, content_type, headers)
select id, topic, key, slot, type, payload, content_type, headers from too_large order by due_at, number
on conflict (id) do nothing;

insert into {schema}.migrations (version) values (8) on conflict do nothing;

-- The slot of a key is slot_of(key), written so that it costs each INSERT one hash and no call of a function in SQL.
do $$
begin
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
