"""Notifications that say nothing: any role of a database may send them, as often as it likes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.relay.wake_signal import WAKES_AT_ONCE, WAKES_PER_SECOND, WakeSignal
from postroad.stores.postgresql import PostgreSQLStore
from tests.clocks import FastClock
from tests.logs import Arrivals, PostgreSQLLog, log_fixture, numbered

SECONDS = 60


class Counting(PostgreSQLStore):
    """A store that counts what it is asked for."""

    reads = 0
    moves = 0

    async def read(self, *arguments: Any) -> Any:
        self.reads += 1
        return await super().read(*arguments)

    async def move_scheduled(self, limit: int) -> Any:
        self.moves += 1
        return await super().move_scheduled(limit)


log = log_fixture("postgresql15")


@pytest.fixture
async def stranger(log: PostgreSQLLog) -> Any:
    """A connection as a role that was granted nothing at all."""
    await log.execute("do $$ begin create role stranger login; exception when duplicate_object then null; end $$")
    return await log.connect(user="stranger")


async def test_a_flood_of_notifications_makes_a_relay_look_a_few_times_only(
    log: PostgreSQLLog, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, broker = Counting(log.url), Arrivals()
    settings = RelaySettings(lanes=1, tick="1h", linger="1ms", poll_interval="1ms", grace="5s")
    relay = Relay(store, broker, settings=settings)
    running = asyncio.create_task(relay.run())
    received = asyncio.Event()
    async with asyncio.timeout(SECONDS):
        while not (relay._lanes and all(wait.asleep for wait in relay._wakeup._waits)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        on_notify = relay._wakeup.on_notify
        floods = 0

        def count(first: int, last: int) -> None:
            nonlocal floods
            floods += 1
            if floods == 2000:
                received.set()
            on_notify(first, last)

        monkeypatch.setattr(relay._wakeup, "on_notify", count)
        reads, moves, began = store.reads, store.moves, relay._wakeup.clock.now()
        for number in range(2000):
            await stranger.execute("select pg_notify('postroad', $1)", "" if number % 2 else "0-1023")
        await received.wait()
        allowed = WAKES_AT_ONCE + (relay._wakeup.clock.now() - began + 1) * WAKES_PER_SECOND
        assert store.reads - reads <= allowed
        assert store.moves - moves <= allowed
        await log.add(*numbered(1))
        await broker.until(1)
    relay.stop()
    await asyncio.wait_for(running, SECONDS)


async def test_so_many_go_through_at_once_and_then_so_many_per_second() -> None:
    clock = FastClock()
    signal, wakes = WakeSignal(clock), []
    began = clock.now()
    for _ in range(WAKES_AT_ONCE + WAKES_PER_SECOND):
        signal.on_notify()
        await signal.wait(1000)
        wakes.append(clock.now() - began)
    assert wakes[: WAKES_AT_ONCE + 1] == pytest.approx([0] * (WAKES_AT_ONCE + 1), abs=1e-6)
    assert wakes[-1] == pytest.approx(1 - 1 / WAKES_PER_SECOND)


async def test_what_is_worth_it_goes_through_without_limit() -> None:
    clock = FastClock()
    signal, began = WakeSignal(clock), clock.now()
    for _ in range(1000):
        signal.on_notify()
        await signal.wait(1000)
        signal.found_work()
    assert clock.now() == began


async def test_what_is_heard_while_it_is_quiet_counts_and_what_is_urgent_goes_through() -> None:
    clock = FastClock()
    signal = WakeSignal(clock)
    for _ in range(WAKES_AT_ONCE + 1):
        signal.on_notify()
        await signal.wait(1000)
    began = clock.now()
    signal.wake()
    await signal.wait(1000)
    assert clock.now() == began
    signal.on_notify()
    await signal.wait(1000)
    assert clock.now() - began == pytest.approx(1 / WAKES_PER_SECOND)
    await signal.wait(1000)
    assert clock.now() - began > 1000


async def test_a_wait_is_never_longer_than_its_timeout() -> None:
    clock = FastClock()
    signal = WakeSignal(clock)
    for _ in range(WAKES_AT_ONCE + 5):
        signal.on_notify()
        await signal.wait(1000)
    began = clock.now()
    signal.on_notify()
    await signal.wait(0.001)
    assert clock.now() - began == pytest.approx(0.001)


async def test_what_was_heard_while_there_were_too_many_is_not_forgotten() -> None:
    clock = FastClock()
    signal = WakeSignal(clock)
    for _ in range(2 * WAKES_AT_ONCE):
        signal.on_notify()
        await signal.wait(0)
    signal.on_notify()
    clock.time += 3600
    before = clock.time
    await signal.wait(1000)
    assert clock.time == before, "it is passed on before anything is waited for"
