-- Forgetting a key needs nothing of the schema here.

insert or ignore into {schema}_migrations (version) values (15);
