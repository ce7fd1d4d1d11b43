"""A database that is put back to an earlier time, or replaced by another cluster's, under a running relay."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from postroad.config import RelaySettings
from postroad.errors import LaneChanged, LogReset
from postroad.relay import Relay
from tests.lanes import take_lanes
from tests.logs import PLENTY, Arrivals, Log, PostgreSQLLog, SQLiteLog, numbered, read_all
from tests.services.postgresql import PostgreSQL

ASLEEP_OR_BUSY = pytest.mark.parametrize("busy", [False, True], ids=["asleep", "busy"])
LANES: dict[str, Any] = {"lanes": 2, "lease": "2s", "linger": "0s", "max_idle_backoff": "20ms"}


@asynccontextmanager
async def relaying(log: Log, broker: Arrivals) -> AsyncIterator[None]:
    relay = Relay(log.another_store(), broker, settings=RelaySettings(**LANES))
    running = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        broker.release()
        relay.stop()
        await asyncio.wait_for(running, 60)


async def one_by_one(log: Log, *numbers: int) -> None:
    for number in numbers:
        await log.add(*numbered(number, key="k"))


# -- another cluster's schema ----------------------------------------------------------------------------------------


async def transaction_id(log: PostgreSQLLog) -> int:
    return int((await log.execute("select pg_current_xact_id()::text"))[0][0])


async def until_asleep(log: PostgreSQLLog) -> None:
    """Wait until every lane has saved its cursor and naps."""
    async with asyncio.timeout(60):
        while await log.waiting() or len(await log.execute("select from postroad.naps")) < LANES["lanes"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def another_cluster(server: PostgreSQL, ahead_of: PostgreSQLLog) -> str:
    """The dump of a log of which five messages were published and five were not, by younger transactions."""
    other = PostgreSQLLog(server.create_database())
    await other.migrate()
    behind = await transaction_id(ahead_of) + 1000 - await transaction_id(other)
    await other.execute(f"do $$ begin for i in 1..{behind} loop perform pg_current_xact_id(); commit; end loop; end $$")
    await one_by_one(other, *range(1, 6))
    await Relay(other.another_store(), Arrivals(), settings=RelaySettings(**LANES)).run_until_empty()
    await one_by_one(other, *range(6, 11))
    return server.dump(other.url, "-n", "postroad", "--clean", "--if-exists")


@ASLEEP_OR_BUSY
async def test_a_schema_restored_from_another_cluster(
    postgresql15: PostgreSQL, postgresql18: PostgreSQL, caplog: pytest.LogCaptureFixture, busy: bool
) -> None:
    log = PostgreSQLLog(postgresql18.create_database())
    await log.migrate()
    dump = await another_cluster(postgresql15, ahead_of=log)
    broker = Arrivals()
    async with relaying(log, broker):
        await one_by_one(log, *range(101, 121))
        await broker.until(*range(101, 121))
        await until_asleep(log)
        if busy:
            broker.hold()
            broker.asked.clear()
            await one_by_one(log, 121)
            await asyncio.wait_for(broker.asked.wait(), 60)
        # In a thread: it waits for the locks of the relay's statement, if there is one, and that one for this loop.
        await asyncio.to_thread(postgresql18.restore, log.url, dump)
        broker.release()
        await broker.until(*range(6, 11))
        await one_by_one(log, *range(11, 16))
        await broker.until(*range(6, 16))
        await until_asleep(log)
    restored = [number for number in broker.numbers if number < 100]
    assert restored == list(range(6, 16)), "once, in order, and nothing of what was published before the dump"
    assert "was restored from another PostgreSQL cluster" in caplog.text


# -- an earlier state of the same database ---------------------------------------------------------------------------


def copied(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)


async def until_saved(log: SQLiteLog, position: int) -> None:
    async with asyncio.timeout(60):
        while min(await log.cursors(), default=0) < position:  # noqa: ASYNC110 - a database has no event
            await asyncio.sleep(0.01)


@ASLEEP_OR_BUSY
async def test_a_backup_copied_into_the_live_file(tmp_path: Path, busy: bool) -> None:
    log, backup = SQLiteLog(tmp_path / "log.sqlite"), tmp_path / "backup.sqlite"
    broker = Arrivals()
    async with relaying(log, broker):
        await one_by_one(log, *range(1, 6))
        await broker.until(*range(1, 6))
        await until_saved(log, 5)
        copied(log.path, backup)
        await one_by_one(log, *range(6, 11))
        await broker.until(*range(6, 11))
        await until_saved(log, 10)
        if busy:
            broker.hold()
            broker.asked.clear()
            await one_by_one(log, 11)
            await asyncio.wait_for(broker.asked.wait(), 60)
        copied(backup, log.path)
        await one_by_one(log, *range(21, 31))  # some of them have the positions of 6 to 11
        broker.release()
        await broker.until(*range(21, 31))
        await until_saved(log, 15)
    numbers = [number for number in broker.numbers if number > 20]
    assert numbers == list(range(21, 31))


async def test_a_lane_that_has_saved_nothing_since_the_backup_is_fenced_too(tmp_path: Path) -> None:
    """Its row is the same in both files, so neither owner, epoch nor version tells them apart."""
    log, backup = SQLiteLog(tmp_path / "log.sqlite"), tmp_path / "backup.sqlite"
    await log.store.open()
    (lane,) = await take_lanes(log.store)
    copied(log.path, backup)
    await one_by_one(log, 1)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    copied(backup, log.path)
    await one_by_one(log, 2)
    for ask in (
        log.store.settle(lane, page.after),
        log.store.record(lane, page.after),
        log.store.claim(lane, 1),
        log.store.read(lane, page.after, PLENTY),
    ):
        with pytest.raises(LaneChanged):
            await ask
    assert not await log.store.is_current(lane)
    assert await read_all(log.store, (await log.store.load(lane)).lease) == [2]
    await log.store.close()


# -- a log that begins anew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until_empty", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql15"])
async def test_a_log_that_was_emptied_and_begins_anew_ends_the_relay(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, until_empty: bool
) -> None:
    """SQLite's lanes know what they have dealt with by its position alone."""
    log: Log = SQLiteLog(tmp_path / "log.sqlite")
    if kind != "sqlite":
        log = await PostgreSQLLog.fresh(request.getfixturevalue(kind))
    broker = Arrivals()
    await one_by_one(log, *range(1, 6))
    await Relay(log.another_store(), broker, settings=RelaySettings(**LANES)).run_until_empty()
    if isinstance(log, SQLiteLog):
        log.execute("delete from postroad_outbox")
        log.execute("delete from sqlite_sequence")
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute("truncate postroad.outbox restart identity")
    await one_by_one(log, 11)
    relay = Relay(log.another_store(), broker, settings=RelaySettings(**LANES))
    async with asyncio.timeout(60):
        with pytest.raises(LogReset, match=r"ends at position 1 and lane . .* has saved 5: .*postroad sink remove def"):
            await (relay.run_until_empty() if until_empty else relay.run())
    assert broker.numbers == list(range(1, 6)), "nothing is sent until an operator has decided"
