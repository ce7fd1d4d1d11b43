-- Beside the grants of a reader or an operator: `message show --payload`.
grant select (payload) on {schema}.outbox to {role};
grant select (payload) on {schema}.scheduled to {role};
