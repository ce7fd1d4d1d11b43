"""A relay's heartbeat, sent along with its tick: an answer to what the relay asked since is newer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from postroad.config import RelaySettings
from postroad.listeners import Listeners
from postroad.relay.owned_lane import OwnedLane
from postroad.relay.ownership import LaneOwnership
from postroad.stores.leases import SinkSnapshot
from postroad.stores.memory import MemoryStore
from tests.lanes import HERE, identity

SECONDS = 60
ANOTHER_OWNS_THEM = SinkSnapshot(lanes=2, destination=HERE, mine={}, renewed=(), free=(), peers=(), suspects=())


class Running:
    """A relay that has taken two lanes."""

    def __init__(self) -> None:
        self.store, self.me = MemoryStore(), identity("s")
        self.ownership = LaneOwnership(self.store.leases, self.me, RelaySettings(lanes=2), Listeners())
        self.taken: list[OwnedLane] = []
        self._more = asyncio.Event()

    def start(self, owned: OwnedLane) -> Callable[[], None]:
        self.taken.append(owned)
        self._more.set()
        return lambda: None

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
    running = asyncio.create_task(relay.ownership.run(relay.start, on_started=lambda: None))
    await relay.until_taken(2)
    yield relay
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_tick_renews_the_leases(relay: Running) -> None:
    heartbeat = relay.ownership.next_heartbeat()
    assert heartbeat is not None
    assert heartbeat.identity == relay.me
    before = [owned.valid_until for owned in relay.taken]
    relay.ownership.on_heartbeat(heartbeat, await relay.store.leases.heartbeat(heartbeat.identity, heartbeat.seconds))
    assert all(owned.valid_until > until for owned, until in zip(relay.taken, before, strict=True))
    assert not any(owned.lost for owned in relay.taken)


async def test_a_tick_finds_out_that_lanes_are_lost(relay: Running) -> None:
    heartbeat = relay.ownership.next_heartbeat()
    assert heartbeat is not None
    relay.ownership.on_heartbeat(heartbeat, ANOTHER_OWNS_THEM)
    assert all(owned.lost for owned in relay.taken)


async def test_what_a_tick_found_before_a_lane_was_taken_does_not_count(relay: Running) -> None:
    heartbeat = relay.ownership.next_heartbeat()
    assert heartbeat is not None
    await relay.ownership.release(relay.taken[0])
    await relay.until_taken(3)
    relay.ownership.on_heartbeat(heartbeat, ANOTHER_OWNS_THEM)
    assert not any(owned.lost for owned in relay.taken)
