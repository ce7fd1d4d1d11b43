"""The log in every store, as tests see it: something to add to, and the store that reads it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import msgspec

from postroad import Message, Outbox
from postroad.brokers.memory import MemoryBroker
from postroad.stores.base import Lease, Store
from postroad.stores.cursor import PageLimit
from postroad.stores.memory import MemoryStore
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.services.postgresql import PostgreSQL

_databases: dict[PostgreSQL, str] = {}

OUTBOX = Outbox(source="/tests")
PLENTY = PageLimit(rows=1000, payload_bytes=1 << 30)


class Log(Protocol):
    """A migrated database and its store, which is not open yet."""

    @property
    def store(self) -> Store: ...

    async def add(self, *messages: Message) -> None:
        """Add messages in one transaction, and commit."""

    async def add_in_vain(self, *messages: Message) -> None:
        """Add messages in one transaction, and roll back."""

    async def make_older(self, by: timedelta) -> None:
        """Let every row in the log have been added that much earlier."""

    def another_store(self) -> Store:
        """A second store for the same database, as another process would have."""
        ...


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
        self.store = MemoryStore()

    async def add(self, *messages: Message) -> None:
        with self.store.begin() as transaction:
            OUTBOX.add_many(transaction, messages)

    async def add_in_vain(self, *messages: Message) -> None:
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

    def another_store(self) -> Store:
        return self.store


class SQLiteLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        migrate_sqlite(path)
        self.store: Store = SQLiteStore(path)

    async def add(self, *messages: Message) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            OUTBOX.add_many(connection, messages)

    async def add_in_vain(self, *messages: Message) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            OUTBOX.add_many(connection, messages)
            connection.rollback()

    async def make_older(self, by: timedelta) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("update postroad_outbox set created_at = created_at - ?", (by.total_seconds() * 1e6,))

    def another_store(self) -> Store:
        return SQLiteStore(self.path)


class PostgreSQLLog:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = PostgreSQLStore(url)

    @classmethod
    async def fresh(cls, server: PostgreSQL) -> PostgreSQLLog:
        """An empty log. A new schema in a database that is there takes milliseconds, a new database half a second."""
        server.start()
        if server not in _databases:
            _databases[server] = server.create_database()
        log = cls(_databases[server])
        await log.execute("drop schema if exists postroad cascade")
        await migrate_postgresql(log.url)
        return log

    async def connect(self) -> Any:
        return await asyncpg.connect(self.url)

    async def execute(self, sql: str, *values: object) -> Any:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(sql, *values)
        finally:
            await connection.close()

    async def add(self, *messages: Message) -> None:
        connection = await asyncpg.connect(self.url)
        async with connection.transaction():
            await OUTBOX.add_many(connection, messages)
        await connection.close()

    async def add_in_vain(self, *messages: Message) -> None:
        connection = await asyncpg.connect(self.url)
        transaction = connection.transaction()
        await transaction.start()
        await OUTBOX.add_many(connection, messages)
        await transaction.rollback()
        await connection.close()

    async def make_older(self, by: timedelta) -> None:
        await self.execute("update postroad.outbox set created_at = created_at - $1::interval", by)

    def another_store(self) -> Store:
        return PostgreSQLStore(self.url)


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
