"""Where consumers' handlers write, on each kind of transaction, the queue that they consume, and connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from postroad.brokers.memory import MemoryQueue
from postroad.stores.grants import grants_script
from tests.logs import PostgreSQLLog
from tests.places import EVERY_POSTGRESQL, EVERY_SQLITE, ON_POSTGRESQL, ON_SQLITE, Place, on_postgresql, on_sqlite
from tests.services.postgresql import PostgreSQL


@pytest.fixture(params=[*ON_POSTGRESQL, *ON_SQLITE])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in ON_SQLITE:
        return on_sqlite(request.param, tmp_path / "shop.sqlite")
    return await on_postgresql(request.param, request.getfixturevalue("postgresql15"))


@pytest.fixture(params=[*EVERY_POSTGRESQL, *EVERY_SQLITE])
async def every_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Every kind of connection."""
    if request.param in EVERY_SQLITE:
        return on_sqlite(request.param, tmp_path / "shop.sqlite")
    return await on_postgresql(request.param, request.getfixturevalue("postgresql15"))


@pytest.fixture(params=ON_POSTGRESQL)
async def each_pg_place(request: pytest.FixtureRequest, postgresql15: PostgreSQL) -> Place:
    return await on_postgresql(request.param, postgresql15)


@pytest.fixture(params=ON_SQLITE)
def each_sqlite_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return on_sqlite(request.param, tmp_path / "shop.sqlite")


@pytest.fixture
def one_place(tmp_path: Path) -> Place:
    """For what has nothing to do with the transaction."""
    return on_sqlite("aiosqlite", tmp_path / "shop.sqlite")


@pytest.fixture
async def pg_place(postgresql15: PostgreSQL) -> Place:
    """For what SQLite, with its one writer, can't show."""
    return await on_postgresql("asyncpg", postgresql15)


@pytest.fixture
def connect(log: PostgreSQLLog) -> Callable[..., Awaitable[Any]]:
    """Makes connections that are closed with the log."""
    return log.connect


@pytest.fixture
async def application(log: PostgreSQLLog) -> Any:
    """A connection as a role that has what `--grants` prints, and nothing else."""
    await log.execute("do $$ begin create role orders_app login; exception when duplicate_object then null; end $$")
    async with log.connected() as admin:
        await admin.execute(grants_script("orders_app"))
    return await log.connect(user="orders_app")


@pytest.fixture
def queue() -> MemoryQueue:
    return MemoryQueue()
