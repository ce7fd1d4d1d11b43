-- What an application needs to add, cancel and consume messages, and nothing more: it can neither read the log nor
-- choose a row's position or transaction. (`select (id)` is what "on conflict (id)" asks for.)
grant usage on schema {schema} to {role};
grant insert (id, topic, key, slot, type, payload, content_type, headers) on {schema}.outbox to {role};
grant select (id) on {schema}.outbox to {role};
grant select on sequence {schema}.napping to {role};
grant insert (id, topic, key, slot, type, payload, content_type, headers, due_at) on {schema}.scheduled to {role};
grant select (id) on {schema}.scheduled to {role};
grant execute on function {schema}.cancel(uuid) to {role};
grant execute on function {schema}.slot_of(text) to {role};
grant execute on function {schema}.add_bytes(text, text, bytea, text, text, text, uuid, jsonb, text, text) to {role};
grant execute on function {schema}.add(text, text, jsonb, text, text, uuid, jsonb, text, text) to {role};
grant select, insert (consumer, id, type), delete on {schema}.inbox to {role};
grant select, insert, update, delete on {schema}.inbox_attempts to {role};
