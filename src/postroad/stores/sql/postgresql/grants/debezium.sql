-- What Debezium needs to read the log by logical replication: it reads the log alone. The role also needs the attribute
-- REPLICATION, which only a superuser can give: alter role ROLE replication.
grant usage on schema {schema} to {role};
grant select on {schema}.outbox to {role};
