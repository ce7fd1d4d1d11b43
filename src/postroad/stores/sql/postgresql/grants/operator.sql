-- What an operator needs to look and to act: retry, drop, skip, poison, hold, release, pause, resume, rewind, cleanup, and
-- removing a sink. Every change by a command is in the audit, to which lines can only be added. Payloads are not readable;
-- see payloads.sql.
grant usage on schema {schema} to {role};
grant select on {schema}.migrations to {role};
grant select on {schema}.installation to {role};
grant select (xid, position, created_at, id, slot, topic, type, key, content_type, headers) on {schema}.outbox to {role};
grant delete on {schema}.outbox to {role}; -- cleanup
grant select (number, due_at, created_at, id, slot, topic, type, key, content_type, headers) on {schema}.scheduled to {role};
grant select on {schema}.outbox_status to {role};
grant select, update, delete on {schema}.sinks to {role};
grant select, update (version, owner, lease_until), delete on {schema}.lanes to {role};
grant select, insert, update, delete on {schema}.deferred to {role};
grant select, insert, delete on {schema}.attempts to {role};
grant select, delete on {schema}.progress to {role};
grant select, delete on {schema}.delivered to {role};
grant select, insert, delete on {schema}.holds to {role};
grant select, insert, delete on {schema}.pauses to {role};
grant select, update, delete on {schema}.replication_slots to {role};
grant select, insert, delete on {schema}.ahead to {role};
grant select, insert, update, delete on {schema}.rewound to {role};
grant select, delete on {schema}.copies to {role};
grant select, insert (who, command, arguments, reason, changed, continues) on {schema}.audit to {role};
grant select, delete on {schema}.relays to {role};
grant select, update on {schema}.locks to {role};
grant execute on function {schema}.forget_in_audit(text, bigint) to {role};
grant execute on function {schema}.passed(bigint, xid8, {schema}.lanes) to {role};
grant execute on function {schema}.takes({schema}.sinks, text, text, json) to {role};
grant execute on function {schema}.server_started() to {role};
grant execute on function {schema}.replication_slot(text) to {role};
grant select on {schema}.consumer_names to {role};
grant select on {schema}.consumers to {role};
grant select (sink, lane, until) on {schema}.naps to {role};
grant select (processed_at, consumer, id, type) on {schema}.inbox to {role};
grant select (consumer, id, type, attempts, crashes, error, dead_at) on {schema}.inbox_attempts to {role};
grant delete on {schema}.inbox_attempts to {role}; -- dead letters
grant execute on function {schema}.give_consumer(text, text) to {role};
grant execute on function {schema}.cancel(uuid) to {role};
