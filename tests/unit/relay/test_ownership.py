"""How a relay takes, keeps and releases lanes, with a clock of its own and leases whose answers the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
import pytest

from postroad.config import RelaySettings
from postroad.listeners import Listeners
from postroad.relay.heartbeats import HEARTBEATS_PER_LEASE, LATE_FACTOR, MARGIN
from postroad.relay.owned_lane import OwnedLane
from postroad.relay.ownership import LaneOwnership
from postroad.relay.plan import EAGER_SECONDS, EVICT_SECONDS, LEFT_SECONDS, WATCH_SECONDS
from postroad.stores.leases import LivenessLock, Peer, RelayIdentity, SinkSnapshot, Suspect
from postroad.stores.memory import MemoryStore
from postroad.stores.memory_leases import MemoryLeases
from tests.clocks import FastClock
from tests.lanes import HERE, identity

LEASE = 15.0


class Session:
    """A session that holds its lock, or one whose lock another session holds."""

    def __init__(self, *, held: bool = True) -> None:
        self.held = held
        self.lost = False
        self.closed = False

    async def acquire(self) -> bool:
        return self.held

    async def holder(self) -> str | None:
        return "server process 7 (psql)"

    def close(self) -> None:
        self.closed = True


class Slow(MemoryLeases):
    """Leases of a database that takes its time to answer."""

    def __init__(self, store: MemoryStore, clock: FastClock) -> None:
        super().__init__(store._lanes, clock.now, lambda: 0)
        self.flying = clock
        self.seconds = 0.0
        self.sent: list[float] = []
        self.suspects: list[Suspect] = []
        self.evicted: list[list[Suspect]] = []
        self.during_inspect: Callable[[], Awaitable[None]] | None = None
        self.session: Session | None = None
        self.opening = asyncio.Event()
        """Until it is set, a session that is being opened is not."""
        self.opening.set()
        self.opened = 0
        self.lock_held = True

    async def heartbeat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        self.sent.append(self.flying.time)
        snapshot = await super().heartbeat(identity, seconds, liveness_lock)
        self.flying.time += self.seconds
        return snapshot

    async def inspect(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        snapshot = await super().inspect(identity, liveness_lock)
        if self.during_inspect is not None:
            await self.during_inspect()
        return snapshot

    async def open_session(
        self, identity: RelayIdentity, lock: int | None, on_change: Callable[[], None]
    ) -> LivenessLock | None:
        self.opened += 1
        await self.opening.wait()
        self.lock_held = True
        return self.session

    def _snapshot(self, identity: RelayIdentity, renewed: Collection[int]) -> SinkSnapshot:
        snapshot = super()._snapshot(identity, renewed)
        return msgspec.structs.replace(snapshot, suspects=list(self.suspects), lock_held=self.lock_held)

    async def evict(self, identity: RelayIdentity, suspects: Collection[Suspect]) -> Collection[UUID]:
        self.evicted.append(list(suspects))
        return []


class Held:
    """A LaneOwnership that goes round by round."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FastClock()
        self.leases = Slow(MemoryStore(), self.clock)
        self.identity = identity()
        defaults: dict[str, Any] = {"lanes": 4, "lease": "15s"}
        chosen = RelaySettings(**(defaults | settings))
        self.ownership = LaneOwnership(self.leases, self.identity, chosen, Listeners(), clock=self.clock)
        self.owned_lanes: list[OwnedLane] = []
        self.stopped: list[int] = []

    async def once(self) -> float:
        await self.leases.create("s", HERE, lanes=4, start="oldest")
        return await self.ownership._round(self.start)

    def start(self, owned: OwnedLane) -> Callable[[], None]:
        self.owned_lanes.append(owned)
        return lambda: self.stopped.append(owned.lease.lane)

    @property
    def lanes(self) -> list[int]:
        return sorted(owned.lease.lane for owned in self.owned_lanes)


async def test_a_lane_may_end_before_its_start_returns() -> None:
    """As it does with an eager task factory, when the relay was stopped meanwhile."""
    held = Held()

    def start(owned: OwnedLane) -> Callable[[], None]:
        with suppress(StopIteration):
            held.ownership.release(owned).send(None)
        return lambda: held.stopped.append(owned.lease.lane)

    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.ownership._round(start)
    assert held.ownership._lanes == {}
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "they were released, and are taken again"


