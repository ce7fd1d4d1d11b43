"""`Outbox.add` on the connections that users have: in their transaction, in one round trip, and never outside one."""

from __future__ import annotations

import gc
import sqlite3
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type
from uuid import UUID

import asyncpg
import pytest

from postroad import (
    ConnectionClosed,
    InvalidMessage,
    InvalidSetting,
    Message,
    NotMigrated,
    NoTransaction,
    Outbox,
    UnknownConnection,
)
from postroad.stores.connections import NeverAwaited, Pending
from postroad.stores.memory import MemoryStore
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog, numbered
from tests.services.postgresql import PostgreSQL


@dataclass
class OrderCreated:
    order: int


OUTBOX = Outbox(source="/orders")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrate_sqlite(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute("create table orders (id integer)")
        connection.commit()
        yield connection


@pytest.fixture
async def pg(postgresql15: PostgreSQL) -> AsyncIterator[Any]:
    log = await PostgreSQLLog.fresh(postgresql15)
    connection = await asyncpg.connect(log.url)
    await connection.execute("create temporary table orders (id integer)")
    yield connection
    connection.terminate()


def sqlite_types(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("select type from postroad_outbox order by position")]


async def pg_types(connection: Any) -> list[str]:
    return [row[0] for row in await connection.fetch("select type from postroad.outbox order by position")]


# -- sqlite3 ---------------------------------------------------------------------------------------------------------


def test_sqlite_adds_in_the_callers_transaction(sqlite: sqlite3.Connection) -> None:
    sqlite.execute("insert into orders values (1)")
    id = OUTBOX.add(sqlite, OrderCreated(1), key=1)
    assert isinstance(id, UUID)
    assert sqlite.in_transaction, "add does not commit"
    sqlite.rollback()
    assert sqlite_types(sqlite) == []
    with sqlite:
        sqlite.execute("insert into orders values (1)")
        ids = OUTBOX.add_many(sqlite, [Message(OrderCreated(2), key=2), Message("x", type="note")])
    assert len(set(ids)) == 2
    assert sqlite_types(sqlite) == ["order.created", "note"]


def test_sqlite_savepoints(sqlite: sqlite3.Connection) -> None:
    with sqlite:
        OUTBOX.add(sqlite, OrderCreated(1))
        sqlite.execute("savepoint a")
        OUTBOX.add(sqlite, "x", type="gone")
        sqlite.execute("rollback to a")
    assert sqlite_types(sqlite) == ["order.created"]


def test_sqlite_in_autocommit_needs_a_transaction(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)) as connection:
        with pytest.raises(NoTransaction, match="execute BEGIN first"):
            OUTBOX.add(connection, OrderCreated(1))
        connection.execute("begin")
        OUTBOX.add(connection, OrderCreated(1))
        connection.execute("commit")
        assert sqlite_types(connection) == ["order.created"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3's autocommit attribute came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_sqlite_with_the_autocommit_attribute(tmp_path: Path, autocommit: bool) -> None:
    migrate_sqlite(tmp_path / "a.sqlite")
    options: Any = {"autocommit": autocommit}
    with closing(sqlite3.connect(tmp_path / "a.sqlite", **options)) as connection:
        if autocommit:
            with pytest.raises(NoTransaction):
                OUTBOX.add(connection, OrderCreated(1))
        else:
            OUTBOX.add(connection, OrderCreated(1))
            connection.commit()
            assert sqlite_types(connection) == ["order.created"]


def test_sqlite_closed(sqlite: sqlite3.Connection) -> None:
    sqlite.close()
    with pytest.raises(ConnectionClosed, match="closed"):
        OUTBOX.add(sqlite, OrderCreated(1))


def test_sqlite_not_migrated(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as connection, pytest.raises(NotMigrated, match="migrate"):
        OUTBOX.add(connection, OrderCreated(1))


def test_sqlite_prefix(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "a.sqlite", "shop")
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        Outbox(source="/x", schema="shop").add(connection, OrderCreated(1))
        assert connection.execute("select count(*) from shop_outbox").fetchone() == (1,)


# -- asyncpg ---------------------------------------------------------------------------------------------------------


async def test_asyncpg_adds_in_the_callers_transaction(pg: Any) -> None:
    transaction = pg.transaction()
    await transaction.start()
    await pg.execute("insert into orders values (1)")
    assert isinstance(await OUTBOX.add(pg, OrderCreated(1), key="o-1"), UUID)
    await transaction.rollback()
    assert await pg_types(pg) == []
    async with pg.transaction():
        await pg.execute("insert into orders values (1)")
        await OUTBOX.add_many(pg, [Message(OrderCreated(2), key=2), Message("x", type="note")])
        assert await OUTBOX.add_many(pg, []) == []
    assert await pg_types(pg) == ["order.created", "note"]


async def test_asyncpg_savepoints(pg: Any) -> None:
    async with pg.transaction():
        await OUTBOX.add(pg, OrderCreated(1))
        with pytest.raises(LookupError):
            async with pg.transaction():
                await OUTBOX.add(pg, "x", type="gone")
                raise LookupError
    assert await pg_types(pg) == ["order.created"]


async def test_asyncpg_takes_one_round_trip(pg: Any) -> None:
    queries: list[str] = []
    async with pg.transaction():
        await OUTBOX.add(pg, OrderCreated(1))
        await OUTBOX.add_many(pg, numbered(1, 2))
        with pg.query_logger(lambda record: queries.append(record.query)):
            await OUTBOX.add(pg, OrderCreated(2))
            await OUTBOX.add_many(pg, numbered(*range(3, 100)))
    assert len(queries) == 2


async def test_asyncpg_through_a_pool(pg: Any, postgresql15: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    async with asyncpg.create_pool(log.url, min_size=1, max_size=1) as pool:
        with pytest.raises(UnknownConnection, match="async with pool.acquire"):
            OUTBOX.add(pool, OrderCreated(1))  # type: ignore[call-overload]
        async with pool.acquire() as connection:
            async with connection.transaction():
                await OUTBOX.add(connection, OrderCreated(1))
            with pytest.raises(NoTransaction):
                OUTBOX.add(connection, OrderCreated(1))


async def test_asyncpg_outside_a_transaction(pg: Any) -> None:
    with pytest.raises(NoTransaction, match="connection.transaction"):
        OUTBOX.add(pg, OrderCreated(1))
    assert await pg_types(pg) == []


async def test_asyncpg_closed(pg: Any) -> None:
    await pg.close()
    with pytest.raises(ConnectionClosed, match="is closed"):
        OUTBOX.add(pg, OrderCreated(1))


async def test_an_error_of_the_database_stays_the_drivers_own(pg: Any) -> None:
    """Users catch their driver's errors to retry: a failed transaction is theirs to see."""
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        async with pg.transaction():
            with pytest.raises(asyncpg.DivisionByZeroError):
                await pg.execute("select 1 / 0")
            await OUTBOX.add(pg, OrderCreated(1))


# -- the awaitable ---------------------------------------------------------------------------------------------------


async def test_a_forgotten_await_complains(pg: Any, caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with pg.transaction():
            OUTBOX.add(pg, OrderCreated(1))
            gc.collect()
    assert [warning.category for warning in caught] == [NeverAwaited]
    assert "was never awaited" in caplog.text
    assert await pg_types(pg) == []


async def test_an_add_is_no_truth_value_and_is_awaited_once(pg: Any) -> None:
    async with pg.transaction():
        pending = OUTBOX.add(pg, OrderCreated(1))
        with pytest.raises(TypeError, match="await outbox.add"):
            if pending:
                pass
        await pending
        with pytest.raises(RuntimeError, match="awaited already"):
            await pending
    assert await pg_types(pg) == ["order.created"]


# -- types: what mypy sees, checked by `make check` -------------------------------------------------------------------


def test_a_sync_connection_gives_an_id_and_an_async_one_an_awaitable(sqlite: sqlite3.Connection) -> None:
    assert_type(OUTBOX.add(sqlite, OrderCreated(1)), UUID)
    assert_type(OUTBOX.add_many(sqlite, [Message(OrderCreated(1))]), list[UUID])
    with MemoryStore().begin() as transaction:
        assert_type(OUTBOX.add(transaction, OrderCreated(1)), UUID)


async def typed_asyncpg(connection: asyncpg.Connection[asyncpg.Record], pool: asyncpg.Pool[asyncpg.Record]) -> None:
    """Never run: only its types matter."""
    assert_type(OUTBOX.add(connection, OrderCreated(1)), Pending[UUID])
    assert_type(await OUTBOX.add(connection, OrderCreated(1)), UUID)
    assert_type(await OUTBOX.add_many(connection, []), list[UUID])
    async with pool.acquire() as pooled:
        assert_type(await OUTBOX.add(pooled, OrderCreated(1)), UUID)


# -- both ------------------------------------------------------------------------------------------------------------


def test_what_is_invalid_is_found_before_anything_is_written(sqlite: sqlite3.Connection) -> None:
    with sqlite:
        with pytest.raises(InvalidMessage):
            OUTBOX.add_many(sqlite, [Message(OrderCreated(1)), Message(OrderCreated(2), topic="")])
        with pytest.raises(InvalidMessage, match="key is None"):
            OUTBOX.add(sqlite, OrderCreated(1), key=None)  # type: ignore[call-overload]
    assert sqlite_types(sqlite) == []


@pytest.mark.parametrize("thing", [None, "postgresql://x", object()])
def test_an_unknown_connection_is_named(thing: Any) -> None:
    with pytest.raises(UnknownConnection, match="is no connection that postroad knows; it takes an sqlite3.Connection"):
        OUTBOX.add(thing, OrderCreated(1))


def test_a_memory_transaction_that_has_ended() -> None:
    store = MemoryStore()
    with store.begin() as transaction:
        OUTBOX.add(transaction, OrderCreated(1))
    with pytest.raises(NoTransaction):
        OUTBOX.add(transaction, OrderCreated(1))


@pytest.mark.parametrize("arguments", [{"source": ""}, {"source": None}, {"source": "/a", "schema": "A b"},
                                       {"source": "/a", "largest_payload": 0}])  # fmt: skip
def test_an_outbox_checks_its_settings(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        Outbox(**arguments)
