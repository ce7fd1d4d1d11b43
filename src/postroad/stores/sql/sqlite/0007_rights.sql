-- SQLite has neither roles nor a search_path.

insert or ignore into {schema}_migrations (version) values (7);
