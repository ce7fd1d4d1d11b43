"""Databases with the log in them. `store_for` picks one by its URL; a driver is imported only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.config import DEFAULT_SCHEMA
from postroad.stores.urls import dialect_of, sqlite_path

if TYPE_CHECKING:
    from postroad.stores.admin.admin import Admin
    from postroad.stores.base import Store

__all__ = ["dialect_of", "migrate", "open_admin", "sqlite_path", "store_for"]


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


def open_admin(url: str, *, schema: str = DEFAULT_SCHEMA, connections: int = 4) -> Admin:
    """The `Admin` for a database URL. It connects when it is entered with `async with`.

    `connections` calls run at the same time; further ones wait.
    """
    from postroad.stores.admin.admin import Admin

    if dialect_of(url) == "postgresql":
        from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase

        return Admin(PostgreSQLAdminDatabase(url, schema=schema, connections=connections))
    from postroad.stores.admin.sqlite import SQLiteAdminDatabase

    return Admin(SQLiteAdminDatabase(sqlite_path(url), schema=schema, connections=connections))
