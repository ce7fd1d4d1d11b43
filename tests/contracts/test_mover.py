"""What is due is moved, by the relay's chore and by the relay itself, on every store."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from postroad import StoreUnavailable
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.relay.scheduled import Scheduled
from postroad.stores.base import Moved
from postroad.stores.memory import MemoryStore
from tests.clocks import FastClock
from tests.logs import OUTBOX, Arrivals, Log, log_fixture, numbered

SETTINGS = RelaySettings(lanes=2, poll_interval="1ms", max_idle_backoff="5ms")


log = log_fixture("memory", "sqlite", "postgresql15")


class Waits(FastClock):
    """A clock that notes how long it was waited, and whose time is the store's too."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.waited: list[float] = []
        self.alarm = self.limit
        self.rings = asyncio.Event()
        """Set at the time of the alarm."""

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        if self.time < self.limit:
            self.waited.append(seconds)
        if self.time >= self.alarm:
            self.rings.set()
        await super().wait(event, seconds)


class Failing(MemoryStore):
    """A store that can't be asked for some time."""

    def __init__(self, failures: int, **options: Any) -> None:
        super().__init__(**options)
        self._failures = failures

    async def move_scheduled(self, limit: int) -> Moved:
        if self._failures:
            self._failures -= 1
            raise StoreUnavailable("the database is away")
        return await super().move_scheduled(limit)


def add(store: MemoryStore, number: int, wait: str) -> None:
    with store.begin() as transaction:
        OUTBOX.add_many(transaction, numbered(number, deliver_in=wait))


async def ends(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)


# -- the chore -------------------------------------------------------------------------------------------------------


async def test_once_moves_all_that_is_due_however_many(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "postroad.relay")
    await log.store.open()
    await log.add(*numbered(*range(10), deliver_in="0"), *numbered(10, deliver_in="1h"))
    scheduled = Scheduled(log.store, batch=3)
    assert await scheduled.run_once() == 10
    assert await scheduled.run_once() == 0
    assert len(await log.scheduled()) == 1
    (record,) = caplog.records
    assert record.getMessage() == "moved 10 scheduled messages that are due into the log"
    await log.store.close()


async def test_it_wakes_when_the_next_one_is_due_and_looks_every_second() -> None:
    clock = Waits(limit=5)
    store = MemoryStore(clock=clock.now)
    add(store, 1, "2500ms")
    task = asyncio.create_task(Scheduled(store, clock=clock).run())
    await asyncio.wait_for(clock.over.wait(), 60)
    assert clock.waited == [1, 1, pytest.approx(0.5), 1, 1, 1]
    assert [message.payload for message in store._log] == [b"1"]
    await ends(task)


async def test_one_that_is_added_meanwhile_and_due_earlier_is_not_missed() -> None:
    clock = Waits(limit=100)
    store = MemoryStore(clock=clock.now)
    add(store, 1, "1h")
    clock.alarm = clock.limit - 50
    task = asyncio.create_task(Scheduled(store, clock=clock).run())
    await asyncio.wait_for(clock.rings.wait(), 60)
    add(store, 2, "10s")
    await asyncio.wait_for(clock.over.wait(), 60)
    assert [message.payload for message in store._log] == [b"2"]
    await ends(task)


async def test_a_database_that_is_away_is_asked_again_with_a_growing_pause(caplog: pytest.LogCaptureFixture) -> None:
    clock = Waits(limit=20)
    store = Failing(8, clock=clock.now)
    add(store, 1, "0")
    task = asyncio.create_task(Scheduled(store, longest_pause=1.0, clock=clock).run())
    await asyncio.wait_for(clock.over.wait(), 60)
    assert clock.waited[:9] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert [message.payload for message in store._log] == [b"1"]
    (unavailable,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "scheduled messages unavailable: the database is away; 0 s and 0 retries so far" in unavailable
    await ends(task)


async def test_it_ends_at_once_while_it_waits() -> None:
    task = asyncio.create_task(Scheduled(MemoryStore()).run())
    for _ in range(10):
        await asyncio.sleep(0)
    await ends(task)


# -- the relay -------------------------------------------------------------------------------------------------------


async def test_a_relay_carries_what_falls_due_while_it_runs(log: Log) -> None:
    broker = Arrivals()
    relay = Relay(log.store, broker, settings=SETTINGS)
    running = asyncio.create_task(relay.run())
    await log.add(*numbered(1, deliver_in="200ms"), *numbered(2), *numbered(3, deliver_in="1h"))
    await broker.until(1, 2)
    await log.pass_time(timedelta(hours=1))
    await broker.until(1, 2, 3)
    relay.stop()
    summary = await asyncio.wait_for(running, 60)
    assert (summary.published, summary.lanes_lost) == (3, 0)
    assert (sorted(broker.numbers), broker.numbers[-1]) == ([1, 2, 3], 3)


async def test_a_relay_that_empties_the_log_moves_what_is_due_first(log: Log) -> None:
    await log.add(*numbered(1, deliver_in="0"), *numbered(2, deliver_in="1h"))
    broker = Arrivals()
    assert (await Relay(log.store, broker, settings=SETTINGS).run_until_empty()).published == 1
    assert broker.numbers == [1]
    assert len(await log.scheduled()) == 1


async def test_a_relay_that_stands_by_moves_what_is_due_too(log: Log) -> None:
    """The owner of the lanes delivers it."""
    broker = Arrivals()
    relays = [Relay(store, broker, settings=SETTINGS) for store in (log.store, log.another_store())]
    running = [asyncio.create_task(relay.run()) for relay in relays]
    await log.add(*numbered(1, deliver_in="0"))
    await broker.until(1)
    for relay in relays:
        relay.stop()
    await asyncio.wait_for(asyncio.gather(*running), 60)
    assert broker.numbers == [1]
