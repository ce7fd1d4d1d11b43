"""Databases with the log in them. `store_for` picks one by its URL; a driver is imported only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.config import DEFAULT_SCHEMA
from postroad.stores.dialects import dialect_of

if TYPE_CHECKING:
    from postroad.stores.base import Store
    from postroad.stores.operating import Operating

__all__ = ["dialect_of", "migrate", "operating_for", "store_for"]


async def migrate(url: str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Apply the migrations that a database has not had yet, and return their numbers."""
    return await dialect_of(url).migrate(url, schema)


def store_for(url: str, *, schema: str = DEFAULT_SCHEMA, direct: str | None = None, connections: int = 5) -> Store:
    """The store for a database URL. It is not connected yet. `connections` is how many it makes, where that matters.

    `direct` is the same PostgreSQL database without a pooler in between, because LISTEN does not work through one.
    """
    return dialect_of(url).store(url, schema=schema, direct=direct, connections=connections)


def operating_for(url: str, *, schema: str = DEFAULT_SCHEMA) -> Operating:
    """What an operator works with, for a database URL. It connects when it is entered with `async with`."""
    return dialect_of(url).operating(url, schema=schema)
