-- What an application needs to add, cancel and consume messages, and nothing more: it can't read any table, nor choose a
-- row's position, transaction or the role that added it. Rights that earlier versions gave are taken back.
grant usage on schema {schema} to {role};
do $$
begin
    if (select relowner from pg_catalog.pg_class where oid = '{schema}.inbox'::regclass) <> '{role}'::regrole then
        revoke select (id) on {schema}.outbox, {schema}.scheduled from {role};
        revoke insert (consumer, id, type) on {schema}.inbox from {role};
        revoke select, delete on {schema}.inbox from {role};
        revoke select, insert, update, delete on {schema}.inbox_attempts from {role};
    end if;
end
$$;
grant insert (id, topic, key, slot, type, payload, content_type, headers) on {schema}.outbox to {role};
grant select on sequence {schema}.napping to {role};
grant insert (id, topic, key, slot, type, payload, content_type, headers, due_at) on {schema}.scheduled to {role};
grant execute on function {schema}.cancel(uuid) to {role};
grant execute on function {schema}.check_same(uuid[], text[], text[], text[], bytea[], text[], text[]) to {role};
grant execute on function {schema}.slot_of(text) to {role};
grant execute on function {schema}.add_bytes(text, text, bytea, text, text, text, uuid, jsonb, text, text) to {role};
grant execute on function {schema}.add(text, text, jsonb, text, text, uuid, jsonb, text, text) to {role};
grant execute on function {schema}.open_inbox(text) to {role};
grant execute on function {schema}.first_time(text, text, text, text) to {role};
grant execute on function {schema}.first_times(text, text, text[], text[]) to {role};
grant execute on function {schema}.undo_first_times(text, text, text[]) to {role};
grant execute on function {schema}.begin_attempt(text, text, text, text, text) to {role};
grant execute on function {schema}.end_attempt(text, text) to {role};
grant execute on function {schema}.fail_attempt(text, text, text, text, text) to {role};
grant execute on function {schema}.note_dead(text, text, text, text, text) to {role};
grant execute on function {schema}.forget_processed(text, interval, integer) to {role};
grant execute on function {schema}.forget_attempts(text, interval, integer) to {role};
grant execute on function {schema}.consumer_heartbeat(
    text, uuid, text, integer, text, text, interval, bigint, bigint, bigint, bigint) to {role};
grant execute on function {schema}.consumer_ended(text, uuid) to {role};
grant execute on function {schema}.forget_consumers(text, interval) to {role};
