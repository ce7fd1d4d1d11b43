"""Which adapter a connection needs. Its class says which driver it comes from; no driver is imported to find out.

An adapter's module is imported when the first connection of its kind is used. The driver is loaded by then, or the
object could not exist.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from postroad.errors import UnsupportedConnection

if TYPE_CHECKING:
    from postroad.stores.connections.adapter import ConnectionAdapter

__all__ = ["adapter_for"]

# (package, class name) of a connection's class or of one of its base classes → (module in this folder, its adapter).
_ADAPTERS = {
    ("sqlite3", "Connection"): ("sqlite", "SQLITE3"),
    ("aiosqlite", "Connection"): ("sqlite", "AIOSQLITE"),
    ("asyncpg", "Connection"): ("asyncpg", "ASYNCPG"),
    ("asyncpg", "PoolConnectionProxy"): ("asyncpg", "ASYNCPG"),
    ("psycopg", "Connection"): ("psycopg", "PSYCOPG"),
    ("psycopg", "AsyncConnection"): ("psycopg", "PSYCOPG_ASYNC"),
    ("sqlalchemy", "Connection"): ("sqlalchemy", "CONNECTION"),
    ("sqlalchemy", "AsyncConnection"): ("sqlalchemy", "ASYNC_CONNECTION"),
    ("sqlalchemy", "Session"): ("sqlalchemy", "SESSION"),
    ("sqlalchemy", "AsyncSession"): ("sqlalchemy", "ASYNC_SESSION"),
    ("sqlalchemy", "scoped_session"): ("sqlalchemy", "SCOPED_SESSION"),
    ("sqlalchemy", "async_scoped_session"): ("sqlalchemy", "ASYNC_SCOPED_SESSION"),
    ("django", "BaseDatabaseWrapper"): ("django", "DJANGO"),
    ("django", "ConnectionProxy"): ("django", "DJANGO"),
    ("postroad", "MemoryTransaction"): ("memory", "MEMORY"),
}

# What is easily passed by mistake, and what to do instead.
_HINTS = {
    (
        "asyncpg",
        "Pool",
    ): "an asyncpg pool is not a connection; use one of its connections: async with pool.acquire() as connection",
    ("psycopg_pool", "ConnectionPool"): "a psycopg pool is not a connection; use one of its connections: "
    "with pool.connection() as connection",
    ("psycopg_pool", "AsyncConnectionPool"): "a psycopg pool is not a connection; use one of its connections: "
    "async with pool.connection() as connection",
    ("psycopg", "BaseCursor"): "a psycopg cursor is not a connection; use its connection: cursor.connection",
    ("sqlite3", "Cursor"): "an sqlite3 cursor is not a connection; use its connection: cursor.connection",
    ("aiosqlite", "Cursor"): "an aiosqlite cursor is not a connection; pass the connection that it was made from",
    ("sqlalchemy", "Engine"): "a SQLAlchemy engine is not a connection; use one of its connections: "
    "with engine.begin() as connection",
    ("sqlalchemy", "AsyncEngine"): "a SQLAlchemy engine is not a connection; use one of its connections: "
    "async with engine.begin() as connection",
    ("sqlalchemy", "sessionmaker"): "a sessionmaker is not a session; let it make one: with Session.begin() as session",
    ("sqlalchemy", "async_sessionmaker"): "a sessionmaker is not a session; let it make one: "
    "async with Session.begin() as session",
    ("django", "BaseConnectionHandler"): "Django's connections are several; say which: connections['default']",
    ("django", "CursorWrapper"): "a Django cursor is not a connection; use django.db.connection",
}

_SUPPORTED = (
    "it takes an sqlite3.Connection; an asyncpg connection (pip install 'postroad[postgresql]'); a psycopg connection, "
    "sync or async (postroad[psycopg]); an aiosqlite connection (postroad[aiosqlite]); a SQLAlchemy Session, "
    "AsyncSession, Connection or AsyncConnection (postroad[sqlalchemy]); or Django's connection (postroad[django])"
)


@cache
def adapter_for(cls: type) -> ConnectionAdapter:
    """The adapter for connections of this class. Raises UnsupportedConnection."""
    names = _names(cls)
    for name in names:
        if name in _ADAPTERS:
            module, adapter = _ADAPTERS[name]
            found: ConnectionAdapter = getattr(import_module(f"postroad.stores.connections.{module}"), adapter)
            return found
    for name in names:
        if name in _HINTS:
            raise UnsupportedConnection(_HINTS[name])
    raise UnsupportedConnection(
        f"{cls.__module__}.{cls.__qualname__} is not a connection that postroad supports; {_SUPPORTED}"
    )


def _names(cls: type) -> list[tuple[str, str]]:
    return [(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__]
