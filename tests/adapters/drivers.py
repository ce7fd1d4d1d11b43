"""The drivers themselves: sqlite3, aiosqlite, asyncpg, psycopg sync and async."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import aiosqlite
import asyncpg
import psycopg

from tests.adapters.base import OnPostgreSQL, OnSQLite, Trips, asked_over_the_wire, counted_calls


class CountableConnection(sqlite3.Connection):
    """Python's own has no attributes that could be replaced."""


class SQLite3:
    def __init__(self, database: OnSQLite) -> None:
        self.path = database.path

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with closing(sqlite3.connect(self.path, factory=CountableConnection)) as connection, connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        connection.execute("savepoint here")
        try:
            yield
        except BaseException:
            connection.execute("rollback to here")
            raise

    async def order(self, connection: Any, number: int) -> None:
        connection.execute("insert into orders values (?)", (number,))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            yield connection

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        connection = sqlite3.connect(self.path)
        connection.close()
        yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        async with counted_calls(connection, "execute", "executemany", "cursor") as trips:
            yield trips


class AioSQLite:
    def __init__(self, database: OnSQLite) -> None:
        self.path = database.path

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path) as connection:
            yield connection
            await connection.commit()

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        await connection.execute("savepoint here")
        try:
            yield
        except BaseException:
            await connection.execute("rollback to here")
            raise

    async def order(self, connection: Any, number: int) -> None:
        await connection.execute("insert into orders values (?)", (number,))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path, isolation_level=None) as connection:
            yield connection

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        async with aiosqlite.connect(self.path) as connection:
            pass
        yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        """Each visit to its thread."""
        async with counted_calls(connection, "_execute") as trips:
            yield trips


class AsyncPG:
    def __init__(self, database: OnPostgreSQL) -> None:
        self.url = database.url

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.outside() as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.transaction():
            yield

    async def order(self, connection: Any, number: int) -> None:
        await connection.execute("insert into orders values ($1)", number)

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        async with self.outside() as connection:
            pass
        yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        trips = Trips()

        def count(_: Any) -> None:
            trips.count += 1

        with connection.query_logger(count):
            yield trips


class Psycopg:
    def __init__(self, database: OnPostgreSQL) -> None:
        self.url = database.url

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.url) as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        with connection.transaction():
            yield

    async def order(self, connection: Any, number: int) -> None:
        connection.execute("insert into orders values (%s)", (number,))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield connection

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        with psycopg.connect(self.url) as connection:
            pass
        yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        with asked_over_the_wire(connection.pgconn) as trips:
            yield trips


class PsycopgAsync:
    def __init__(self, database: OnPostgreSQL) -> None:
        self.url = database.url

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            yield connection

    @asynccontextmanager
    async def savepoint(self, connection: Any) -> AsyncIterator[None]:
        async with connection.transaction():
            yield

    async def order(self, connection: Any, number: int) -> None:
        await connection.execute("insert into orders values (%s)", (number,))

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            yield connection

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            pass
        yield connection

    @asynccontextmanager
    async def trips(self, connection: Any) -> AsyncIterator[Trips]:
        with asked_over_the_wire(connection.pgconn) as trips:
            yield trips
