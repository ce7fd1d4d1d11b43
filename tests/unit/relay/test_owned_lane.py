"""When a wave may begin, by the lane's lease."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from postroad.relay.owned_lane import LeaseInDoubt, OwnedLane
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from tests.clocks import FastClock


@pytest.fixture
async def clock() -> FastClock:
    return FastClock()


def owned(clock: FastClock, seconds: float) -> OwnedLane:
    return OwnedLane(Lease("s", 3, 0, 1023, UUID(int=1), 1, 1, Cursor(0)), clock.now() + seconds, clock)


async def test_no_wave_begins_when_the_lease_may_end(clock: FastClock) -> None:
    it = owned(clock, 12)
    it.check()
    await clock.wait(asyncio.Event(), 11.99)
    it.check()
    await clock.wait(asyncio.Event(), 0.01)
    with pytest.raises(LeaseInDoubt, match="the lease of lane 3 of sink 's' could not be renewed in time"):
        it.check()
    it.valid_until += 1
    it.check()


async def test_a_lane_that_is_lost_begins_nothing_however_long_its_lease(clock: FastClock) -> None:
    it = owned(clock, 12)
    assert it.lose()
    with pytest.raises(LeaseInDoubt):
        it.check()
    await it.wait_until_decided(asyncio.Event())


async def test_a_lane_in_doubt_waits_for_the_decision(clock: FastClock) -> None:
    it, stopping = owned(clock, 0), asyncio.Event()
    waiting = asyncio.create_task(it.wait_until_decided(stopping))
    await asyncio.sleep(0)
    assert not waiting.done()
    it.valid_until = float("inf")
    await asyncio.wait_for(waiting, 60)
    it.valid_until = float("-inf")
    waiting = asyncio.create_task(it.wait_until_decided(stopping))
    stopping.set()
    await asyncio.wait_for(waiting, 60)


async def test_a_lane_that_was_reclaimed_loads_before_it_sends(clock: FastClock) -> None:
    """Its state was loaded in the old epoch: it could publish, but not save."""
    it = owned(clock, 12)
    loaded, reclaimed = it.lease, msgspec.structs.replace(it.lease, epoch=2)
    it.reclaim(reclaimed, clock.now() + 12)
    with pytest.raises(LeaseInDoubt, match="was reclaimed"):
        it.check()
    assert it.lease is loaded, "what the lane still writes is written in the old epoch, and fails"
    assert not it.lose(), "a write that failed in the old epoch does not mean that the lane is lost"
    assert it.load_lease() is reclaimed
    it.check()
    assert it.lose()