@pytest.fixture
async def held() -> Held:
    return Held()


async def test_a_lease_counts_from_when_its_renewal_was_sent(held: Held) -> None:
    await held.once()
    held.leases.seconds = 4.0
    held.clock.time += LEASE / HEARTBEATS_PER_LEASE
    await held.once()
    assert held.clock.time == held.leases.sent[-1] + 4.0
    assert {owned.valid_until for owned in held.owned_lanes} == {held.leases.sent[-1] + LEASE * (1 - MARGIN)}


async def test_a_relay_alone_leaves_its_heartbeats_to_its_tick(held: Held) -> None:
    """When the tick is a little late, it sends one by itself."""
    await held.once()
    assert await held.once() == LEASE / HEARTBEATS_PER_LEASE * LATE_FACTOR
    assert len(held.owned_lanes) == 4
    assert len(held.leases.sent) == 1


async def test_a_relay_with_less_than_its_share_looks_often(held: Held) -> None:
    other = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.heartbeat(other, LEASE)
    await held.leases.take(other, 4, LEASE)
    assert await held.once() == EAGER_SECONDS
    assert held.owned_lanes == []


async def test_lanes_beyond_the_share_are_released_after_the_page(held: Held) -> None:
    await held.once()
    await held.leases.heartbeat(identity(), LEASE)
    held.clock.time += 1
    await held.once()
    assert held.stopped == [2, 3]
    assert (await held.leases.inspect(held.identity)).mine.keys() == {0, 1, 2, 3}, (
        "not before the page under way has ended"
    )
    await held.ownership.release(held.owned_lanes[3])
    assert (await held.leases.inspect(held.identity)).mine.keys() == {0, 1, 2}


async def test_a_suspect_must_miss_two_probes(held: Held) -> None:
    suspect = Suspect(identity().owner, 7)
    held.leases.suspects = [suspect]
    assert await held.once() == EAGER_SECONDS
    assert held.leases.evicted == []
    await held.once()
    assert held.leases.evicted == [], "at the same time is not twice"
    held.clock.time += EVICT_SECONDS
    await held.once()
    assert held.leases.evicted == [[suspect]]
    held.leases.suspects = [Suspect(suspect.owner, 8)]
    held.clock.time += EVICT_SECONDS
    await held.once()
    assert len(held.leases.evicted) == 1, "it has sent a heartbeat since: the two probes begin anew"


async def test_a_lane_that_could_not_be_released_is_reclaimed(held: Held) -> None:
    await held.once()
    del held.ownership._lanes[2]
    held.clock.time += 1
    await held.once()
    assert [owned.lease.lane for owned in held.owned_lanes] == [0, 1, 2, 3, 2]
    assert held.owned_lanes[-1].lease.epoch == 2


async def test_until_empty_waits_until_others_have_shown_that_they_live(held: Held) -> None:
    other = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.heartbeat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.ownership._until_empty = True
    assert await held.once() == EAGER_SECONDS
    assert len(held.owned_lanes) == 3
    assert not held.ownership._started
    await held.leases.heartbeat(other, LEASE)
    await held.once()
    assert held.ownership._started
    assert Peer(other.owner, 1, 2) in (await held.leases.inspect(held.identity)).peers


async def test_until_empty_takes_what_a_dead_one_had_when_its_lease_is_over(held: Held) -> None:
    other = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.heartbeat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.ownership._until_empty = True
    await held.once()
    held.clock.time += LEASE + 1
    await held.once()
    assert sorted(owned.lease.lane for owned in held.owned_lanes) == [0, 1, 2, 3]
    assert held.ownership._started


async def test_a_lane_that_was_released_while_it_asked_is_not_taken_back(held: Held) -> None:
    await held.once()
    leaving = held.owned_lanes[3]
    leaving.releasing = True
    held.clock.time += 1

    async def it_ends() -> None:
        held.leases.during_inspect = None
        await held.ownership.release(leaving)

    held.leases.during_inspect = it_ends
    await held.leases.heartbeat(identity(), LEASE)
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "nothing was taken again"
    assert list((await held.leases.inspect(identity())).free) == [3]


