"""The search_path of PostgreSQL sessions: where names without a schema are looked up.

By default every role of the database may own a schema on it, and PostgreSQL takes a function or operator from there if
its argument types fit better than those of its own. So what is ours looks in pg_catalog alone; temporary tables, which
are searched first unless they are named, come last. Nothing here does I/O.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PINNED", "PIN_BORROWED", "PIN_SESSION", "PIN_TRANSACTION", "RESTORE_BORROWED"]

PINNED: Final = "pg_catalog, pg_temp"

PIN_SESSION: Final = f"set search_path = {PINNED}"
"""For a session of our own."""

PIN_TRANSACTION: Final = f"set local search_path = {PINNED}"
"""For a transaction of our own."""

PIN_BORROWED: Final = (
    "select pg_catalog.set_config('postroad.search_path', pg_catalog.current_setting('search_path'), true)",
    PIN_TRANSACTION,
    f"""do $$ begin
    if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) '{PINNED}' then
        raise exception 'postroad: these statements must run in one transaction; outside of one, nothing was changed';
    end if;
end $$""",
)
"""For a part of somebody else's transaction, until RESTORE_BORROWED."""

RESTORE_BORROWED: Final = (
    "select pg_catalog.set_config('search_path', pg_catalog.current_setting('postroad.search_path'), true)",
)
