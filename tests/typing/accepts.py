"""What type checkers must accept, and what they must make of it. Never run: `make check` reads it, twice."""

from __future__ import annotations

import sqlite3
from typing import assert_type
from uuid import UUID

import aiosqlite
import asyncpg
import asyncpg.pool
import psycopg
from django.db import connection as django_connection
from django.db import connections
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from postroad import Message, Outbox
from postroad.stores.connections import Pending
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
    await assert_type(outbox.add(sqlite, b"x", type="note"), Pending[UUID])
    await assert_type(outbox.add(pg, b"x", type="note"), Pending[UUID])
    await assert_type(outbox.add(pooled, b"x", type="note"), Pending[UUID])
    await assert_type(outbox.add(psycopg_pg, b"x", type="note"), Pending[UUID])
    await assert_type(outbox.add(session, b"x", type="note"), Pending[UUID])
    await assert_type(outbox.add(scoped, b"x", type="note"), Pending[UUID])
    await assert_type(outbox.add(connection, b"x", type="note"), Pending[UUID])

    assert_type(await outbox.add(session, b"x", type="note"), UUID)
    assert_type(await outbox.add_many(sqlite, messages), list[UUID])
    assert_type(await outbox.add_many(pg, messages), list[UUID])
    assert_type(await outbox.add_many(psycopg_pg, messages), list[UUID])
    assert_type(await outbox.add_many(session, messages), list[UUID])
    assert_type(await outbox.add_many(connection, messages), list[UUID])


def keys(session: Session) -> None:
    outbox.add(session, b"x", type="note", key="k")
    outbox.add(session, b"x", type="note", key=1)
    outbox.add(session, b"x", type="note", key=UUID(int=1))
