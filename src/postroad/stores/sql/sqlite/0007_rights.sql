-- SQLite has neither roles nor a search_path, and one writer at a time.

insert or ignore into {schema}_migrations (version) values (7);
