"""When messages were published, and what is forgotten in time: on SQLite and PostgreSQL, and as a relay does it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from uuid import uuid4

import pytest

from postroad import Refusal
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.errors import LaneChanged
from postroad.relay import Relay
from postroad.relay.maintenance import Retention
from postroad.retry import Backoff
from postroad.stores.base import Cleaned, Lease, Loaded, Tally
from postroad.stores.cursor import Cursor, Page, PageLimit
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.memory import MemoryStore
from tests.clocks import FastClock
from tests.lanes import take_lanes
from tests.logs import PLENTY, Arrivals, Log, MemoryLog, PostgreSQLLog, SQLiteLog, log_fixture, numbered, read_all
from tests.services.postgresql import PostgreSQL

DAY = timedelta(days=1)


log = log_fixture("sqlite", "postgresql15", "postgresql18")


async def query(log: Log, sql: str) -> list[tuple[int, ...]]:
    """Rows of our tables, in either database; their names are written as {name}."""
    if isinstance(log, SQLiteLog):
        return log.execute(sql.replace("{", "postroad_").replace("}", ""))
    assert isinstance(log, PostgreSQLLog)
    return [tuple(row) for row in await log.execute(sql.replace("{", "postroad.").replace("}", ""))]


async def take(log: Log, lanes: int = 1) -> list[Lease]:
    return list(await take_lanes(log.store, "s", uuid4(), lanes=lanes, start="oldest"))


# -- progress --------------------------------------------------------------------------------------------------------


async def test_a_tally_is_noted_with_the_cursor_or_not_at_all(log: Log) -> None:
    await log.store.open()
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    settled = await log.store.settle(lane, page.after, Tally(2, 1))
    with pytest.raises(LaneChanged):
        await log.store.settle(lane, page.after, Tally(5, 5))
    recorded = await log.store.record(settled, page.after, tally=Tally(0, 3))
    with pytest.raises(LaneChanged):
        await log.store.record(settled, page.after, tally=Tally(5, 5))
    assert await log.store.is_current(recorded.lease)
    assert not await log.store.is_current(settled)
    rows = await query(log, "select lane, position, sum(published), sum(refused) from {progress} group by 1, 2")
    assert rows == [(0, 2, 2, 4)]
    await log.store.close()


async def stop_the_clock(log: Log) -> None:
    """From now on everything is noted at one moment."""
    if isinstance(log, SQLiteLog):
        with closing(sqlite3.connect(log.path)) as connection, connection:
            connection.execute("pragma writable_schema = on")
            stopped = "update sqlite_master set sql = replace(sql, 'julianday(''now'')', '2461000') where name = ?"
            assert connection.execute(stopped, ("postroad_progress",)).rowcount == 1
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute("alter table postroad.progress alter at set default '2026-01-01'")


async def test_what_is_noted_within_one_moment_is_added_up(log: Log) -> None:
    await stop_the_clock(log)
    await log.store.open()
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    settled = await log.store.settle(lane, page.after, Tally(2, 1))
    settled = await log.store.settle(settled, page.after, Tally(1, 0))
    await log.store.record(settled, page.after, tally=Tally(0, 3))
    assert await query(log, "select lane, position, published, refused from {progress}") == [(0, 2, 3, 4)]
    await log.store.close()


async def test_a_lane_notes_once_a_second_while_it_moves_and_once_more_at_its_end() -> None:
    clock = FastClock()
    log = MemoryLog()
    log.store = store = MemoryStore(clock=clock.now)
    await log.add(*numbered(1))
    settings = RelaySettings(lanes=1, poll_interval="100ms", max_idle_backoff="100ms", settle_interval="0")
    it = Relay(store, broker := Arrivals(), settings=settings, clock=clock)
    running = asyncio.create_task(it.run())
    await broker.until(1)
    for number in range(2, 40):
        await log.add(*numbered(number))
        await broker.until(number)
    seconds = clock.now() - 1_000_000.0
    it.stop()
    await running
    assert sum(tally.published for tally in store.tallies) == 39
    assert len(store.tallies) <= seconds + 2
    assert all(tally.published or tally.refused for tally in store.tallies)


async def test_what_went_before_the_end_is_noted_although_it_was_within_the_second(log: Log) -> None:
    await log.add(*numbered(1, 2, 3))
    broker = MemoryBroker()
    broker.refuse(lambda message: "no" if message.payload == b"2" else None)
    settings = RelaySettings(lanes=1, batch_size=1, settle_interval="0")
    await Relay(log.store, broker, settings=settings).run_until_empty()
    assert await query(log, "select sum(published), sum(refused) from {progress}") == [(2, 1)]


async def test_what_went_before_a_lane_sleeps_is_noted_although_it_was_within_the_second(log: Log) -> None:
    broker = Arrivals()
    async with Relay(log.store, broker, settings=RelaySettings(lanes=1, tick="1h")), asyncio.timeout(120):
        for number in (1, 2, 3):
            await log.add(*numbered(number))
            await broker.until(number)
        while await query(log, "select sum(published) from {progress}") != [(3,)]:  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.02)


async def make_older(log: Log, table: str, column: str, by: timedelta) -> None:
    if isinstance(log, SQLiteLog):
        log.execute(f"update postroad_{table} set {column} = {column} - {int(by.total_seconds() * 1e6)}")
    else:
        assert isinstance(log, PostgreSQLLog)
        await log.execute(f"update postroad.{table} set {column} = {column} - $1::interval", by)


async def test_old_progress_is_forgotten_but_not_how_far_it_went(log: Log) -> None:
    await log.store.open()
    lanes = await take(log, lanes=2)
    await log.add(*numbered(*range(6)))
    for count in range(3):
        for n, lane in enumerate(lanes):
            cursor = (await log.store.read(lane, lane.cursor, PLENTY)).after
            lanes[n] = await log.store.settle(lane, cursor, Tally(1, 0))
        await log.add(*numbered(100 + count))
    await make_older(log, "progress", "at", DAY)
    for n, lane in enumerate(lanes):
        cursor = (await log.store.read(lane, lane.cursor, PLENTY)).after
        lanes[n] = await log.store.settle(lane, cursor, Tally(1, 0))
    assert await log.store.forget_progress(older_than=2 * DAY, batch=100) == 0
    deleted = 0
    while forgotten := await log.store.forget_progress(older_than=DAY / 2, batch=3):
        deleted += forgotten
    assert deleted == 4
    rows = await query(log, "select lane, position, published from {progress} order by lane, position")
    assert rows == [(0, 8, 1), (0, 9, 1), (1, 8, 1), (1, 9, 1)]
    dates = await query(log, "select count(published_at), count(*) from {outbox_status} where position <= 8")
    assert dates == [(0, 8)], "that it was published is known, and no longer when"
    dates = await query(log, "select count(published_at), count(*) from {outbox_status} where position = 9")
    assert dates == [(1, 1)]
    await log.store.close()


class Watched(MemoryStore):
    """A store that tells when a lane has looked, and when it was loaded again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.loads = 0
        self.loaded_again = asyncio.Event()

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        self.asked.set()
        return await super().read(lease, cursor, limit)

    async def load(self, lease: Lease, *, by_source: bool = False) -> Loaded:
        self.loads += 1
        if self.loads > 1:
            self.loaded_again.set()
        return await super().load(lease, by_source=by_source)


