"""The search_path of PostgreSQL sessions: where names without a schema are looked up.

By default every role of the database may own a schema on it, and PostgreSQL prefers a function or operator there if its
argument types fit better than those of pg_catalog. So our own statements search pg_catalog only; temporary tables,
which come first unless they are listed, come last. Nothing here does I/O.
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
"""For a part of the caller's transaction, until RESTORE_BORROWED."""

RESTORE_BORROWED: Final = (
    "select pg_catalog.set_config('search_path', pg_catalog.current_setting('postroad.search_path'), true)",
)
