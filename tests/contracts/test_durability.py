"""What a confirm means at a destination is reported once, and again when it changes; not after every outage."""

from __future__ import annotations

import asyncio
from typing import Any

from postroad import events
from postroad.brokers.base import Durability
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from tests.logs import Arrivals, MemoryLog, numbered


class Noted:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def texts(self) -> list[str]:
        wanted = events.DurabilityKnown | events.DurabilityWeak
        return [str(each) for each in self.events if isinstance(each, wanted)]


def relay(log: MemoryLog, broker: MemoryBroker, noted: Noted) -> Relay:
    settings = RelaySettings(lanes=1, poll_interval="1ms", max_idle_backoff="1ms", outage_backoff="1ms")
    return Relay(log.store, broker, sink="s", settings=settings, listeners=[noted])


async def test_it_is_reported_once_with_its_warnings_and_again_when_it_changes() -> None:
    log, broker, noted = MemoryLog(), Arrivals(), Noted()
    broker.durability = Durability("written once", ["there is one copy: it may be lost", "nothing is synced"])
    it = relay(log, broker, noted)
    running = asyncio.create_task(it.run())
    for number in range(3):  # each ends in an outage, and `open` is the probe
        broker.fail_after(0)
        await log.add(*numbered(number))
        await broker.until(number)
    broker.durability = Durability("written by three")
    broker.fail_after(0)
    await log.add(*numbered(3))
    await broker.until(3)
    it.stop()
    await running
    assert noted.texts() == [
        "relay s: a confirmed message is written once",
        "relay s: there is one copy: it may be lost",
        "relay s: nothing is synced",
        "relay s: a confirmed message is written by three",
    ]
    levels = [each.level for each in noted.events if isinstance(each, events.DurabilityWeak)]
    assert levels == [30, 30], "warnings"


async def test_a_publisher_that_says_nothing_is_not_reported() -> None:
    class Silent(Arrivals):
        async def open(self) -> Any:
            return True

    log, noted = MemoryLog(), Noted()
    await log.add(*numbered(1))
    assert (await relay(log, Silent(), noted).run_until_empty()).published == 1
    assert noted.texts() == []


async def test_it_is_reported_when_the_broker_can_be_reached_at_last() -> None:
    log, broker, noted = MemoryLog(), Arrivals(), Noted()
    broker.go_out()
    it = relay(log, broker, noted)
    await log.add(*numbered(1))
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        while not any(isinstance(each, events.BrokerUnavailable) for each in noted.events):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert noted.texts() == []
    broker.come_back()
    await broker.until(1)
    it.stop()
    await running
    assert noted.texts() == [
        "relay s: a confirmed message is kept in the memory of this process, and lost when it ends"
    ]
