"""What type checkers know about connections: the shape of each, so that no driver has to be installed.

A shape has just enough to distinguish its connection from the others: `__enter__` or `__aenter__` separates sync from
async, and pools, engines and cursors lack the rest. An import for type checkers would not do: where a driver is
missing, its classes are Any to them, and Any would be taken for every kind at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from postroad.message import NewRow

__all__ = ["AsyncConnection", "SyncConnection"]


class MemoryConnection(Protocol):
    """A transaction of a MemoryStore."""

    rows: list[NewRow]


class SQLite3(Protocol):
    """An sqlite3.Connection."""

    @property
    def in_transaction(self) -> bool: ...
    def executemany(self, sql: str, parameters: Any, /) -> Any: ...
    def __enter__(self) -> Any: ...


class AioSQLite(Protocol):
    """An aiosqlite.Connection."""

    @property
    def in_transaction(self) -> bool: ...
    @property
    def isolation_level(self) -> str | None: ...
    async def __aenter__(self) -> Any: ...


class AsyncPG(Protocol):
    """An asyncpg connection, or the pool's proxy for one."""

    def is_in_transaction(self) -> bool: ...
    async def execute(self, query: str, *args: Any) -> str: ...


class Psycopg(Protocol):
    """A psycopg.Connection."""

    @property
    def autocommit(self) -> bool: ...
    @property
    def pgconn(self) -> Any: ...
    def __enter__(self) -> Any: ...


class AsyncPsycopg(Protocol):
    """A psycopg.AsyncConnection."""

    @property
    def autocommit(self) -> bool: ...
    @property
    def pgconn(self) -> Any: ...
    async def __aenter__(self) -> Any: ...


class SQLAlchemySession(Protocol):
    """A SQLAlchemy Session, or a scoped_session."""

    def expunge_all(self) -> None: ...
    def flush(self) -> None: ...


class SQLAlchemyAsyncSession(Protocol):
    """A SQLAlchemy AsyncSession, or an async_scoped_session."""

    def expunge_all(self) -> None: ...
    def flush(self) -> Awaitable[None]: ...


class SQLAlchemyConnection(Protocol):
    """A SQLAlchemy Connection."""

    def exec_driver_sql(self, statement: str, /) -> Any: ...
    def in_nested_transaction(self) -> bool: ...
    def __enter__(self) -> Any: ...


class SQLAlchemyAsyncConnection(Protocol):
    """A SQLAlchemy AsyncConnection."""

    def exec_driver_sql(self, statement: str, /) -> Awaitable[Any]: ...
    def in_nested_transaction(self) -> bool: ...
    async def __aenter__(self) -> Any: ...


class Django(Protocol):
    """One of Django's connections."""

    @property
    def in_atomic_block(self) -> bool: ...
    @property
    def vendor(self) -> str: ...


SyncConnection = SQLite3 | Psycopg | SQLAlchemySession | SQLAlchemyConnection | Django | MemoryConnection
AsyncConnection = AsyncPG | AsyncPsycopg | AioSQLite | SQLAlchemyAsyncSession | SQLAlchemyAsyncConnection
