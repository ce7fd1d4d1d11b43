"""Where a consumer's handlers write: a table `effects`, on each kind of transaction that `begin` may give."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import django
import psycopg
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from postroad import Outbox
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

OUTBOX = Outbox(source="/effects")
INSERT = "insert into effects (number) values ({})"


class Place(NamedTuple):
    """One kind of transaction."""

    begin: Callable[[], Any]
    insert: Callable[[Any, int], Any]
    is_async: bool
    rows: Callable[[str], Any]
    """Looks at the database from outside; to be awaited."""
    schema: str

    def handler(self, before: Callable[[Any, Any], None] = lambda event, message: None, *, adds: bool = False) -> Any:
        """Calls `before`, which may raise; then writes the effect, and adds what follows."""

        async def asynchronous(event: Any, tx: Any, message: Any) -> None:
            before(event, message)
            await self.insert(tx, event.number)
            if adds:
                await OUTBOX.add(tx, {"number": event.number}, type="followed", key=event.number)

        def sync(event: Any, tx: Any, message: Any) -> None:
            before(event, message)
            self.insert(tx, event.number)
            if adds:
                OUTBOX.add(tx, {"number": event.number}, type="followed", key=event.number)

        return asynchronous if self.is_async else sync

    def batch_handler(self, before: Callable[[Any], None] = lambda batch: None) -> Any:
        async def asynchronous(batch: Any, tx: Any) -> None:
            before(batch)
            for event, _ in batch:
                await self.insert(tx, event.number)

        def sync(batch: Any, tx: Any) -> None:
            before(batch)
            for event, _ in batch:
                self.insert(tx, event.number)

        return asynchronous if self.is_async else sync

    async def effects(self) -> list[int]:
        return [row[0] for row in await self.rows("select number from effects order by at")]

    async def attempts(self) -> list[tuple[Any, ...]]:
        columns = "attempts, crashes, dead_at is not null"
        found = await self.rows(f"select {columns} from {self.schema}inbox_attempts order by id")
        return [(attempts, crashes, bool(dead)) for attempts, crashes, dead in found]

    async def errors(self) -> list[str]:
        return [row[0] for row in await self.rows(f"select error from {self.schema}inbox_attempts order by id")]

    async def noted(self) -> list[tuple[str, str]]:
        return [tuple(row) for row in await self.rows(f"select id, type from {self.schema}inbox order by id")]


async def on_postgresql(name: str, server: PostgreSQL, through: Callable[[str], str] | None = None) -> Place:
    """`through` gives the URL that transactions use."""
    log = await PostgreSQLLog.fresh(server)
    await log.execute("create table effects (at serial, number integer)")

    async def rows(sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await log.execute(sql)]

    begin, insert, is_async = transactions(name, log.url if through is None else through(log.url))
    return Place(begin, insert, is_async, rows, "postroad.")


def transactions(name: str, url: str) -> tuple[Any, Any, bool]:
    """`begin`, how to insert a number, and whether it is async, for one kind of connection to PostgreSQL."""
    return (_POSTGRESQL | _MORE_POSTGRESQL)[name](url)


def on_sqlite(name: str, path: Path) -> Place:
    migrate_sqlite(path)

    def execute(sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(sql).fetchall()

    async def rows(sql: str) -> list[tuple[Any, ...]]:
        return execute(sql)

    execute("create table effects (at integer primary key, number integer)")
    begin, insert, is_async = (_SQLITE | _MORE_SQLITE)[name](path)
    return Place(begin, insert, is_async, rows, "postroad_")


def asyncpg_transactions(url: str) -> tuple[Any, Any, bool]:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    return begin, lambda tx, number: tx.execute(INSERT.format("$1"), number), True


def _psycopg(url: str) -> tuple[Any, Any, bool]:
    return lambda: psycopg.connect(url), lambda tx, number: tx.execute(INSERT.format("%s"), (number,)), False


def _psycopg_async(url: str) -> tuple[Any, Any, bool]:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection

    return begin, lambda tx, number: tx.execute(INSERT.format("%s"), (number,)), True


def _by_sqlalchemy(tx: Any, number: int) -> Any:
    return tx.execute(text(INSERT.format(":number")), {"number": number})


def _session(url: str) -> tuple[Any, Any, bool]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    return sessionmaker(engine).begin, _by_sqlalchemy, False


def _async_session(url: str) -> tuple[Any, Any, bool]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), poolclass=NullPool)
    return async_sessionmaker(engine).begin, _by_sqlalchemy, True


def _sqlite3(path: Path) -> tuple[Any, Any, bool]:
    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(path)) as connection, connection:
            yield connection

    return begin, lambda tx, number: tx.execute(INSERT.format("?"), (number,)), False


def _aiosqlite(path: Path) -> tuple[Any, Any, bool]:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with aiosqlite.connect(path) as connection:
            yield connection
            await connection.commit()

    return begin, lambda tx, number: tx.execute(INSERT.format("?"), (number,)), True


_POSTGRESQL: dict[str, Callable[[str], tuple[Any, Any, bool]]] = {
    "asyncpg": asyncpg_transactions,
    "psycopg": _psycopg,
    "psycopg-async": _psycopg_async,
    "session": _session,
    "async-session": _async_session,
}
_SQLITE: dict[str, Callable[[Path], tuple[Any, Any, bool]]] = {"sqlite3": _sqlite3, "aiosqlite": _aiosqlite}
ON_POSTGRESQL, ON_SQLITE = tuple(_POSTGRESQL), tuple(_SQLITE)


# -- the same drivers, in other hands --------------------------------------------------------------------------------


def _connection(url: str) -> tuple[Any, Any, bool]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    return engine.begin, _by_sqlalchemy, False


def _async_connection(url: str) -> tuple[Any, Any, bool]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), poolclass=NullPool)
    return engine.begin, _by_sqlalchemy, True


def _async_session_psycopg(url: str) -> tuple[Any, Any, bool]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    return async_sessionmaker(engine).begin, _by_sqlalchemy, True


def _session_sqlite(path: Path) -> tuple[Any, Any, bool]:
    return sessionmaker(create_engine(f"sqlite:///{path}", poolclass=NullPool)).begin, _by_sqlalchemy, False


def _async_session_sqlite(path: Path) -> tuple[Any, Any, bool]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    return async_sessionmaker(engine).begin, _by_sqlalchemy, True


def _django(where: str | Path) -> tuple[Any, Any, bool]:
    """In threads, each with a connection of its own."""
    if not settings.configured:
        settings.configure()
    django.setup()
    connection_settings = django_settings(where)

    @contextmanager
    def begin() -> Iterator[Any]:
        connection = ConnectionHandler({"default": connection_settings})["default"]
        connection.alias = "postroad_place"
        connections["postroad_place"] = connection  # where transaction.atomic looks, in this thread
        try:
            with transaction.atomic(using="postroad_place"):
                yield connection
        finally:
            connection.close()

    def insert(tx: Any, number: int) -> None:
        with tx.cursor() as cursor:
            cursor.execute(INSERT.format("%s"), (number,))

    return begin, insert, False


def django_settings(where: str | Path) -> dict[str, Any]:
    if isinstance(where, Path):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(where)}
    url = urlsplit(where)
    at = {"NAME": url.path[1:], "HOST": url.hostname, "PORT": url.port, "USER": url.username}
    return {"ENGINE": "django.db.backends.postgresql"} | at


_MORE_POSTGRESQL: dict[str, Callable[[str], tuple[Any, Any, bool]]] = {
    "connection": _connection,
    "async-connection": _async_connection,
    "async-session-psycopg": _async_session_psycopg,
    "django": _django,
}
_MORE_SQLITE: dict[str, Callable[[Path], tuple[Any, Any, bool]]] = {
    "session-sqlite": _session_sqlite,
    "async-session-sqlite": _async_session_sqlite,
    "django-sqlite": _django,
}
EVERY_POSTGRESQL, EVERY_SQLITE = (*ON_POSTGRESQL, *_MORE_POSTGRESQL), (*ON_SQLITE, *_MORE_SQLITE)
