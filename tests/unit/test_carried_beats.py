"""A relay's heartbeat, carried by its tick: what was asked since counts more than what a tick has found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from postroad.config import RelaySettings
from postroad.relay.leases import Holdings
from postroad.relay.tenure import Tenure
from postroad.stores.leases import Standing
from postroad.stores.memory import MemoryStore
from tests.lanes import HERE, runner

SECONDS = 30
SOMEBODY_ELSE_HAS_THEM = Standing(lanes=2, destination=HERE, mine={}, renewed=(), free=(), peers=(), suspects=())


class Running:
    """A relay that has taken two lanes."""

    def __init__(self) -> None:
        self.store, self.me = MemoryStore(), runner("s")
        self.holdings = Holdings(self.store.leases, self.me, RelaySettings(lanes=2))
        self.taken: list[Tenure] = []
        self._more = asyncio.Event()

    def start(self, tenure: Tenure) -> None:
        self.taken.append(tenure)
        self._more.set()

    async def until_taken(self, lanes: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.taken) < lanes:
                self._more.clear()
                await self._more.wait()
        await asyncio.sleep(0)  # the round that took them is over


@pytest.fixture
async def relay() -> AsyncIterator[Running]:
    relay = Running()
    await relay.store.leases.create("s", HERE, lanes=2, start="oldest")
    running = asyncio.create_task(relay.holdings.run(relay.start, began=lambda: None))
    await relay.until_taken(2)
    yield relay
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_tick_renews_the_leases(relay: Running) -> None:
    beat = relay.holdings.due()
    assert beat is not None
    assert beat.runner == relay.me
    before = [tenure.until for tenure in relay.taken]
    relay.holdings.beaten(beat, await relay.store.leases.beat(beat.runner, beat.seconds))
    assert all(tenure.until > until for tenure, until in zip(relay.taken, before, strict=True))
    assert not any(tenure.lost for tenure in relay.taken)


async def test_a_tick_finds_out_that_lanes_are_lost(relay: Running) -> None:
    beat = relay.holdings.due()
    assert beat is not None
    relay.holdings.beaten(beat, SOMEBODY_ELSE_HAS_THEM)
    assert all(tenure.lost for tenure in relay.taken)


async def test_what_a_tick_found_before_a_lane_was_taken_does_not_count(relay: Running) -> None:
    beat = relay.holdings.due()
    assert beat is not None
    await relay.holdings.ended(relay.taken[0])
    await relay.until_taken(3)
    relay.holdings.beaten(beat, SOMEBODY_ELSE_HAS_THEM)
    assert not any(tenure.lost for tenure in relay.taken)
