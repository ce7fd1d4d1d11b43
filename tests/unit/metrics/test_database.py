"""The database is read at most every 10 seconds, and an outage leaves the last values; on SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postroad import Outbox
from postroad.metrics.database import EVERY_SECONDS, DatabaseReader
from postroad.stores.sqlite import migrate_sqlite
from tests.polling import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "log.sqlite")
    return tmp_path / "log.sqlite"


def add(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        Outbox(source="/tests").add(connection, {"n": 1}, type="t")


def position(reader: DatabaseReader) -> float | None:
    return reader.values().get("postroad_outbox_log_position", {}).get(())


def success(reader: DatabaseReader) -> float:
    return reader.values()["postroad_exporter_last_success_timestamp_seconds"][()]


async def test_it_is_asked_at_most_every_ten_seconds(file: Path) -> None:
    clock = Clock()
    async with DatabaseReader(f"sqlite:///{file}", monotonic=clock) as reader:
        assert (position(reader), success(reader)) == (None, 0)
        await reader.refresh()
        assert position(reader) == 0
        assert success(reader) > 1e9
        add(file)
        clock.now += EVERY_SECONDS - 0.1
        await asyncio.gather(*(reader.refresh() for _ in range(20)))
        assert position(reader) == 0
        clock.now += 0.1
        await asyncio.gather(*(reader.refresh() for _ in range(20)))
        assert position(reader) == 1


async def test_one_that_can_not_await_causes_the_next_reading(file: Path) -> None:
    clock = Clock()
    async with DatabaseReader(f"sqlite:///{file}", monotonic=clock) as reader:
        assert await asyncio.to_thread(position, reader) is None
        await until(lambda: position(reader) is not None)
    assert position(reader) == 0, "after its end it has its last values, and asks nothing"


async def test_an_outage_is_logged_once_and_leaves_the_last_values(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with DatabaseReader(f"sqlite:///{file}", monotonic=clock) as reader:
        await reader.refresh()
        before = success(reader)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("alter table postroad_lanes rename to lanes_gone")
        for _ in range(3):
            clock.now += EVERY_SECONDS
            await reader.refresh()
        assert (position(reader), success(reader)) == (0, before)
        assert caplog.text.count("the database can't be read") == 1
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("alter table lanes_gone rename to postroad_lanes")
        add(file)
        clock.now += EVERY_SECONDS
        await reader.refresh()
        assert position(reader) == 1
        assert success(reader) > before


async def test_a_database_that_is_not_there_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with DatabaseReader(f"sqlite:///{tmp_path / 'none.sqlite'}") as reader:
        await reader.refresh()
        assert success(reader) == 0
    assert "the database can't be read" in caplog.text
