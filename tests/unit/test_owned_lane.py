"""When a wave may begin, and how relays share lanes."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.relay.owned_lane import LEFT_SECONDS, FreeLanes, LeaseInDoubt, OwnedLane, acting_without_lock, fair_share
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from postroad.stores.leases import Peer, SinkSnapshot
from tests.clocks import Flying
from tests.lanes import HERE


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


def snapshot(*lanes: int, free: tuple[int, ...] = (), beats: int = 1) -> SinkSnapshot:
    there = [msgspec.structs.replace(peer, beats=beats) for peer in peers(*lanes)]
    return SinkSnapshot(lanes=4, destination=HERE, mine={}, renewed=(), free=free, peers=there, suspects=())


def counted(free: FreeLanes, snapshot: SinkSnapshot, now: float) -> list[int]:
    return [peer.owner.int for peer in free.look(snapshot, now)]


def test_who_leaves_a_lane_of_its_share_is_not_counted_until_it_is_heard_of_again() -> None:
    free = FreeLanes(owner(0))
    assert counted(free, snapshot(2, 1, 0, free=(3,)), 10.0) == [0, 1, 2]
    assert counted(free, snapshot(2, 1, 0, free=(3,)), 10.0 + LEFT_SECONDS - 0.1) == [0, 1, 2]
    assert counted(free, snapshot(2, 1, 0, free=(3,)), 10.0 + LEFT_SECONDS) == [0, 1]
    assert counted(free, snapshot(2, 2, 0), 12.0) == [0, 1], "it has not come since"
    assert counted(free, snapshot(2, 2, 0, beats=2), 13.0) == [0, 1, 2]


def test_a_lane_that_was_taken_in_between_was_not_left() -> None:
    free = FreeLanes(owner(0))
    free.look(snapshot(2, 1, free=(3,)), 10.0)
    free.look(snapshot(2, 2), 10.5)
    assert counted(free, snapshot(2, 1, free=(3,)), 11.0) == [0, 1]
    assert not free.left


@pytest.mark.parametrize(
    ("lanes", "locks", "who"),
    [
        ([0, 0], [None, None], 0),  # the first one
        ([0, 4], [None, None], 1),  # nothing moves that need not
        ([2, 2], [None, None], 0),
        ([0, 4], [42, None], None),  # the one that has the lock
        ([0, 0], [None, 42], None),
        ([0, 0], [41, None], 0),  # that is another lock
    ],
)
def test_who_stands_in(lanes: list[int], locks: list[int | None], who: int | None) -> None:
    there = [msgspec.structs.replace(each, lock=lock) for each, lock in zip(peers(*lanes), locks, strict=True)]
    without = [each.owner.int for each in there if each.lock != 42 and acting_without_lock(there, each.owner, 42)]
    assert without == ([] if who is None else [who])


def test_what_ones_own_row_said_of_a_lock_that_was_lost_does_not_count() -> None:
    assert acting_without_lock([Peer(owner(0), 4, 1, lock=42)], owner(0), 42)


@pytest.fixture
async def clock() -> Flying:
    return Flying()


def owned(clock: Flying, seconds: float) -> OwnedLane:
    return OwnedLane(Lease("s", 3, 0, 1023, owner(1), 1, 1, Cursor(0)), clock.now() + seconds, clock)


async def test_no_wave_begins_when_the_lease_may_end(clock: Flying) -> None:
    it = owned(clock, 12)
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
    it = owned(clock, 12)
    it.stop = lambda: stopped.append(True)
    it.lose()
    assert stopped == [True]
    with pytest.raises(LeaseInDoubt):
        it.check(it.lease)
    await it.decided(asyncio.Event())


async def test_a_lane_in_doubt_waits_for_the_decision(clock: Flying) -> None:
    it, stopping = owned(clock, 0), asyncio.Event()
    waiting = asyncio.create_task(it.decided(stopping))
    await asyncio.sleep(0)
    assert not waiting.done()
    it.until = float("inf")
    await asyncio.wait_for(waiting, 60)
    it.until = float("-inf")
    waiting = asyncio.create_task(it.decided(stopping))
    stopping.set()
    await asyncio.wait_for(waiting, 60)


async def test_a_lane_that_was_taken_anew_loads_before_it_sends(clock: Flying) -> None:
    """What it knows was loaded by the old epoch: it could publish, but not save."""
    it = owned(clock, 12)
    loaded = it.lease
    it.lease = msgspec.structs.replace(it.lease, epoch=2)
    with pytest.raises(LeaseInDoubt, match="was taken anew"):
        it.check(loaded)
    it.check(it.lease)
