"""`Outbox`: its settings, sqlite3's and asyncpg's own ways of being in a transaction, and what must be awaited.

What holds on every kind of connection is in test_connections.py.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroad import (
    ConnectionClosed,
    InvalidSetting,
    NoTransaction,
    Outbox,
    UnsupportedConnection,
)
from postroad.stores.connections import NeverAwaited
from postroad.stores.memory import MemoryStore
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL


@dataclass
class OrderCreated:
    order: int


OUTBOX = Outbox(source="/orders")


@pytest.fixture
async def pg(postgresql15: PostgreSQL) -> AsyncIterator[Any]:
    log = await PostgreSQLLog.fresh(postgresql15)
    async with log.connected() as connection:
        await connection.execute("create temporary table orders (id integer)")
        yield connection


def sqlite_types(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("select type from postroad_outbox order by position")]


async def pg_types(connection: Any) -> list[str]:
    return [row[0] for row in await connection.fetch("select type from postroad.outbox order by position")]


# -- sqlite3 ---------------------------------------------------------------------------------------------------------


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


def test_sqlite_prefix(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "a.sqlite", "shop")
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        Outbox(source="/x", schema="shop").add(connection, OrderCreated(1))
        assert connection.execute("select count(*) from shop_outbox").fetchone() == (1,)


# -- asyncpg ---------------------------------------------------------------------------------------------------------


async def test_asyncpg_through_a_pool(pg: Any, postgresql15: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    async with asyncpg.create_pool(log.url, min_size=1, max_size=1) as pool:
        with pytest.raises(UnsupportedConnection, match="async with pool.acquire"):
            OUTBOX.add(pool, OrderCreated(1))  # type: ignore[call-overload]
        async with pool.acquire() as connection:
            async with connection.transaction():
                await OUTBOX.add(connection, OrderCreated(1))
            with pytest.raises(NoTransaction):
                await OUTBOX.add(connection, OrderCreated(1))
        with pytest.raises(ConnectionClosed, match="can't be used"):
            await OUTBOX.add(connection, OrderCreated(1))


async def test_asyncpg_outside_a_transaction(pg: Any) -> None:
    with pytest.raises(NoTransaction, match="connection.transaction"):
        OUTBOX.add(pg, OrderCreated(1))
    assert await pg_types(pg) == []


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


async def test_an_add_can_be_run_by_a_task_as_every_coroutine_can(pg: Any) -> None:
    async with pg.transaction():
        task = asyncio.create_task(OUTBOX.add(pg, OrderCreated(1)))
        assert await task == (await asyncio.gather(OUTBOX.add(pg, OrderCreated(1), id=task.result())))[0]
    assert len(await pg_types(pg)) == 1


async def test_a_task_that_is_canceled_before_it_begins_adds_nothing(pg: Any) -> None:
    """Nothing warns: the task was canceled, and not forgotten."""
    async with pg.transaction():
        task = asyncio.create_task(OUTBOX.add(pg, OrderCreated(1)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert await pg_types(pg) == []


async def test_an_add_that_is_awaited_after_its_transaction_adds_nothing(pg: Any) -> None:
    async with pg.transaction():
        pending = OUTBOX.add(pg, OrderCreated(1))
    with pytest.raises(NoTransaction):
        await pending
    assert await pg_types(pg) == []


# -- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [None, "postgresql://x", object()])
def test_an_unknown_connection_is_named(thing: Any) -> None:
    with pytest.raises(
        UnsupportedConnection, match="is not a connection that postroad supports; it takes an sqlite3.Connection"
    ):
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
