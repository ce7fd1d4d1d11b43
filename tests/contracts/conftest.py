"""Where consumers' handlers write, on each kind of transaction, and the queue that they consume."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.brokers.memory import MemoryQueue
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
def queue() -> MemoryQueue:
    return MemoryQueue()
