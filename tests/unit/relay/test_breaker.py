"""When a call of the publisher begins: beside others, or alone, and not in an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from postroad.brokers.memory import MemoryBroker
from postroad.errors import BrokerUnavailable, Refusal
from postroad.listeners import Listeners
from postroad.message import StoredMessage, new_id
from postroad.relay.breaker import Breaker
from postroad.relay.outcome import Interrupted
from postroad.relay.owned_lane import OwnedLane
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from tests.clocks import FastClock


class Gated(MemoryBroker):
    """Answers a call, and opens, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = asyncio.Event()
        self.running: dict[int, asyncio.Future[None]] = {}

    async def open(self) -> None:
        await self.may_open.wait()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        number = messages[0].position
        self.running[number] = asyncio.get_running_loop().create_future()
        try:
            await self.running[number]
        finally:
            del self.running[number]
        return []


class Calls:
    """The calls of several lanes through one breaker, each with a message of its own."""

    def __init__(self) -> None:
        self.clock = FastClock()
        self.broker = Gated()
        self.breaker = Breaker("s", self.broker, Listeners([]), longest=1.0, clock=self.clock)
        self.owned = OwnedLane(Lease("s", 0, 0, 1023, UUID(int=1), 1, 1, Cursor(0)), float("inf"), self.clock)
        self.stopping = asyncio.Event()

    async def begin(self, number: int, *, alone: bool = False) -> asyncio.Task[Sequence[Refusal]]:
        message = StoredMessage(number, new_id(), "t", None, 0, "t", b"", "text/plain", "{}", 0)
        publishing = self.breaker.publish([message], self.broker, self.owned, self.stopping, alone=alone)
        call = asyncio.create_task(publishing)
        await self.turn()
        return call

    async def turn(self) -> None:
        """Everybody comes to their turn."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def running(self) -> list[int]:
        await self.turn()
        return sorted(self.broker.running)

    async def answer(self, number: int) -> None:
        self.broker.running[number].set_result(None)
        await self.turn()


@pytest.fixture
async def calls() -> Calls:
    return Calls()


async def test_a_call_alone_waits_for_the_others_and_holds_back_later_ones(calls: Calls) -> None:
    every = [await calls.begin(1), await calls.begin(2), await calls.begin(3, alone=True), await calls.begin(4)]
    assert await calls.running() == [1, 2]
    await calls.answer(1)
    assert await calls.running() == [2]
    await calls.answer(2)
    assert await calls.running() == [3]
    every.append(await calls.begin(5, alone=True))
    await calls.answer(3)
    assert await calls.running() in ([4], [5]), "one at a time, whichever is first"
    for _ in range(2):
        await calls.answer((await calls.running())[0])
    assert await asyncio.gather(*every) == [[]] * 5


async def test_a_call_alone_that_is_cancelled_holds_nobody_back(calls: Calls) -> None:
    first, alone = await calls.begin(1), await calls.begin(2, alone=True)
    alone.cancel()
    later = await calls.begin(3)
    assert await calls.running() == [1, 3]
    await calls.answer(1)
    await calls.answer(3)
    await asyncio.gather(first, later)


@pytest.mark.parametrize("alone", [False, True])
async def test_a_call_that_waits_for_its_turn_does_not_begin_in_an_outage(calls: Calls, alone: bool) -> None:
    first, waiting = await calls.begin(1, alone=True), await calls.begin(2, alone=alone)
    calls.broker.running[1].set_exception(BrokerUnavailable("gone"))
    assert await calls.running() == []
    assert calls.breaker.is_open
    with pytest.raises(BrokerUnavailable, match="gone"):
        await first
    calls.broker.may_open.set()
    while not await calls.running():
        pass
    assert calls.breaker.probes == 1
    await calls.answer(2)
    await waiting
    assert calls.breaker.probes == 0
    await calls.breaker.end()


async def test_a_call_is_interrupted_when_its_lane_is_stopped_in_an_outage(calls: Calls) -> None:
    calls.breaker.trip(BrokerUnavailable("gone"))
    waiting = await calls.begin(1)
    calls.stopping.set()
    with pytest.raises(Interrupted, match="stopped in an outage"):
        await waiting
    await calls.breaker.end()
