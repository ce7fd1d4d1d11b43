"""Databases with the log in them. `store_for` picks one by its URL; a driver is imported only when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from postroad.config import DEFAULT_SCHEMA, is_url
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from postroad.stores.base import Store
    from postroad.stores.operating import Operating
    from postroad.stores.queries import Dialect

__all__ = ["dialect_of", "migrate", "operating_for", "sqlite_path", "store_for"]

_DIALECTS: dict[str, Dialect] = {"postgresql": "postgresql", "postgres": "postgresql", "sqlite": "sqlite"}


def dialect_of(url: str) -> Dialect:
    """Which kind of database a URL names."""
    right = "it must be postgresql://user@host/name or sqlite:///path/to/file"
    if not is_url(url):
        raise InvalidSetting(
            f"database is no URL that can be read (it is not shown, for it may hold a password); {right}, "
            "with special characters of user and password percent-encoded"
        )
    scheme = url.partition(":")[0]
    if scheme not in _DIALECTS:
        raise InvalidSetting(f"database is a URL that begins with {scheme!r}; {right}")
    return _DIALECTS[scheme]


def sqlite_path(url: str) -> Path:
    """The file of an sqlite:/// URL; three slashes for a relative path, four for an absolute one."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or parts.fragment or path in {"", ":memory:"} or "\0" in path:
        raise InvalidSetting(
            "database is an sqlite URL that names no file; it must name one that several processes can open, "
            "such as sqlite:///orders.db (relative) or sqlite:////srv/orders.db (absolute)"
        )
    return Path(path)


async def migrate(url: str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Bring a database's schema up to date, and say which migrations were applied."""
    if dialect_of(url) == "postgresql":
        from postroad.stores.postgresql import migrate_postgresql

        return await migrate_postgresql(url, schema)
    from postroad.stores.sqlite import migrate_sqlite

    return migrate_sqlite(sqlite_path(url), schema)


def store_for(url: str, *, schema: str = DEFAULT_SCHEMA, direct: str | None = None, connections: int = 5) -> Store:
    """The store for a database URL. It is not connected yet. `connections` is how many it makes, where that matters.

    `direct` is the same PostgreSQL database without a pooler in between, which can't be listened through.
    """
    if dialect_of(url) == "postgresql":
        from postroad.stores.postgresql import PostgreSQLStore

        return PostgreSQLStore(url, schema=schema, direct=direct, connections=connections)
    from postroad.stores.sqlite import SQLiteStore

    return SQLiteStore(sqlite_path(url), schema=schema)


def operating_for(url: str, *, schema: str = DEFAULT_SCHEMA) -> Operating:
    """What an operator works with, for a database URL. It connects when it is entered with `async with`."""
    if dialect_of(url) == "postgresql":
        from postroad.stores.postgresql_operating import PostgreSQLOperating

        return PostgreSQLOperating(url, schema=schema)
    from postroad.stores.sqlite_operating import SQLiteOperating

    return SQLiteOperating(sqlite_path(url), schema=schema)
