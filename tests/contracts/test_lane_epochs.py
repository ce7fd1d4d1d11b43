"""A destination that can fence: each owner of a lane publishes through a publisher of its own (`for_lane`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from postroad import Refusal, StoredMessage, events
from postroad.brokers.base import LaneEpoch
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.errors import BrokerUnavailable, LeaseLost
from postroad.relay import Relay
from tests.logs import Log, log_fixture, numbered

log = log_fixture("memory", "sqlite", "postgresql15")


class Fencing(MemoryBroker):
    """Takes messages from the latest owner of each lane only."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[Owner] = []
        self.latest: dict[int, int] = {}
        self.close_error: Exception | None = None
        self.closing = asyncio.Event()
        self.closing.set()

    def for_lane(self, lane: LaneEpoch) -> Owner:
        self.owners.append(owner := Owner(self, lane))
        self.latest[lane.lane] = max(lane.epoch, self.latest.get(lane.lane, 0))
        return owner

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        raise AssertionError("the lane's own publisher must be used")

    async def take(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        return await super().publish(messages)


class Owner:
    name = destination = "memory"

    def __init__(self, broker: Fencing, lane: LaneEpoch) -> None:
        self._broker = broker
        self.lane = lane
        self.closed = False
        self.positions: list[int] = []

    async def open(self) -> None:
        raise AssertionError("the sink's publisher is what is probed")

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        assert not self.closed
        if self.lane.epoch < self._broker.latest[self.lane.lane]:
            raise LeaseLost(f"lane {self.lane.lane} was fenced")
        refusals = await self._broker.take(messages)
        self.positions += [message.position for message in messages]
        return refusals

    async def close(self) -> None:
        await self._broker.closing.wait()
        self.closed = True
        if self._broker.close_error is not None:
            raise self._broker.close_error


class Noted:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind)]


def relay(log: Log, broker: MemoryBroker, noted: Noted | None = None, **settings: Any) -> Relay:
    defaults: dict[str, Any] = {"lanes": 2, "batch_size": 10, "poll_interval": "1ms", "outage_backoff": "1ms"}
    listeners = [noted or Noted()]
    return Relay(log.store, broker, sink="s", settings=RelaySettings(**defaults | settings), listeners=listeners)


async def test_each_lane_has_a_publisher_of_its_own_which_is_closed_at_the_end(log: Log) -> None:
    await log.add(*numbered(*range(40)))
    broker = Fencing()
    assert (await relay(log, broker).run_until_empty()).published == 40
    assert sorted(owner.lane.lane for owner in broker.owners) == [0, 1]
    assert all(owner.closed and owner.lane.sink == "s" for owner in broker.owners)
    positions = [set(owner.positions) for owner in broker.owners]
    assert positions[0].isdisjoint(positions[1])
    first = {owner.lane.lane: owner.lane.epoch for owner in broker.owners}
    broker.owners.clear()
    await log.add(*numbered(*range(40, 60)))
    assert (await relay(log, broker).run_until_empty()).published == 20
    assert all(owner.lane.epoch > first[owner.lane.lane] for owner in broker.owners), "the epoch rises"


async def test_an_outage_counts_for_the_sink_and_the_publisher_of_the_lane_stays(log: Log) -> None:
    await log.add(*numbered(*range(10)))
    broker = Fencing()
    broker.fail_after(3, 0, 2)
    noted = Noted()
    assert (await relay(log, broker, noted, lanes=1).run_until_empty()).published == 10
    assert len(broker.owners) == 1
    assert noted.of(events.BrokerUnavailable)


async def test_a_lane_that_was_fenced_is_lost_and_nothing_is_refused(log: Log) -> None:
    """Also when the database knows nothing of it: then the relay takes the lane again, in a new epoch."""
    await log.add(*numbered(*range(20), key="k"))
    broker = Fencing()
    noted = Noted()
    original = broker.take

    async def fence(messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        refusals = await original(messages)
        if len(broker.messages) >= 5 and len(broker.owners) == 1:
            broker.latest[0] += 1
        return refusals

    broker.take = fence  # type: ignore[method-assign]
    it = relay(log, broker, noted, lanes=1, batch_size=5)
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        while len({message.position for message in broker.messages}) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    it.stop()
    summary = await running
    assert (summary.refused, summary.died) == (0, 0)
    assert len(broker.owners) == 2
    assert broker.owners[0].closed
    assert broker.owners[1].lane.epoch > broker.owners[0].lane.epoch
    arrived = [int(message.payload) for message in broker.messages]
    assert list(dict.fromkeys(arrived)) == list(range(20)), "first arrivals in order"
    assert noted.of(events.LaneLost)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_publisher_that_can_t_be_closed_keeps_no_lane(log: Log, hangs: bool) -> None:
    await log.add(*numbered(1))
    broker = Fencing()
    broker.close_error = BrokerUnavailable("gone")
    if hangs:
        broker.closing.clear()
    noted = Noted()
    async with asyncio.timeout(60):
        await relay(log, broker, noted, lanes=1).run_until_empty()
    (event,) = noted.of(events.LanePublisherNotClosed)
    assert event.reason == ("it did not end within 1 s" if hangs else "BrokerUnavailable: gone")
    assert (await relay(log, MemoryBroker(), lanes=1).run_until_empty()).lanes_lost == 0
