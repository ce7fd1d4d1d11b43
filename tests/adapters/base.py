"""A user's way to the database, as the contract suite sees it: the same verbs, sync or async."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any, Protocol

from tests.logs import PostgreSQLLog


class Database(Protocol):
    """A migrated database with a table `orders`, looked at from outside of every transaction."""

    async def rows(self, sql: str) -> list[tuple[Any, ...]]: ...

    async def unmigrate(self) -> None:
        """Take the log away."""

    @property
    def outbox(self) -> str:
        """The log's table."""
        ...

    @property
    def scheduled(self) -> str:
        """The table of what is to be sent later."""
        ...


class OnPostgreSQL:
    outbox = "postroad.outbox"
    scheduled = "postroad.scheduled"

    def __init__(self, log: PostgreSQLLog) -> None:
        self.url = log.url
        self._log = log

    async def prepare(self) -> OnPostgreSQL:
        await self._log.execute("create table orders (id integer primary key)")
        return self

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._log.execute(sql)]

    async def unmigrate(self) -> None:
        await self._log.execute("drop schema postroad cascade")


class OnSQLite:
    outbox = "postroad_outbox"
    scheduled = "postroad_scheduled"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._execute("create table orders (id integer primary key)")

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._execute(sql)

    async def unmigrate(self) -> None:
        self._execute("drop table postroad_outbox")

    def _execute(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql).fetchall()


class Trips:
    """How often the database was asked."""

    def __init__(self) -> None:
        self.count = 0


class Adapter(Protocol):
    """One kind of connection."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection in a transaction, which is committed at the end, or rolled back if the block raises."""
        ...

    def savepoint(self, connection: Any) -> AbstractAsyncContextManager[None]:
        """Rolled back if the block raises."""
        ...

    async def order(self, connection: Any, number: int) -> None:
        """Write a business row."""

    def outside(self) -> AbstractAsyncContextManager[Any]:
        """A connection that would commit what is added by itself."""
        ...

    def closed(self) -> AbstractAsyncContextManager[Any]:
        """A connection that was closed."""
        ...

    def trips(self, connection: Any) -> AbstractAsyncContextManager[Trips]:
        """Count how often the database is asked inside the block."""
        ...


async def done(added: Any) -> Any:
    """What was added, awaited if it has to be."""
    return await added if isawaitable(added) else added


@contextmanager
def asked_over_the_wire(pgconn: Any) -> Iterator[Trips]:
    """libpq's own trace of what it sends: each round trip ends with a Sync, or is a simple Query."""
    trips = Trips()
    with tempfile.TemporaryFile("w+") as trace:
        pgconn.trace(trace.fileno())
        try:
            yield trips
        finally:
            pgconn.untrace()
        trace.seek(0)
        words = [line.split("\t") for line in trace.read().splitlines()]
        trips.count = sum("F" in line and bool({"Sync", "Query"} & set(line)) for line in words)


@asynccontextmanager
async def counted_calls(thing: Any, *names: str) -> AsyncIterator[Trips]:
    """Count the calls of these methods."""
    trips = Trips()

    def counting(method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            trips.count += 1
            return method(*arguments, **options)

        return call

    for name in names:
        setattr(thing, name, counting(getattr(thing, name)))
    try:
        yield trips
    finally:
        for name in names:
            delattr(thing, name)