async def test_a_database_that_does_not_answer_keeps_no_lane_from_ending(
    held: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held.once()
    monkeypatch.setattr(held.leases, "release", lambda _: asyncio.Event().wait())
    await asyncio.wait_for(held.ownership.release(held.owned_lanes[3]), 60)
    assert "database unavailable: the database did not answer in time" in caplog.text
    assert 3 not in held.ownership._lanes


async def test_a_lost_lane_that_has_not_ended_does_not_keep_it_from_taking_others(held: Held) -> None:
    """Nor is it taken back while the lane still runs."""
    await held.once()
    newcomer = identity()
    held.leases._until |= {("s", 0): 0.0, ("s", 1): 0.0}
    taken_over = await held.leases.take(newcomer, 2, LEASE)
    held.clock.time += 1
    await held.once()
    first, second, *_ = held.owned_lanes
    assert (first.lost, second.lost) == (True, True)
    await held.ownership.release(second)
    for lease in taken_over:
        await held.leases.release(lease)
    held.owned_lanes.clear()
    await held.once()
    assert held.lanes == [1]
    assert list((await held.leases.inspect(newcomer)).free) == [0]
    await held.ownership.release(first)
    await held.once()
    assert held.lanes == [0, 1]


async def test_lanes_that_a_frozen_relay_leaves_free_are_taken(held: Held) -> None:
    """Its heartbeat has not expired."""
    frozen = identity()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.heartbeat(frozen, LEASE)
    await held.once()
    assert held.lanes == [0, 1]
    assert await held.once() == WATCH_SECONDS
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    await held.once()
    assert not any(owned.releasing for owned in held.owned_lanes), "and kept"
    await held.leases.heartbeat(frozen, LEASE)
    await held.once()
    assert [owned.lease.lane for owned in held.owned_lanes if owned.releasing] == [2, 3], "until its next heartbeat"


# -- the session -----------------------------------------------------------------------------------------------------


async def test_a_session_that_can_not_be_opened_keeps_it_from_no_lane(caplog: pytest.LogCaptureFixture) -> None:
    held = Held(lease="1s")
    held.leases.opening.clear()
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    assert "liveness session unavailable: it did not answer within 0.25 s (at `direct`, if that is set)" in caplog.text
    await held.once()
    assert held.leases.opened == 1, "not at once again"
    held.clock.time += 1 / HEARTBEATS_PER_LEASE
    held.leases.opening.set()
    held.leases.session = Session()
    await held.once()
    assert held.ownership._liveness.lock is held.leases.session


async def test_a_session_that_the_server_does_not_know_is_lost(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    first = held.leases.session = Session()
    await held.once()
    held.leases.session = Session()
    held.leases.lock_held = False
    held.clock.time += 1
    await held.once()
    assert first.closed
    assert held.ownership._liveness.lock is held.leases.session
    assert "liveness session lost; reclaiming 4 lanes" in caplog.text
    assert {owned.latest.epoch for owned in held.owned_lanes} == {2}
    assert all(owned.valid_until > held.clock.time for owned in held.owned_lanes)


async def test_no_live_relay_holds_the_lock_so_it_acts_without_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    held = Held(lock_id=42)
    session = held.leases.session = Session(held=False)
    assert await held.once() == WATCH_SECONDS
    assert held.lanes == []
    assert "the lock 42 is held by server process 7 (psql)" in caplog.text
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    assert caplog.text.count("no live relay holds the lock 42") == 1
    session.held = True
    held.clock.time += 1
    await held.once()
    assert "acquired the lock 42; taking all lanes" in caplog.text
    assert not any(owned.releasing for owned in held.owned_lanes)
    await held.ownership.deregister()
    assert session.closed
    assert "released the lock 42" in caplog.text


async def test_until_empty_leaves_the_lanes_to_the_one_that_holds_the_lock() -> None:
    held = Held(lock_id=42)
    held.leases.session = Session(held=False)
    held.ownership._until_empty = True
    await held.once()
    assert held.lanes == []
    assert not held.ownership._started
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "there is none that lives"
    assert held.ownership._started