async def test_a_lane_that_has_nothing_to_write_finds_out_that_it_was_changed() -> None:
    store = Watched()
    settings = RelaySettings(lanes=1, wakeup="off", poll_interval="1ms", max_idle_backoff="1ms")
    running = asyncio.create_task((it := Relay(store, MemoryBroker(), settings=settings)).run())
    await asyncio.wait_for(store.asked.wait(), 60)
    lane = store._lanes["default", 0]
    store._lanes["default", 0] = lane.settled(lane.cursor)
    await asyncio.wait_for(store.loaded_again.wait(), 60)
    it.stop()
    await running


# -- retention -------------------------------------------------------------------------------------------------------


async def test_a_running_relay_deletes_what_is_delivered(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="postroad")
    await log.add(*numbered(*range(30)))
    settings = RelaySettings(lanes=2, retain="0", cleanup_interval="10ms", poll_interval="1ms", max_idle_backoff="10ms")
    it = Relay(log.another_store(), broker := Arrivals(), settings=settings)
    broker.refuse(lambda message: Refusal(message.position, "no", permanent=True) if message.payload == b"7" else None)
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        while (await query(log, "select count(*) from {outbox}"))[0] != (1,):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    it.stop()
    await running
    assert len(broker.messages) == 29
    assert "delivered messages older than 0 s" in caplog.text
    assert await query(log, "select count(*) from {attempts}") == [(1,)]
    assert (await query(log, "select count(*) from {progress}"))[0][0] > 0, "the last hour stays"


