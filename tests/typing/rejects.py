"""What type checkers must refuse, each on a line that ends with `# error`, and nothing else. Never run.

`# error` is for what pyright can't check: it reports a forgotten await for coroutines only.
"""

from __future__ import annotations

import sqlite3
from uuid import UUID

import aiosqlite
import asyncpg
import psycopg
import psycopg_pool
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

import postroad
from postroad import Cancellation, Consumer, Inbox, Message, Outbox, Received, retry_on_conflict

outbox = Outbox(source="/orders")


def not_awaited(
    *,
    sqlite: aiosqlite.Connection,
    pg: asyncpg.Connection[asyncpg.Record],
    psycopg_pg: psycopg.AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    connection: AsyncConnection,
) -> None:
    if outbox.add(pg, b"x", type="note"):  # error
        pass
    a: UUID = outbox.add(sqlite, b"x", type="note")  # error
    b: UUID = outbox.add(psycopg_pg, b"x", type="note")  # error
    c: UUID = outbox.add(session, b"x", type="note")  # error
    d: list[UUID] = outbox.add_many(connection, [Message(b"x", type="note")])  # error
    e = outbox.add(session, b"x", type="note").hex  # error
    outbox.add(sqlite, b"x", type="note")  # error
    outbox.add(pg, b"x", type="note")  # error
    outbox.add(psycopg_pg, b"x", type="note")  # error
    outbox.add(session, b"x", type="note")  # error
    outbox.add(scoped, b"x", type="note")  # error
    outbox.add(connection, b"x", type="note")  # error
    outbox.add(session, b"x", type="note", deliver_in="10m")  # error
    outbox.add_many(pg, [])  # error
    f: Cancellation = outbox.cancel(pg, UUID(int=1))  # error
    if outbox.cancel(session, UUID(int=1)):  # error
        pass
    outbox.cancel(session, UUID(int=1))  # error
    del a, b, c, d, e, f


async def awaited_in_vain(sqlite: sqlite3.Connection, pg: psycopg.Connection, session: Session) -> None:
    await outbox.add(sqlite, b"x", type="note")  # error
    await outbox.add(pg, b"x", type="note")  # error
    await outbox.add_many(session, [])  # error
    await outbox.cancel(session, UUID(int=1))  # error


def pools_and_cursors(
    pool: asyncpg.Pool[asyncpg.Record], sync_pool: psycopg_pool.ConnectionPool, cursor: sqlite3.Cursor
) -> None:
    outbox.add(pool, b"x", type="note")  # error
    outbox.add(sync_pool, b"x", type="note")  # error
    outbox.add(cursor, b"x", type="note")  # error
    outbox.add("postgresql://server/shop", b"x", type="note")  # error
    outbox.add(None, b"x", type="note")  # error


def engines_and_makers(
    engine: Engine,
    async_engine: AsyncEngine,
    maker: sessionmaker[Session],
    async_maker: async_sessionmaker[AsyncSession],
) -> None:
    outbox.add(engine, b"x", type="note")  # error
    outbox.add(async_engine, b"x", type="note")  # error
    outbox.add(maker, b"x", type="note")  # error
    outbox.add(async_maker, b"x", type="note")  # error


def wrong_arguments(connection: Connection) -> None:
    outbox.add(connection, b"x", type="note", key=None)  # error
    outbox.add(connection, b"x", type="note", key=1.5)  # error
    outbox.add(connection, b"x", type="note", headers={"tenant": 1})  # error
    outbox.add(connection, b"x", type="note", id="0190")  # error
    outbox.add(connection)  # error
    outbox.add_many(connection, [{"order": 1}])  # error
    outbox.add_many(connection, Message(b"x", type="note"))  # error
    outbox.add(connection, b"x", type="note", deliver_at="2030-01-01T00:00:00Z")  # error
    outbox.add(connection, b"x", type="note", deliver_in=10)  # error
    outbox.cancel(connection, "0190")  # error
    outbox.cancel(connection)  # error


def count() -> int:
    return 1


async def conflicts() -> None:
    a: int = retry_on_conflict(count, conflicts=LookupError)  # error
    b: int = await retry_on_conflict(count, conflicts=LookupError)  # error
    retry_on_conflict(count)  # error
    retry_on_conflict(count, conflicts=LookupError())  # error
    retry_on_conflict(count, conflicts=KeyboardInterrupt)  # error
    retry_on_conflict(count, conflicts=LookupError, give_up="ignore")  # error
    del a, b


inbox = Inbox()


def receiving(session: AsyncSession, sync: Session, sessions: async_sessionmaker[AsyncSession]) -> None:
    if inbox.first_time(session, "id", consumer="stock"):  # error
        pass
    first: bool = inbox.first_time(session, "id", consumer="stock")  # error
    inbox.first_time(session, "id", consumer="stock")  # error
    inbox.first_times(session, [], consumer="stock")  # error
    inbox.first_time(sync, "id")  # error
    inbox.first_time(sync, 7, consumer="stock")  # error
    inbox.first_times(sync, ["id"], consumer="stock")  # error
    Consumer("amqp://localhost", name="stock")  # error
    consumer = Consumer("amqp://localhost", name="stock", begin=sessions.begin)

    @consumer.on(Message)  # error
    async def wrong_event(event: Outbox, tx: AsyncSession, message: Received) -> None: ...

    @consumer.on(Message)  # error
    async def wrong_transaction(event: Message, tx: Session, message: Received) -> None: ...

    @consumer.on(Message)  # error
    async def too_few(event: Message, tx: AsyncSession) -> None: ...

    del first, wrong_event, wrong_transaction, too_few


def misspelt() -> object:
    return postroad.Relais  # error
