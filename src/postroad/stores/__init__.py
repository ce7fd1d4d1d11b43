"""Databases with the log in them. `store_for` picks one by its URL; a driver is imported only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.config import DEFAULT_SCHEMA
from postroad.stores.dialects import dialect_of

if TYPE_CHECKING:
    from postroad.stores.admin.admin import Admin
    from postroad.stores.base import Store
    from postroad.stores.facts import FactReader

__all__ = ["dialect_of", "facts_of", "migrate", "open_admin", "store_for"]


async def migrate(url: str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Apply the migrations that a database has not had yet, and return their numbers."""
    return await dialect_of(url).migrate(url, schema)


def store_for(url: str, *, schema: str = DEFAULT_SCHEMA, direct: str | None = None, connections: int = 5) -> Store:
    """The store for a database URL. It is not connected yet. `connections` is how many it makes, where that matters.

    `direct` is the same PostgreSQL database without a pooler in between, because LISTEN does not work through one.
    """
    return dialect_of(url).store(url, schema=schema, direct=direct, connections=connections)


def open_admin(url: str, *, schema: str = DEFAULT_SCHEMA, connections: int = 4) -> Admin:
    """The `Admin` for a database URL. It connects when it is entered with `async with`.

    `connections` calls run at the same time; further ones wait.
    """
    return dialect_of(url).admin(url, schema=schema, connections=connections)


def facts_of(url: str, *, schema: str = DEFAULT_SCHEMA, direct: str | None = None) -> FactReader:
    """What `postroad doctor` asks a database. It connects when it is entered with `async with`, and changes nothing."""
    return dialect_of(url).facts(url, schema=schema, direct=direct)
