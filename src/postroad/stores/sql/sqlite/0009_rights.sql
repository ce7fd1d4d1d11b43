-- SQLite has no roles: what can open the file can do everything. That a message is known by its source and its id takes no
-- column: what was noted before this migration was applied was noted without its source.

insert or ignore into {schema}_migrations (version) values (9);
