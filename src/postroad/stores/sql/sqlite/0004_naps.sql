-- SQLite's relays see by "pragma data_version" that something changed: nobody has to be told that they sleep.

insert or ignore into {schema}_migrations (version) values (4);
