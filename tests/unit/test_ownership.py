"""How a relay holds its lanes, with a clock of its own and leases that answer when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

import msgspec
import pytest

from postroad.config import RelaySettings
from postroad.relay.owned_lane import LEFT_SECONDS, OwnedLane
from postroad.relay.ownership import (
    A_LITTLE_LATER,
    BEATS_PER_LEASE,
    DEAD_SECONDS,
    EAGER_SECONDS,
    LOOK_SECONDS,
    MARGIN,
    LaneOwnership,
)
from postroad.stores.leases import LivenessLock, Peer, RelayIdentity, SinkSnapshot, Suspect
from postroad.stores.memory import MemoryStore
from postroad.stores.memory_leases import MemoryLeases
from tests.clocks import Flying
from tests.lanes import HERE, identity

LEASE = 15.0


class Session:
    """One that holds its lock, or one whose lock is another's."""

    def __init__(self, *, holds: bool = True) -> None:
        self.holds = holds
        self.lost = False
        self.closed = False

    async def lock(self) -> bool:
        return self.holds

    async def holder(self) -> str | None:
        return "server process 7 (psql)"

    def close(self) -> None:
        self.closed = True


class Slow(MemoryLeases):
    """Leases of a database that takes its time to answer."""

    def __init__(self, store: MemoryStore, clock: Flying) -> None:
        super().__init__(store._lanes, clock.now, lambda: 0)
        self.flying = clock
        self.seconds = 0.0
        self.sent: list[float] = []
        self.suspects: list[Suspect] = []
        self.buried: list[list[Suspect]] = []
        self.during_look: Callable[[], Awaitable[None]] | None = None
        self.session: Session | None = None
        self.opening = asyncio.Event()
        """Until it is set, a session that is being opened is not."""
        self.opening.set()
        self.opened = 0
        self.present = True

    async def beat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        self.sent.append(self.flying.time)
        snapshot = await super().beat(identity, seconds, liveness_lock)
        self.flying.time += self.seconds
        return snapshot

    async def look(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        snapshot = await super().look(identity, liveness_lock)
        if self.during_look is not None:
            await self.during_look()
        return snapshot

    async def attend(
        self, identity: RelayIdentity, lock: int | None, stirred: Callable[[], None]
    ) -> LivenessLock | None:
        self.opened += 1
        await self.opening.wait()
        self.present = True
        return self.session

    def _snapshot(self, identity: RelayIdentity, renewed: Collection[int]) -> SinkSnapshot:
        snapshot = super()._snapshot(identity, renewed)
        return msgspec.structs.replace(snapshot, suspects=list(self.suspects), present=self.present)

    async def bury(
        self, identity: RelayIdentity, suspects: Collection[Suspect], liveness_lock: LivenessLock | None = None
    ) -> Collection[UUID]:
        self.buried.append(list(suspects))
        return []


class Held:
    """Holdings that go round by round."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Flying()
        self.leases = Slow(MemoryStore(), self.clock)
        self.identity = identity()
        defaults: dict[str, Any] = {"lanes": 4, "lease": "15s"}
        chosen = RelaySettings(**(defaults | settings))
        self.ownership = LaneOwnership(self.leases, self.identity, chosen, clock=self.clock)
        self.owned_lanes: list[OwnedLane] = []

    async def once(self) -> float:
        await self.leases.create("s", HERE, lanes=4, start="oldest")
        return await self.ownership._once(self.owned_lanes.append)

    @property
    def lanes(self) -> list[int]:
        return sorted(owned.lease.lane for owned in self.owned_lanes)


@pytest.fixture
async def held() -> Held:
    return Held()


async def test_a_lease_counts_from_when_its_renewal_was_sent(held: Held) -> None:
    await held.once()
    held.leases.seconds = 4.0
    held.clock.time += LEASE / BEATS_PER_LEASE
    await held.once()
    assert held.clock.time == held.leases.sent[-1] + 4.0
    assert {owned.until for owned in held.owned_lanes} == {held.leases.sent[-1] + LEASE * (1 - MARGIN)}


async def test_a_relay_alone_leaves_it_to_its_tick_to_beat_three_times_in_a_lease(held: Held) -> None:
    """And when that is a little late, it beats by itself."""
    await held.once()
    assert await held.once() == LEASE / BEATS_PER_LEASE * A_LITTLE_LATER
    assert len(held.owned_lanes) == 4
    assert len(held.leases.sent) == 1


async def test_who_has_less_than_its_share_looks_often(held: Held) -> None:
    other = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 4, LEASE)
    assert await held.once() == EAGER_SECONDS
    assert held.owned_lanes == []


async def test_what_is_too_much_is_given_up_after_the_page(held: Held) -> None:
    await held.once()
    stopped: list[int] = []
    for owned in held.owned_lanes:
        owned.stop = lambda number=owned.lease.lane: stopped.append(number)  # type: ignore[misc]
    await held.leases.beat(identity(), LEASE)
    held.clock.time += 1
    await held.once()
    assert stopped == [2, 3]
    assert (await held.leases.look(held.identity)).mine.keys() == {0, 1, 2, 3}, (
        "not before the page under way has ended"
    )
    await held.ownership.ended(held.owned_lanes[3])
    assert (await held.leases.look(held.identity)).mine.keys() == {0, 1, 2}


async def test_who_seems_dead_must_seem_so_twice(held: Held) -> None:
    suspect = Suspect(identity().owner, 7)
    held.leases.suspects = [suspect]
    assert await held.once() == EAGER_SECONDS
    assert held.leases.buried == []
    await held.once()
    assert held.leases.buried == [], "at the same time is not twice"
    held.clock.time += DEAD_SECONDS
    await held.once()
    assert held.leases.buried == [[suspect]]
    held.leases.suspects = [Suspect(suspect.owner, 8)]
    held.clock.time += DEAD_SECONDS
    await held.once()
    assert len(held.leases.buried) == 1, "he has beaten since, and begins anew"


async def test_what_could_not_be_given_up_is_taken_again(held: Held) -> None:
    await held.once()
    del held.ownership._owned_lanes[2]
    held.clock.time += 1
    await held.once()
    assert [owned.lease.lane for owned in held.owned_lanes] == [0, 1, 2, 3, 2]
    assert held.owned_lanes[-1].lease.epoch == 2


async def test_until_empty_waits_until_others_have_shown_that_they_live(held: Held) -> None:
    other = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.ownership._until_empty = True
    assert await held.once() == EAGER_SECONDS
    assert len(held.owned_lanes) == 3
    assert not held.ownership._began
    await held.leases.beat(other, LEASE)
    await held.once()
    assert held.ownership._began
    assert Peer(other.owner, 1, 2) in (await held.leases.look(held.identity)).peers


async def test_until_empty_takes_what_a_dead_one_had_when_its_lease_is_over(held: Held) -> None:
    other = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.ownership._until_empty = True
    await held.once()
    held.clock.time += LEASE + 1
    await held.once()
    assert sorted(owned.lease.lane for owned in held.owned_lanes) == [0, 1, 2, 3]
    assert held.ownership._began


async def test_a_lane_that_was_given_up_while_it_looked_is_not_taken_back(held: Held) -> None:
    await held.once()
    leaving = held.owned_lanes[3]
    leaving.leave()
    held.clock.time += 1

    async def it_ends() -> None:
        held.leases.during_look = None
        await held.ownership.ended(leaving)

    held.leases.during_look = it_ends
    await held.leases.beat(identity(), LEASE)
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "nothing was taken again"
    assert list((await held.leases.look(identity())).free) == [3]


async def test_a_database_that_does_not_answer_keeps_no_lane_from_ending(
    held: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held.once()
    monkeypatch.setattr(held.leases, "give_up", lambda _: asyncio.Event().wait())
    await asyncio.wait_for(held.ownership.ended(held.owned_lanes[3]), 30)
    assert "leases: the database did not answer in time" in caplog.text
    assert 3 not in held.ownership._owned_lanes


async def test_one_that_is_lost_and_has_not_ended_keeps_it_from_no_other(held: Held) -> None:
    """Nor is it taken back beneath the feet of the lane that runs."""
    await held.once()
    robber = identity()
    held.leases._until |= {("s", 0): 0.0, ("s", 1): 0.0}
    robbed = await held.leases.take(robber, 2, LEASE)
    held.clock.time += 1
    await held.once()
    first, second, *_ = held.owned_lanes
    assert (first.lost, second.lost) == (True, True)
    await held.ownership.ended(second)
    for lease in robbed:
        await held.leases.give_up(lease)
    held.owned_lanes.clear()
    await held.once()
    assert held.lanes == [1]
    assert list((await held.leases.look(robber)).free) == [0]
    await held.ownership.ended(first)
    await held.once()
    assert held.lanes == [0, 1]


async def test_what_one_that_does_not_come_leaves_free_is_taken(held: Held) -> None:
    """It lives, as far as is known, and is frozen."""
    frozen = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(frozen, LEASE)
    await held.once()
    assert held.lanes == [0, 1]
    assert await held.once() == LOOK_SECONDS
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    await held.once()
    assert not any(owned.leaving for owned in held.owned_lanes), "and kept"
    await held.leases.beat(frozen, LEASE)
    await held.once()
    assert [owned.lease.lane for owned in held.owned_lanes if owned.leaving] == [2, 3], "until it is heard of again"


# -- the session -----------------------------------------------------------------------------------------------------


async def test_a_session_that_can_not_be_opened_keeps_it_from_no_lane(caplog: pytest.LogCaptureFixture) -> None:
    held = Held(lease="1s")
    held.leases.opening.clear()
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    assert "the session by which others see that this relay lives" in caplog.text
    await held.once()
    assert held.leases.opened == 1, "not at once again"
    held.clock.time += 1 / BEATS_PER_LEASE
    held.leases.opening.set()
    held.leases.session = Session()
    await held.once()
    assert held.ownership._liveness.liveness_lock is held.leases.session


async def test_a_session_that_the_server_does_not_know_is_lost(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    first = held.leases.session = Session()
    await held.once()
    held.leases.session = Session()
    held.leases.present = False
    held.clock.time += 1
    await held.once()
    assert first.closed
    assert held.ownership._liveness.liveness_lock is held.leases.session
    assert "taking its 4 lanes anew" in caplog.text
    assert {owned.lease.epoch for owned in held.owned_lanes} == {2}
    assert all(owned.until > held.clock.time for owned in held.owned_lanes)


async def test_nobody_who_lives_holds_the_lock_so_it_stands_in(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    held = Held(lock_id=42)
    session = held.leases.session = Session(holds=False)
    assert await held.once() == LOOK_SECONDS
    assert held.lanes == []
    assert "the lock 42 is held by server process 7 (psql)" in caplog.text
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    assert caplog.text.count("no relay that lives holds the lock 42") == 1
    session.holds = True
    held.clock.time += 1
    await held.once()
    assert "holds the lock 42, and takes all lanes" in caplog.text
    assert not any(owned.leaving for owned in held.owned_lanes)
    await held.ownership.leave()
    assert session.closed
    assert "released the lock 42" in caplog.text


async def test_until_empty_leaves_the_lanes_to_the_one_that_holds_the_lock() -> None:
    held = Held(lock_id=42)
    held.leases.session = Session(holds=False)
    held.ownership._until_empty = True
    await held.once()
    assert held.lanes == []
    assert not held.ownership._began
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "there is none that lives"
    assert held.ownership._began
