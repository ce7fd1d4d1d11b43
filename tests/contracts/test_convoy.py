"""Relays with so many lanes that they read together: what holds for lanes that read alone holds for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from postroad import Refusal, RelaySettings, StoredMessage, StoreUnavailable
from postroad.brokers.memory import MemoryBroker
from postroad.message import slot_of
from postroad.relay import Relay
from postroad.stores.base import Lease, ManyLanes, Settlement
from postroad.stores.cursor import Cursor, PageLimit, Sweep
from tests.logs import Arrivals, Log, log_fixture, numbered

LANES = 16
log = log_fixture("memory", "postgresql15", "postgresql18")


def relay(log: Log, publisher: Any, **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": LANES, "batch_size": 5, "grace": "5s", "outage_backoff": "10ms"}
    return Relay(log.store, publisher, settings=RelaySettings(**(defaults | settings)))


def lane_of(key: str) -> int:
    return slot_of(key, UUID(int=0)) * LANES // 1024


class Sweeps:
    """Remembers how many lanes were read for, and settled, in each statement; fails after so many reads."""

    def __init__(self, many: ManyLanes) -> None:
        self._many = many
        self.reads: list[int] = []
        self.settles: list[int] = []
        self.fail_at: set[int] = set()

    async def read(self, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit) -> Sweep:
        self.reads.append(len(lanes))
        if len(self.reads) in self.fail_at:
            raise StoreUnavailable("now")
        return await self._many.read(lanes, limit)

    async def settle(self, asked: Sequence[Settlement]) -> Sequence[Lease | None]:
        self.settles.append(len(asked))
        return await self._many.settle(asked)


@pytest.fixture
def sweeps(log: Log) -> Sweeps:
    assert log.store.many is not None
    watched = Sweeps(log.store.many)
    log.store.many = watched  # type: ignore[misc]
    return watched


class ByKey(MemoryBroker):
    """Hangs in each call that has a message of one of these keys, until it is released."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self._keys = keys
        self.hanging = asyncio.Event()
        self.released = asyncio.Event()
        self.arrived = asyncio.Event()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        if any(message.key in self._keys for message in messages):
            self.hanging.set()
            await self.released.wait()
        try:
            return await super().publish(messages)
        finally:
            self.arrived.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                self.arrived.clear()
                await self.arrived.wait()


def check_order(messages: Sequence[StoredMessage]) -> None:
    positions: dict[str | None, int] = {}
    for message in messages:
        assert positions.get(message.key, 0) < message.position, f"key {message.key} is out of order"
        positions[message.key] = message.position


async def test_everything_arrives_once_and_in_order(log: Log, sweeps: Sweeps) -> None:
    await log.add(*[each for number in range(600) for each in numbered(number, key=f"k{number % 40}")])
    await log.add_and_roll_back(*numbered(1000))
    broker = MemoryBroker()
    assert (await relay(log, broker).run_until_empty()).published == 600
    assert sorted(int(message.payload) for message in broker.messages) == list(range(600))
    check_order(broker.messages)
    assert max(sweeps.reads) == LANES
    assert len(sweeps.reads) < 600 / 5 / 4, "far fewer reads than pages"
    assert (await relay(log, broker).run_until_empty()).published == 0


async def test_a_part_of_the_log_without_messages_of_a_lane_is_not_its_end(log: Log, sweeps: Sweeps) -> None:
    """One lane has its messages behind those of another."""
    first, last = "k0", next(f"k{n}" for n in range(99) if lane_of(f"k{n}") != lane_of("k0"))
    await log.add(*numbered(*range(200), key=first))
    await log.add(*numbered(200, 201, key=last))
    broker = MemoryBroker()
    assert (await relay(log, broker).run_until_empty()).published == 202
    check_order(broker.messages)
    assert sweeps.reads


async def test_a_lane_whose_publisher_hangs_delays_no_other(log: Log, sweeps: Sweeps) -> None:
    hung = [number for number in range(2000) if lane_of(f"k{number % 50}") == lane_of("k7")]
    assert 2000 > 2000 - len(hung) > 1500
    await log.add(*[each for number in range(2000) for each in numbered(number, key=f"k{number % 50}")])
    broker = ByKey("k7")
    async with relay(log, broker):
        await broker.hanging.wait()
        await broker.until(2000 - len(hung))
        broker.released.set()
        await broker.until(2000)
    assert sorted(int(message.payload) for message in broker.messages) == list(range(2000))
    check_order(broker.messages)
    assert LANES in sweeps.reads
    assert LANES - 1 in sweeps.reads, "the others were read for without it"


async def test_lanes_that_are_idle_wake_and_travel_together_again(log: Log, sweeps: Sweeps) -> None:
    broker = Arrivals()
    async with relay(log, broker, wakeup="off", poll_interval="1ms", max_idle_backoff="2ms"):
        for first in range(0, 900, 300):
            await log.add(*[each for n in range(first, first + 300) for each in numbered(n, key=f"k{n % 40}")])
            await broker.until(*range(first + 300))
    assert sorted(broker.numbers) == list(range(900))
    check_order(broker.messages)


async def test_after_an_error_all_lanes_go_on(log: Log, sweeps: Sweeps) -> None:
    await log.add(*[each for number in range(600) for each in numbered(number, key=f"k{number % 40}")])
    sweeps.fail_at = {2, 4, 5}
    broker = MemoryBroker()
    await relay(log, broker, settle_interval="0s").run_until_empty()
    assert {int(message.payload) for message in broker.messages} == set(range(600))
    check_order(list({message.position: message for message in broker.messages}.values()))  # the first of each


async def test_lanes_settle_together(log: Log, sweeps: Sweeps) -> None:
    await log.add(*[each for number in range(600) for each in numbered(number, key=f"k{number % 40}")])
    await relay(log, MemoryBroker(), settle_interval="0s").run_until_empty()
    assert max(sweeps.settles) > LANES / 2
