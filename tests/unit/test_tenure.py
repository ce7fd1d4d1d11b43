"""When a wave may begin, and how relays share lanes."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.relay.tenure import LeaseInDoubt, Tenure, fair_share
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from postroad.stores.leases import Peer
from tests.clocks import Flying


def owner(number: int) -> UUID:
    return UUID(int=number)


def peers(*lanes: int) -> list[Peer]:
    return [Peer(owner(number), count, 1) for number, count in enumerate(lanes)]


@pytest.mark.parametrize(
    ("lanes", "held", "shares"),
    [
        (4, [0], [4]),
        (4, [4, 0], [2, 2]),
        (4, [2, 2, 0], [2, 1, 1]),
        (1, [0, 1], [0, 1]),  # who has it keeps it, also from one who was there first
        (1, [0, 0], [1, 0]),
        (3, [0, 1, 2, 0], [1, 1, 1, 0]),
        (5, [1, 2, 2], [1, 2, 2]),
    ],
)
def test_a_fair_share(lanes: int, held: list[int], shares: list[int]) -> None:
    assert [fair_share(lanes, peers(*held), owner(number)) for number in range(len(held))] == shares


@given(st.integers(1, 64), st.lists(st.integers(0, 64), min_size=1, max_size=20))
def test_all_lanes_are_shared_and_nobody_has_two_more_than_another(lanes: int, held: list[int]) -> None:
    shares = [fair_share(lanes, peers(*held), owner(number)) for number in range(len(held))]
    assert sum(shares) == lanes
    assert max(shares) - min(shares) <= 1


@given(st.integers(1, 64), st.lists(st.integers(0, 64), min_size=1, max_size=20))
def test_once_everybody_has_its_share_nothing_moves(lanes: int, held: list[int]) -> None:
    shares = [fair_share(lanes, peers(*held), owner(number)) for number in range(len(held))]
    assert [fair_share(lanes, peers(*shares), owner(number)) for number in range(len(held))] == shares


def test_who_is_not_among_them_yet_comes_last() -> None:
    assert fair_share(3, peers(1, 1), owner(7)) == 1
    assert fair_share(2, peers(1, 1), owner(7)) == 0


@pytest.fixture
async def clock() -> Flying:
    return Flying()


def tenure(clock: Flying, seconds: float) -> Tenure:
    return Tenure(Lease("s", 3, 0, 1023, owner(1), 1, 1, Cursor(0)), clock.now() + seconds, clock)


async def test_no_wave_begins_when_the_lease_may_end(clock: Flying) -> None:
    it = tenure(clock, 12)
    it.check(it.lease)
    await clock.wait(asyncio.Event(), 11.99)
    it.check(it.lease)
    await clock.wait(asyncio.Event(), 0.01)
    with pytest.raises(LeaseInDoubt, match="the lease of lane 3 of sink 's' could not be renewed in time"):
        it.check(it.lease)
    it.until += 1
    it.check(it.lease)


async def test_a_lane_that_is_lost_begins_nothing_however_long_its_lease(clock: Flying) -> None:
    stopped = []
    it = tenure(clock, 12)
    it.stop = lambda: stopped.append(True)
    it.lose()
    assert stopped == [True]
    with pytest.raises(LeaseInDoubt):
        it.check(it.lease)
    await it.decided(asyncio.Event())


async def test_a_lane_in_doubt_waits_for_the_decision(clock: Flying) -> None:
    it, stopping = tenure(clock, 0), asyncio.Event()
    waiting = asyncio.create_task(it.decided(stopping))
    await asyncio.sleep(0)
    assert not waiting.done()
    it.until = float("inf")
    await asyncio.wait_for(waiting, 10)
    it.until = float("-inf")
    waiting = asyncio.create_task(it.decided(stopping))
    stopping.set()
    await asyncio.wait_for(waiting, 10)


async def test_a_lane_that_was_taken_anew_loads_before_it_sends(clock: Flying) -> None:
    """What it knows was loaded by the old epoch: it could publish, but not save."""
    it = tenure(clock, 12)
    loaded = it.lease
    it.lease = msgspec.structs.replace(it.lease, epoch=2)
    with pytest.raises(LeaseInDoubt, match="was taken anew"):
        it.check(loaded)
    it.check(it.lease)
