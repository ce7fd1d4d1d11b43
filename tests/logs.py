"""The log in every store, as tests see it: something to add to, and the store that reads it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import asyncpg
import msgspec
import pytest

from postroad import Cancellation, Message, Outbox
from postroad.brokers.memory import MemoryBroker
from postroad.stores.base import Lease, Store
from postroad.stores.cursor import PageLimit
from postroad.stores.memory import MemoryStore
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.lanes import HERE
from tests.services.postgresql import PostgreSQL

_templates: dict[PostgreSQL, str] = {}
_databases: dict[PostgreSQL, str] = {}

OUTBOX = Outbox(source="/tests")
PLENTY = PageLimit(rows=1000, payload_bytes=1 << 30)


class DeferredRow(NamedTuple):
    """A row of `deferred`; times are seconds from now."""

    sink: str
    lane: int
    position: int
    key: str | None
    state: str
    attempts: int
    due_in: float | None
    epoch: int | None
    route: str | None
    error: str | None
    blocks: bool
    first_failed: float | None
    last_failed: float | None

    @property
    def due(self) -> bool:
        return self.due_in is not None and self.due_in <= 0


class Attempt(NamedTuple):
    """A row of `attempts`."""

    sink: str
    position: int
    attempt: int
    error: str


class Log(Protocol):
    """A migrated database and its store, which is not open yet."""

    @property
    def store(self) -> Store: ...

    async def add(self, *messages: Message) -> None:
        """Add messages in one transaction, and commit."""

    async def add_and_roll_back(self, *messages: Message) -> None:
        """Add messages in one transaction, and roll back."""

    async def make_older(self, by: timedelta) -> None:
        """Let every row in the log have been added that much earlier."""

    async def pass_time(self, by: timedelta) -> None:
        """Let that much time pass for deferred messages, and for what is to be sent later."""

    async def cancel(self, *ids: UUID, commit: bool = True) -> list[Cancellation]:
        """Cancel messages in one transaction, and commit or roll back."""
        ...

    async def scheduled(self) -> list[UUID]:
        """What is to be sent later, by when it is due."""
        ...

    async def delete(self, position: int) -> None:
        """Delete a row of the log by hand, which is forbidden."""

    async def deferred(self) -> list[DeferredRow]:
        """All deferred messages, by sink and position."""
        ...

    async def attempts(self) -> list[Attempt]:
        """The history of what failed, as it happened."""
        ...

    async def waiting(self) -> int:
        """How many messages no lane has dealt with, counted one by one; once for each sink."""
        ...

    async def cursors(self) -> list[int]:
        """How far each lane has come."""
        ...

    def another_store(self) -> Store:
        """A second store for the same database, as another process would have."""
        ...

    async def close(self) -> None:
        """Close what a test has left open, so that no other test fails when it is collected."""


class Arrivals(MemoryBroker):
    """A broker that tells when something has arrived."""

    async def until(self, *wanted: int) -> None:
        async with asyncio.timeout(60):
            while not set(wanted) <= set(self.numbers):
                self.asked.clear()
                await self.asked.wait()
                await asyncio.sleep(0)

    @property
    def numbers(self) -> list[int]:
        return [int(message.payload) for message in self.messages]


class MemoryLog:
    def __init__(self) -> None:
        self._ahead = 0.0
        self.store = MemoryStore(clock=self._now)

    def _now(self) -> float:
        return time.time() + self._ahead

    async def add(self, *messages: Message) -> None:
        with self.store.begin() as transaction:
            OUTBOX.add_many(transaction, messages)

    async def add_and_roll_back(self, *messages: Message) -> None:
        try:
            with self.store.begin() as transaction:
                OUTBOX.add_many(transaction, messages)
                raise LookupError
        except LookupError:
            pass

    async def make_older(self, by: timedelta) -> None:
        earlier = int(by.total_seconds() * 1e6)
        self.store._log = [
            msgspec.structs.replace(each, created_us=each.created_us - earlier) for each in self.store._log
        ]

    async def pass_time(self, by: timedelta) -> None:
        self._ahead += by.total_seconds()

    async def cancel(self, *ids: UUID, commit: bool = True) -> list[Cancellation]:
        answers = []
        try:
            with self.store.begin() as transaction:
                answers = [OUTBOX.cancel(transaction, id) for id in ids]
                if not commit:
                    raise LookupError
        except LookupError:
            pass
        return answers

    async def scheduled(self) -> list[UUID]:
        return sorted(self.store._scheduled, key=lambda each: self.store._scheduled[each][0])

    async def delete(self, position: int) -> None:
        self.store._log = [each for each in self.store._log if each.position != position]

    async def deferred(self) -> list[DeferredRow]:
        now = self._now()

        def ago(at: float | None) -> float | None:
            return None if at is None else at - now

        return [
            DeferredRow(
                sink, row.lane, position, row.key, row.state.value, row.attempts, ago(row.due_at), row.epoch, row.route,
                row.error, row.blocks, ago(row.first_failed_at), ago(row.last_failed_at),
            )
            for (sink, position), row in sorted(self.store._deferred.items())
        ]  # fmt: skip

    async def attempts(self) -> list[Attempt]:
        return [Attempt(each.sink, each.position, each.attempt, each.error) for each in self.store._attempts]

    async def waiting(self) -> int:
        return sum(
            each.position > lane.cursor.position and lane.first_slot <= each.slot <= lane.last_slot
            for lane in self.store._lanes.values()
            for each in self.store._log
        )

    async def cursors(self) -> list[int]:
        return [lane.cursor.position for lane in self.store._lanes.values()]

    def another_store(self) -> Store:
        return self.store

    async def close(self) -> None:
        await self.store.close()


class SQLiteLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        migrate_sqlite(path)
        self.store: Store = SQLiteStore(path)

    async def add(self, *messages: Message) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            OUTBOX.add_many(connection, messages)

    async def add_and_roll_back(self, *messages: Message) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            OUTBOX.add_many(connection, messages)
            connection.rollback()

    async def make_older(self, by: timedelta) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("update postroad_outbox set created_at = created_at - ?", (by.total_seconds() * 1e6,))

    async def pass_time(self, by: timedelta) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for table in ("deferred", "scheduled", "copies"):
                connection.execute(f"update postroad_{table} set due_at = due_at - ?", (by.total_seconds() * 1e6,))

    async def cancel(self, *ids: UUID, commit: bool = True) -> list[Cancellation]:
        with closing(sqlite3.connect(self.path)) as connection:
            answers = [OUTBOX.cancel(connection, id) for id in ids]
            (connection.commit if commit else connection.rollback)()
            return answers

    async def scheduled(self) -> list[UUID]:
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("select id from postroad_scheduled order by due_at, number").fetchall()
        return [UUID(id) for (id,) in rows]

    async def delete(self, position: int) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("delete from postroad_outbox where position = ?", (position,))

    async def deferred(self) -> list[DeferredRow]:
        now = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(
                f"select sink, lane, position, key, state, attempts, (due_at - {now}) / 1e6, epoch, route, error, "
                f"blocks, (first_failed_at - {now}) / 1e6, (last_failed_at - {now}) / 1e6 "
                "from postroad_deferred order by sink, position"
            ).fetchall()
        return [DeferredRow(*row) for row in rows]

    async def attempts(self) -> list[Attempt]:
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(
                "select sink, position, attempt, error from postroad_attempts order by failed_at, position"
            ).fetchall()
        return [Attempt(*row) for row in rows]

    def execute(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql).fetchall()

    async def waiting(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            query = "select count(*) from postroad_outbox_status where state = 'waiting'"
            return int(connection.execute(query).fetchone()[0])

    async def cursors(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [row[0] for row in connection.execute("select position from postroad_lanes")]

    def another_store(self) -> Store:
        return SQLiteStore(self.path)

    async def close(self) -> None:
        await self.store.close()


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Any]:
    """A connection to PostgreSQL for a block."""
    connection = await asyncpg.connect(url, **options)
    try:
        yield connection
    finally:
        await connection.close()


class PostgreSQLLog:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = PostgreSQLStore(url)
        self._connections: list[Any] = []

    @classmethod
    async def fresh(cls, server: PostgreSQL) -> PostgreSQLLog:
        """An empty log, in a database of its own; the one before it on that server is dropped.

        To copy a database with the schema takes a third of what it takes to drop the schema, and to make it anew.
        """
        server.start()
        if server not in _templates:
            url = server.create_database()
            await cls(url).migrate()
            _templates[server] = url.rpartition("/")[2]
        if server in _databases:
            server.drop_database(_databases.pop(server))
        _databases[server] = server.create_database(_templates[server])
        return cls(_databases[server])

    async def migrate(self) -> None:
        """Make the schema."""
        await migrate_postgresql(self.url)

    async def connect(self, **options: Any) -> Any:
        """A connection that is closed with the log at the latest."""
        connection = await asyncpg.connect(self.url, **options)
        self._connections.append(connection)
        return connection

    def connected(self, **options: Any) -> AbstractAsyncContextManager[Any]:
        """A connection for a block."""
        return connected(self.url, **options)

    async def execute(self, sql: str, *values: object) -> Any:
        async with self.connected() as connection:
            return await connection.fetch(sql, *values)

    async def add(self, *messages: Message) -> None:
        async with self.connected() as connection, connection.transaction():
            await OUTBOX.add_many(connection, messages)

    async def add_and_roll_back(self, *messages: Message) -> None:
        async with self.connected() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await OUTBOX.add_many(connection, messages)
            await transaction.rollback()

    async def make_older(self, by: timedelta) -> None:
        await self.execute("update postroad.outbox set created_at = created_at - $1::interval", by)

    async def pass_time(self, by: timedelta) -> None:
        for table in ("deferred", "scheduled", "copies"):
            await self.execute(f"update postroad.{table} set due_at = due_at - $1::interval", by)

    async def cancel(self, *ids: UUID, commit: bool = True) -> list[Cancellation]:
        async with self.connected() as connection:
            transaction = connection.transaction()
            await transaction.start()
            answers = [await OUTBOX.cancel(connection, id) for id in ids]
            await (transaction.commit() if commit else transaction.rollback())
            return answers

    async def scheduled(self) -> list[UUID]:
        return [row["id"] for row in await self.execute("select id from postroad.scheduled order by due_at, number")]

    async def delete(self, position: int) -> None:
        await self.execute("delete from postroad.outbox where position = $1", position)

    async def deferred(self) -> list[DeferredRow]:
        rows = await self.execute(
            "select sink, lane, position, key, state, attempts, extract(epoch from due_at - now())::float8, epoch, "
            "route, error, blocks, extract(epoch from first_failed_at - now())::float8, "
            "extract(epoch from last_failed_at - now())::float8 from postroad.deferred order by sink, position"
        )
        return [DeferredRow(*row) for row in rows]

    async def attempts(self) -> list[Attempt]:
        rows = await self.execute(
            "select sink, position, attempt, error from postroad.attempts order by failed_at, position"
        )
        return [Attempt(*row) for row in rows]

    async def waiting(self) -> int:
        counted = await self.execute("select count(*) from postroad.outbox_status where state = 'waiting'")
        return int(counted[0][0])

    async def cursors(self) -> list[int]:
        return [row[0] for row in await self.execute("select position from postroad.lanes")]

    def another_store(self) -> Store:
        return PostgreSQLStore(self.url)

    async def close(self) -> None:
        for connection in self._connections:
            connection.terminate()  # which does nothing to a closed one
        await self.store.close()


def log_fixture(*stores: str, opened: bool = False, lanes: int = 0) -> Any:
    """A fixture for a module: an empty log in each of these stores in turn, of which nothing stays open.

    A store is "memory", "sqlite", or the name of a server's fixture; "postgresql" alone is each version in turn. The
    log's own store is open if `opened`; with `lanes` it has a sink `s` of so many.
    """

    @asynccontextmanager
    async def made(store: str, request: pytest.FixtureRequest) -> AsyncIterator[Log]:
        log: Log
        if store == "memory":
            log = MemoryLog()
        elif store == "sqlite":
            log = SQLiteLog(request.getfixturevalue("tmp_path") / "log.sqlite")
        else:
            log = await PostgreSQLLog.fresh(request.getfixturevalue(store))
        try:
            if opened or lanes:
                await log.store.open()
            if lanes:
                await log.store.leases.create("s", HERE, lanes=lanes, start="oldest")
            yield log
        finally:
            await log.close()

    if stores == ("postgresql",):

        @pytest.fixture
        async def each_version(request: pytest.FixtureRequest, postgresql: PostgreSQL) -> AsyncIterator[Log]:
            async with made("postgresql", request) as log:
                yield log

        return each_version

    @pytest.fixture(params=stores if len(stores) > 1 else None)
    async def each_store(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
        async with made(getattr(request, "param", stores[0]), request) as log:
            yield log

    return each_store


def numbered(*numbers: int, key: Any = None, **fields: Any) -> list[Message]:
    """Messages whose payload is a number, so that tests can tell them apart; without `key` each is its own key."""
    return [Message(str(number), type="test.number", key=key or f"k{number}", **fields) for number in numbers]


async def read_all(store: Store, lease: Lease, limit: PageLimit = PLENTY) -> list[int]:
    """Read and settle a lane until nothing is left; the numbers that it saw."""
    seen: list[int] = []
    while True:
        page = await store.read(lease, lease.cursor, limit)
        seen += [int(message.payload) for message in page.messages]
        lease = await store.settle(lease, page.after)
        if not page.messages and not page.before.catching_up:
            return seen
