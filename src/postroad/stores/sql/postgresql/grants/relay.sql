-- What a relay needs, and nothing more: it adds no message of its own, owns nothing, and reads no audit.
grant usage on schema {schema} to {role};
grant select on {schema}.migrations to {role};
grant select, update on {schema}.installation to {role}; -- a log that was restored from another cluster
grant select, delete on {schema}.outbox to {role};
grant insert (id, topic, key, slot, type, payload, content_type, headers, added_by) on {schema}.outbox to {role}; -- what was scheduled
grant select on sequence {schema}.outbox_position_seq to {role}; -- where the log ends
grant update (xid) on {schema}.outbox to {role}; -- a log that was restored from another cluster
grant select, update, delete on {schema}.scheduled to {role};
grant select, insert, update on {schema}.sinks to {role};
grant select, insert, update on {schema}.lanes to {role};
grant select, insert, update, delete on {schema}.deferred to {role};
grant select, insert, delete on {schema}.attempts to {role};
grant select, insert, update, delete on {schema}.progress to {role};
grant select, insert, update, delete on {schema}.delivered to {role};
grant select on {schema}.holds to {role};
grant select on {schema}.pauses to {role};
grant select, insert, update on {schema}.replication_slots to {role};
grant select, delete on {schema}.ahead to {role};
grant select, delete on {schema}.rewound to {role};
grant select, insert, update, delete on {schema}.copies to {role};
grant select, insert, update, delete on {schema}.relays to {role};
grant select, insert, update, delete on {schema}.naps to {role};
grant select, update on sequence {schema}.napping to {role};
grant select, update on {schema}.locks to {role};
grant execute on function {schema}.passed(bigint, xid8, {schema}.lanes) to {role};
grant execute on function {schema}.takes({schema}.sinks, text, text, json) to {role};
grant execute on function {schema}.server_started() to {role};
grant execute on function {schema}.lock_holders(bigint) to {role};
grant execute on function {schema}.replication_slot(text) to {role};
grant execute on function {schema}.wipe_marks() to {role};
