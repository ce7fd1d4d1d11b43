"""What type checkers must accept, and what they must make of it. Never run: `make check` reads it, twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_type
from uuid import UUID

import aiosqlite
import asyncpg
import asyncpg.pool
import psycopg
from django.db import connection as django_connection
from django.db import connections
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroad import Cancellation, Consumer, Inbox, Message, Outbox, Received, retry_on_conflict, upcast
from postroad.conflicts import AlreadyDone
from postroad.stores.memory import MemoryTransaction

outbox = Outbox(source="/orders")
messages = [Message({"order": 1}, type="order.created", key=1)]


def sync(
    *,
    sqlite: sqlite3.Connection,
    pg: psycopg.Connection,
    rows_of_dicts: psycopg.Connection[dict[str, object]],
    session: Session,
    scoped: scoped_session[Session],
    connection: Connection,
    memory: MemoryTransaction,
) -> None:
    assert_type(outbox.add(sqlite, b"x", type="note"), UUID)
    assert_type(outbox.add(pg, b"x", type="note"), UUID)
    assert_type(outbox.add(rows_of_dicts, b"x", type="note"), UUID)
    assert_type(outbox.add(session, b"x", type="note"), UUID)
    assert_type(outbox.add(scoped, b"x", type="note"), UUID)
    assert_type(outbox.add(connection, b"x", type="note"), UUID)
    assert_type(outbox.add(django_connection, b"x", type="note"), UUID)
    assert_type(outbox.add(connections["default"], b"x", type="note"), UUID)
    assert_type(outbox.add(memory, b"x", type="note"), UUID)

    assert_type(outbox.add_many(sqlite, messages), list[UUID])
    assert_type(outbox.add_many(pg, messages), list[UUID])
    assert_type(outbox.add_many(session, messages), list[UUID])
    assert_type(outbox.add_many(connection, messages), list[UUID])
    assert_type(outbox.add_many(django_connection, messages), list[UUID])
    assert_type(outbox.add_many(memory, messages), list[UUID])


async def asynchronous(
    *,
    sqlite: aiosqlite.Connection,
    pg: asyncpg.Connection[asyncpg.Record],
    pooled: asyncpg.pool.PoolConnectionProxy[asyncpg.Record],
    psycopg_pg: psycopg.AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    connection: AsyncConnection,
) -> None:
    await assert_type(outbox.add(sqlite, b"x", type="note"), Coroutine[Any, Any, UUID])
    await assert_type(outbox.add(pg, b"x", type="note"), Coroutine[Any, Any, UUID])
    await assert_type(outbox.add(pooled, b"x", type="note"), Coroutine[Any, Any, UUID])
    await assert_type(outbox.add(psycopg_pg, b"x", type="note"), Coroutine[Any, Any, UUID])
    await assert_type(outbox.add(session, b"x", type="note"), Coroutine[Any, Any, UUID])
    await assert_type(outbox.add(scoped, b"x", type="note"), Coroutine[Any, Any, UUID])
    await assert_type(outbox.add(connection, b"x", type="note"), Coroutine[Any, Any, UUID])

    assert_type(await outbox.add(session, b"x", type="note"), UUID)
    assert_type(await outbox.add_many(sqlite, messages), list[UUID])
    assert_type(await outbox.add_many(pg, messages), list[UUID])
    assert_type(await outbox.add_many(psycopg_pg, messages), list[UUID])
    assert_type(await outbox.add_many(session, messages), list[UUID])
    assert_type(await outbox.add_many(connection, messages), list[UUID])


def canceled(
    sqlite: sqlite3.Connection, pg: psycopg.Connection, session: Session, memory: MemoryTransaction, id: UUID
) -> str:
    assert_type(outbox.cancel(sqlite, id), Cancellation)
    assert_type(outbox.cancel(pg, id), Cancellation)
    assert_type(outbox.cancel(django_connection, id), Cancellation)
    assert_type(outbox.cancel(memory, id), Cancellation)
    if outbox.cancel(session, id):
        return "as it reads"
    match outbox.cancel(session, id):
        case Cancellation.CANCELED:
            return "in time"
        case Cancellation.TOO_LATE:
            return "on its way"
        case Cancellation.UNKNOWN:  # these are all: without one of them a return would be missing
            return "unknown"


async def canceled_asynchronously(
    pg: asyncpg.Connection[asyncpg.Record], sqlite: aiosqlite.Connection, session: AsyncSession, id: UUID
) -> bool:
    await assert_type(outbox.cancel(pg, id), Coroutine[Any, Any, Cancellation])
    assert_type(await outbox.cancel(sqlite, id), Cancellation)
    return await outbox.cancel(session, id) is Cancellation.TOO_LATE


def later(session: Session) -> None:
    outbox.add(session, b"x", type="note", deliver_at=datetime.now(UTC))
    outbox.add(session, b"x", type="note", deliver_in=timedelta(minutes=1))
    outbox.add(session, b"x", type="note", deliver_in="10m")
    outbox.add_many(session, [Message(b"x", type="note", deliver_in="10m")])
    outbox.add(session, b"x", type="note", content_type="application/avro")


def count() -> int:
    raise AlreadyDone


async def count_asynchronously() -> int:
    raise AlreadyDone


async def conflicts() -> None:
    assert_type(retry_on_conflict(count, conflicts=LookupError), int | None)
    assert_type(retry_on_conflict(count, conflicts=(LookupError, KeyError), give_up="log"), int | None)
    assert_type(await retry_on_conflict(count_asynchronously, conflicts=LookupError), int | None)
    assert_type(await retry_on_conflict(partial(count_asynchronously), conflicts=LookupError), int | None)


def keys(session: Session) -> None:
    outbox.add(session, b"x", type="note", key="k")
    outbox.add(session, b"x", type="note", key=1)
    outbox.add(session, b"x", type="note", key=UUID(int=1))


# -- receiving -------------------------------------------------------------------------------------------------------

inbox = Inbox()


@dataclass
class OrderCreated:
    order: int


def first_time(session: Session, pg: psycopg.Connection, memory: MemoryTransaction) -> None:
    assert_type(inbox.first_time(session, UUID(int=1), consumer="stock"), bool)
    assert_type(inbox.first_time(pg, "id", consumer="stock", type="order.created"), bool)
    assert_type(inbox.first_times(memory, [("id", "type")], consumer="stock"), list[bool])


async def first_time_async(session: AsyncSession, pg: asyncpg.Connection[asyncpg.Record]) -> None:
    await assert_type(inbox.first_time(session, UUID(int=1), consumer="stock"), Coroutine[Any, Any, bool])
    assert_type(await inbox.first_times(pg, [(UUID(int=1), "type")], consumer="stock"), list[bool])


def consumers(async_sessions: async_sessionmaker[AsyncSession], sessions: sessionmaker[Session]) -> None:
    consumer = Consumer("amqp://localhost", name="stock", begin=async_sessions.begin)
    assert_type(consumer, Consumer[AsyncSession])

    @upcast("order.created.v1", to=OrderCreated)
    @consumer.upcast("order.created.v0", to=OrderCreated)
    def newer(old: dict[str, Any]) -> OrderCreated:
        return OrderCreated(old["order"])

    assert_type(newer({}), OrderCreated)

    @consumer.on(OrderCreated)
    async def reserve(event: OrderCreated, tx: AsyncSession, message: Received) -> None:
        await outbox.add(tx, b"x", type="note")

    sync = Consumer(name="view", begin=sessions.begin)

    @sync.on_batch(OrderCreated)
    def project(batch: Sequence[tuple[OrderCreated, Received]], tx: Session) -> None:
        outbox.add(tx, b"x", type="note")

    async def called(tx: AsyncSession, message: Received) -> None:
        await reserve(OrderCreated(1), tx, message)

    del called