async def test_what_belongs_to_a_message_goes_with_it(log: Log) -> None:
    await log.add(*numbered(1, 2))
    broker = MemoryBroker()
    broker.refuse(lambda message: "no" if message.payload == b"1" else None)
    settings = RelaySettings(lanes=1, max_backoff="1ms", max_attempts=1000)
    retry = Backoff(first=timedelta(0), max_attempts=2)
    await Relay(log.another_store(), broker, settings=settings, retry=retry).run_until_empty()
    broker.refuse(lambda _: None)
    await query(log, "update {deferred} set state = 'held', due_at = null, blocks = true")
    await query(log, "update {lanes} set version = version + 1")
    await query(log, "insert into {rewound} (sink, position, rewind) values ('default', 2, 'x')")
    await Relay(log.another_store(), broker, settings=settings, retry=retry).run_until_empty()
    assert await query(log, "select position from {delivered}") == [(1,)]
    await log.store.open()
    assert await Retention(log.store, retain=timedelta(0)).run_once() == 2
    await log.store.close()
    for table in ("outbox", "deferred", "attempts", "delivered", "rewound"):
        assert await query(log, f"select count(*) from {{{table}}}") == [(0,)], table


class Batches(MemoryStore):
    """A store that notes from where on it was asked to delete."""

    def __init__(self) -> None:
        super().__init__()
        self.afters: list[int] = []

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        self.afters.append(after)
        return await super().delete_passed(after=after, older_than=older_than, batch=batch, key=key)


async def test_retention_goes_on_where_it_stopped_and_begins_again_once_in_a_while() -> None:
    log, clock = MemoryLog(), FastClock()
    log.store = store = Batches()
    await log.add(*numbered(*range(25)))
    (lane,) = await take(log)
    await read_all(store, lane)
    retention = Retention(store, retain=timedelta(0), batch=10, clock=clock)
    assert await retention.run_once() == 25
    assert store.afters == [0, 10, 20, 25]
    store.afters.clear()
    assert await retention.run_once() == 0
    assert store.afters == [25]
    store.afters.clear()
    clock.time += 2 * 3600
    await retention.run_once()
    assert store.afters == [0]


async def test_retention_comes_back_for_what_no_lane_had_passed() -> None:
    log, clock = MemoryLog(), FastClock()
    await log.add(*numbered(*range(25)))
    (lane,) = await take(log)
    retention = Retention(log.store, retain=timedelta(0), batch=10, clock=clock)
    assert await retention.run_once() == 0
    await read_all(log.store, lane)
    assert await retention.run_once() == 25


async def test_two_deletions_at_once_do_not_wait_for_each_other(postgresql15: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.store.open()
    await log.add(*numbered(1))
    (lane,) = await take(log)
    await read_all(log.store, lane)
    async with log.connected() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(POSTGRESQL.queries("postroad")["try_to_clean"])
        busy = await log.store.delete_passed(after=0, older_than=timedelta(0), batch=10)
        assert (busy.deleted, busy.busy) == (0, True)
        await transaction.rollback()
    assert (await log.store.delete_passed(after=0, older_than=timedelta(0), batch=10)).deleted == 1
    await log.store.close()
