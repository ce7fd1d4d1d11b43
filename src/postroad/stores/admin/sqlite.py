"""Named queries for `Admin` on SQLite: a small pool of connections, each with a thread of its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import StoreUnavailable
from postroad.sink_filter import SinkFilter
from postroad.stores.admin.session import Rows
from postroad.stores.dialects import SQLITE
from postroad.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import timedelta
    from pathlib import Path

    from postroad.stores.admin.session import Query
    from postroad.stores.base import Blocker, Cleaned
    from postroad.stores.leases import RelayStatus

__all__ = ["SQLiteAdminDatabase"]


class SQLiteAdminDatabase:
    """See `AdminDatabase` for the contract. `connections` calls run at the same time; further ones wait."""

    sink_tables = SQLITE.sink_tables

    def __init__(
        self, path: Path | str, *, schema: str = DEFAULT_SCHEMA, connections: int = 1, busy_timeout: float = 30.0
    ) -> None:
        self._path = path
        self._schema = schema
        self._busy_timeout = busy_timeout
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._writing = asyncio.Lock()  # SQLite has one writer at a time, and its own lock is polled for
        self._is_open = False

    async def open(self) -> None:
        """Open the first connection, which checks the file and its schema. Others are opened when they are needed."""
        self._is_open = True
        async with self._borrowed():
            pass

    async def close(self) -> None:
        """Close the connections. One that a call still uses is closed when that call ends."""
        self._is_open = False
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Query]:
        async with self._borrowed() as connection:
            yield connection.query

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Query]:
        """Borrow a connection for one transaction without a lock; its first query takes the snapshot."""
        async with self._borrowed() as connection:
            await connection.begin_reading()
            yield connection.query
            await connection.commit()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Query]:
        """Borrow a connection for one transaction. It has the write lock from its beginning."""
        async with self._writing, self._borrowed() as connection:
            await connection.begin()
            yield connection.query
            await connection.commit()

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        async with self._writing, self._borrowed() as connection:
            return await connection.delete_passed(after=after, older_than=older_than, batch=batch, key=key)

    async def blockers(self, *, longer_than: timedelta) -> Sequence[Blocker]:
        """List none: SQLite does not tell which connection has the write lock."""
        return ()

    async def relays(self) -> Sequence[RelayStatus]:
        async with self._borrowed() as connection:
            return await connection.leases.relays()

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Connection]:
        """Borrow a connection. One whose block raised is closed, which rolls back, also when its thread is still busy
        with a statement whose caller was canceled.
        """
        async with self._free:
            if not self._is_open:
                raise StoreUnavailable("the database is not open")
            connection = self._idle.pop() if self._idle else self._new_connection()
            try:
                await connection.ensure_open()
                yield connection
            except BaseException:
                await connection.close()
                raise
            if self._is_open:
                self._idle.append(connection)
            else:
                await connection.close()

    def _new_connection(self) -> Connection:
        return Connection(self._path, schema=self._schema, busy_timeout=self._busy_timeout)


class Connection(SQLiteStore):
    """A store's connection and thread, with transactions that last for several calls."""

    async def ensure_open(self) -> None:
        if self._connection is None:
            await self.open()

    async def query(self, name: str, *values: Any) -> Sequence[Sequence[Any]]:
        return await self._fetch(name, *map(_as_parameter, values))

    async def begin(self) -> None:
        """Begin a transaction with the write lock, which is on disk once it is committed."""
        await self._run(self._begin)

    async def begin_reading(self) -> None:
        """Begin a transaction that takes no lock until it writes."""
        await self._run(lambda: self._open().execute("begin deferred"))

    async def commit(self) -> None:
        await self._run(lambda: self._open().commit())

    def _begin(self) -> None:
        self._open().execute("pragma synchronous = full")
        self._open().execute("begin immediate")


def _as_parameter(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Rows):
        return msgspec.json.encode(value.rows).decode()
    if isinstance(value, SinkFilter):
        return value.text
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    return value
