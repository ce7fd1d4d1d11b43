"""The ways to the database on which `add` is compared: each driver's transaction, and its INSERT written by hand.

By hand means the shortest way that the library has. With SQLAlchemy that is `exec_driver_sql`, not `text` or `insert`,
which would have to be compiled first.
"""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import django
import psycopg
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from benchmarks.by_hand import INSERT, INSERT_MANY, INSERT_SQLITE, columns, row, row_sqlite, with_percent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from benchmarks.by_hand import OrderPlaced


class Way(NamedTuple):
    """An open connection of one kind."""

    transaction: Callable[[], AbstractAsyncContextManager[Any]]
    """Begins, gives what `add` takes, and commits."""
    insert: Callable[[Any, OrderPlaced], Any]
    """What is asynchronous gives something to be awaited, and so does the next."""
    insert_many: Callable[[Any, Sequence[OrderPlaced]], Any]


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Way]:
    connection: Any = await asyncpg.connect(url)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with connection.transaction():
            yield connection

    yield Way(begin, lambda c, e: c.execute(INSERT, *row(e)), lambda c, es: c.execute(INSERT_MANY, *columns(es)))
    await connection.close()


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Way]:
    one, many = with_percent(INSERT), with_percent(INSERT_MANY)
    with psycopg.connect(url) as connection:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            yield connection
            connection.commit()

        yield Way(
            begin, lambda c, e: c.execute(one, row(e)) and None, lambda c, es: c.execute(many, columns(es)) and None
        )


@asynccontextmanager
async def by_psycopg_async(url: str) -> AsyncIterator[Way]:
    one, many = with_percent(INSERT), with_percent(INSERT_MANY)
    async with await psycopg.AsyncConnection.connect(url) as connection:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            yield connection
            await connection.commit()

        yield Way(begin, lambda c, e: c.execute(one, row(e)), lambda c, es: c.execute(many, columns(es)))


@asynccontextmanager
async def by_session(url: str) -> AsyncIterator[Way]:
    one, many = with_percent(INSERT), with_percent(INSERT_MANY)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with Session(engine) as session, session.begin():
            yield session

    def insert(session: Session, event: OrderPlaced) -> None:
        session.connection().exec_driver_sql(one, row(event))

    def insert_many(session: Session, events: Sequence[OrderPlaced]) -> None:
        session.connection().exec_driver_sql(many, columns(events))

    yield Way(begin, insert, insert_many)
    engine.dispose()


@asynccontextmanager
async def by_async_session(url: str) -> AsyncIterator[Way]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with AsyncSession(engine) as session, session.begin():
            yield session

    async def insert(session: AsyncSession, event: OrderPlaced) -> None:
        await (await session.connection()).exec_driver_sql(INSERT, row(event))

    async def insert_many(session: AsyncSession, events: Sequence[OrderPlaced]) -> None:
        await (await session.connection()).exec_driver_sql(INSERT_MANY, columns(events))

    yield Way(begin, insert, insert_many)
    await engine.dispose()


@asynccontextmanager
async def by_connection(url: str) -> AsyncIterator[Way]:
    one, many = with_percent(INSERT), with_percent(INSERT_MANY)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with engine.begin() as connection:
            yield connection

    yield Way(
        begin,
        lambda c, e: c.exec_driver_sql(one, row(e)) and None,
        lambda c, es: c.exec_driver_sql(many, columns(es)) and None,
    )
    engine.dispose()


@asynccontextmanager
async def by_async_connection(url: str) -> AsyncIterator[Way]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    yield Way(
        engine.begin,
        lambda c, e: c.exec_driver_sql(INSERT, row(e)),
        lambda c, es: c.exec_driver_sql(INSERT_MANY, columns(es)),
    )
    await engine.dispose()


@asynccontextmanager
async def by_django(url: str) -> AsyncIterator[Way]:
    parts = urlsplit(url)
    names = {"NAME": parts.path[1:], "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username}
    if not settings.configured:
        settings.configure()
    django.setup()
    one, many = with_percent(INSERT), with_percent(INSERT_MANY)
    connection: Any = ConnectionHandler({"default": {"ENGINE": "django.db.backends.postgresql", **names}})["default"]
    connection.alias = "benchmark"
    connections["benchmark"] = connection

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with transaction.atomic(using="benchmark"):
            yield connection

    def insert(connection: Any, event: OrderPlaced) -> None:
        with connection.cursor() as cursor:
            cursor.execute(one, row(event))

    def insert_many(connection: Any, events: Sequence[OrderPlaced]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(many, columns(events))

    yield Way(begin, insert, insert_many)
    connection.close()


ON_POSTGRESQL = {
    "asyncpg": by_asyncpg,
    "psycopg": by_psycopg,
    "psycopg, async": by_psycopg_async,
    "SQLAlchemy Session, psycopg": by_session,
    "SQLAlchemy Connection, psycopg": by_connection,
    "SQLAlchemy AsyncSession, asyncpg": by_async_session,
    "SQLAlchemy AsyncConnection, asyncpg": by_async_connection,
    "Django, psycopg": by_django,
}


# -- SQLite ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def by_sqlite3(path: Path) -> AsyncIterator[Way]:
    with closing(sqlite3.connect(path)) as connection:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            with connection:
                yield connection

        def insert(connection: sqlite3.Connection, event: OrderPlaced) -> None:
            connection.execute(INSERT_SQLITE, row_sqlite(event))

        def insert_many(connection: sqlite3.Connection, events: Sequence[OrderPlaced]) -> None:
            connection.executemany(INSERT_SQLITE, [row_sqlite(event) for event in events])

        yield Way(begin, insert, insert_many)


@asynccontextmanager
async def by_aiosqlite(path: Path) -> AsyncIterator[Way]:
    async with aiosqlite.connect(path) as connection:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            yield connection
            await connection.commit()

        yield Way(
            begin,
            lambda c, e: c.execute(INSERT_SQLITE, row_sqlite(e)),
            lambda c, es: c.executemany(INSERT_SQLITE, [row_sqlite(e) for e in es]),
        )


@asynccontextmanager
async def by_session_on_sqlite(path: Path) -> AsyncIterator[Way]:
    engine = create_engine(f"sqlite:///{path}")

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with Session(engine) as session, session.begin():
            yield session

    def insert(session: Session, event: OrderPlaced) -> None:
        session.connection().exec_driver_sql(INSERT_SQLITE, row_sqlite(event))

    def insert_many(session: Session, events: Sequence[OrderPlaced]) -> None:
        session.connection().exec_driver_sql(INSERT_SQLITE, [row_sqlite(event) for event in events])

    yield Way(begin, insert, insert_many)
    engine.dispose()


ON_SQLITE = {
    "sqlite3": by_sqlite3,
    "aiosqlite": by_aiosqlite,
    "SQLAlchemy Session, sqlite3": by_session_on_sqlite,
}
