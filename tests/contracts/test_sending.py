"""Lanes share a connection: when a message breaks it, every call under way fails, and only that message is at fault."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from postroad import BrokerUnavailable, Message, Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from tests.logs import MemoryLog, numbered

POISON = b"this breaks it"


class Shared(MemoryBroker):
    """A broker with one connection for all calls, which breaks sooner than it confirms."""

    def __init__(self) -> None:
        super().__init__()
        self._broken = asyncio.Event()
        self.breaks = 0

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        broken = self._broken
        await turns_of_the_loop(20)
        if any(message.payload == POISON for message in messages):
            self.breaks += 1
            broken.set()
            self._broken = asyncio.Event()
        await turns_of_the_loop(20)
        if broken.is_set():
            raise BrokerUnavailable("the connection broke")
        return await super().publish(messages)


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_no_message_of_another_lane_is_blamed_for_a_broken_connection() -> None:
    """Each lane has some messages under way whenever it breaks, so all of them fail as often as the one at fault."""
    log = MemoryLog()
    await log.add(Message(POISON, type="test.number", key="poison"), *numbered(*range(64)))
    broker = Shared()
    settings = RelaySettings(lanes=4, max_attempts=2, max_backoff="1ms", outage_backoff="1ms", poll_interval="1ms")
    it = Relay(log.store, broker, settings=settings)
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        while len(broker.messages) + [each.state for each in await log.deferred()].count("dead") < 65:
            await turns_of_the_loop(1)
    it.stop()
    summary = await running
    assert [(each.position, each.attempt) for each in await log.attempts()] == [(1, 1), (1, 2)]
    assert (summary.published, summary.refused, summary.died) == (64, 2, 1)
    assert sorted(int(message.payload) for message in broker.messages) == list(range(64))
    assert broker.breaks < 20
