"""How a relay holds its lanes, with a clock of its own and leases that answer when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

import msgspec
import pytest

from postroad.config import RelaySettings
from postroad.relay.leases import (
    A_LITTLE_LATER,
    BEATS_PER_LEASE,
    DEAD_SECONDS,
    EAGER_SECONDS,
    LOOK_SECONDS,
    MARGIN,
    Holdings,
)
from postroad.relay.tenure import LEFT_SECONDS, Tenure
from postroad.stores.leases import Peer, Presence, Runner, Standing, Suspect
from postroad.stores.memory import MemoryStore
from postroad.stores.memory_leases import MemoryLeases
from tests.clocks import Flying
from tests.lanes import HERE, runner

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

    async def beat(self, runner: Runner, seconds: float, presence: Presence | None = None) -> Standing:
        self.sent.append(self.flying.time)
        standing = await super().beat(runner, seconds, presence)
        self.flying.time += self.seconds
        return standing

    async def look(self, runner: Runner, presence: Presence | None = None) -> Standing:
        standing = await super().look(runner, presence)
        if self.during_look is not None:
            await self.during_look()
        return standing

    async def attend(self, runner: Runner, lock: int | None, stirred: Callable[[], None]) -> Presence | None:
        self.opened += 1
        await self.opening.wait()
        self.present = True
        return self.session

    def _standing(self, runner: Runner, renewed: Collection[int]) -> Standing:
        standing = super()._standing(runner, renewed)
        return msgspec.structs.replace(standing, suspects=list(self.suspects), present=self.present)

    async def bury(
        self, runner: Runner, suspects: Collection[Suspect], presence: Presence | None = None
    ) -> Collection[UUID]:
        self.buried.append(list(suspects))
        return []


class Held:
    """Holdings that go round by round."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Flying()
        self.leases = Slow(MemoryStore(), self.clock)
        self.runner = runner()
        defaults: dict[str, Any] = {"lanes": 4, "lease": "15s"}
        chosen = RelaySettings(**(defaults | settings))
        self.holdings = Holdings(self.leases, self.runner, chosen, clock=self.clock)
        self.tenures: list[Tenure] = []

    async def once(self) -> float:
        await self.leases.create("s", HERE, lanes=4, start="oldest")
        return await self.holdings._once(self.tenures.append)

    @property
    def lanes(self) -> list[int]:
        return sorted(tenure.lease.lane for tenure in self.tenures)


@pytest.fixture
async def held() -> Held:
    return Held()


async def test_a_lease_counts_from_when_its_renewal_was_sent(held: Held) -> None:
    await held.once()
    held.leases.seconds = 4.0
    held.clock.time += LEASE / BEATS_PER_LEASE
    await held.once()
    assert held.clock.time == held.leases.sent[-1] + 4.0
    assert {tenure.until for tenure in held.tenures} == {held.leases.sent[-1] + LEASE * (1 - MARGIN)}


async def test_a_relay_alone_leaves_it_to_its_tick_to_beat_three_times_in_a_lease(held: Held) -> None:
    """And when that is a little late, it beats by itself."""
    await held.once()
    assert await held.once() == LEASE / BEATS_PER_LEASE * A_LITTLE_LATER
    assert len(held.tenures) == 4
    assert len(held.leases.sent) == 1


async def test_who_has_less_than_its_share_looks_often(held: Held) -> None:
    other = runner()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 4, LEASE)
    assert await held.once() == EAGER_SECONDS
    assert held.tenures == []


async def test_what_is_too_much_is_given_up_after_the_page(held: Held) -> None:
    await held.once()
    stopped: list[int] = []
    for tenure in held.tenures:
        tenure.stop = lambda number=tenure.lease.lane: stopped.append(number)  # type: ignore[misc]
    await held.leases.beat(runner(), LEASE)
    held.clock.time += 1
    await held.once()
    assert stopped == [2, 3]
    assert (await held.leases.look(held.runner)).mine.keys() == {0, 1, 2, 3}, "not before the page under way has ended"
    await held.holdings.ended(held.tenures[3])
    assert (await held.leases.look(held.runner)).mine.keys() == {0, 1, 2}


async def test_who_seems_dead_must_seem_so_twice(held: Held) -> None:
    suspect = Suspect(runner().owner, 7)
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
    del held.holdings._tenures[2]
    held.clock.time += 1
    await held.once()
    assert [tenure.lease.lane for tenure in held.tenures] == [0, 1, 2, 3, 2]
    assert held.tenures[-1].lease.epoch == 2


async def test_until_empty_waits_until_others_have_shown_that_they_live(held: Held) -> None:
    other = runner()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.holdings._until_empty = True
    assert await held.once() == EAGER_SECONDS
    assert len(held.tenures) == 3
    assert not held.holdings._began
    await held.leases.beat(other, LEASE)
    await held.once()
    assert held.holdings._began
    assert Peer(other.owner, 1, 2) in (await held.leases.look(held.runner)).peers


async def test_until_empty_takes_what_a_dead_one_had_when_its_lease_is_over(held: Held) -> None:
    other = runner()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.holdings._until_empty = True
    await held.once()
    held.clock.time += LEASE + 1
    await held.once()
    assert sorted(tenure.lease.lane for tenure in held.tenures) == [0, 1, 2, 3]
    assert held.holdings._began


async def test_a_lane_that_was_given_up_while_it_looked_is_not_taken_back(held: Held) -> None:
    await held.once()
    leaving = held.tenures[3]
    leaving.leave()
    held.clock.time += 1

    async def it_ends() -> None:
        held.leases.during_look = None
        await held.holdings.ended(leaving)

    held.leases.during_look = it_ends
    await held.leases.beat(runner(), LEASE)
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "nothing was taken again"
    assert list((await held.leases.look(runner())).free) == [3]


async def test_a_database_that_does_not_answer_keeps_no_lane_from_ending(
    held: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held.once()
    monkeypatch.setattr(held.leases, "give_up", lambda _: asyncio.Event().wait())
    await asyncio.wait_for(held.holdings.ended(held.tenures[3]), 30)
    assert "leases: the database did not answer in time" in caplog.text
    assert 3 not in held.holdings._tenures


async def test_one_that_is_lost_and_has_not_ended_keeps_it_from_no_other(held: Held) -> None:
    """Nor is it taken back beneath the feet of the lane that runs."""
    await held.once()
    robber = runner()
    held.leases._until |= {("s", 0): 0.0, ("s", 1): 0.0}
    robbed = await held.leases.take(robber, 2, LEASE)
    held.clock.time += 1
    await held.once()
    first, second, *_ = held.tenures
    assert (first.lost, second.lost) == (True, True)
    await held.holdings.ended(second)
    for lease in robbed:
        await held.leases.give_up(lease)
    held.tenures.clear()
    await held.once()
    assert held.lanes == [1]
    assert list((await held.leases.look(robber)).free) == [0]
    await held.holdings.ended(first)
    await held.once()
    assert held.lanes == [0, 1]


async def test_what_one_that_does_not_come_leaves_free_is_taken(held: Held) -> None:
    """It lives, as far as is known, and is frozen."""
    frozen = runner()
    await held.leases.create("s", HERE, lanes=4, start="oldest")
    await held.leases.beat(frozen, LEASE)
    await held.once()
    assert held.lanes == [0, 1]
    assert await held.once() == LOOK_SECONDS
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3]
    await held.once()
    assert not any(tenure.leaving for tenure in held.tenures), "and kept"
    await held.leases.beat(frozen, LEASE)
    await held.once()
    assert [tenure.lease.lane for tenure in held.tenures if tenure.leaving] == [2, 3], "until it is heard of again"


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
    assert held.holdings._attendance.presence is held.leases.session


async def test_a_session_that_the_server_does_not_know_is_lost(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    first = held.leases.session = Session()
    await held.once()
    held.leases.session = Session()
    held.leases.present = False
    held.clock.time += 1
    await held.once()
    assert first.closed
    assert held.holdings._attendance.presence is held.leases.session
    assert "taking its 4 lanes anew" in caplog.text
    assert {tenure.lease.epoch for tenure in held.tenures} == {2}
    assert all(tenure.until > held.clock.time for tenure in held.tenures)


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
    assert not any(tenure.leaving for tenure in held.tenures)
    await held.holdings.leave()
    assert session.closed
    assert "released the lock 42" in caplog.text


async def test_until_empty_leaves_the_lanes_to_the_one_that_holds_the_lock() -> None:
    held = Held(lock_id=42)
    held.leases.session = Session(holds=False)
    held.holdings._until_empty = True
    await held.once()
    assert held.lanes == []
    assert not held.holdings._began
    held.clock.time += LEFT_SECONDS
    await held.once()
    assert held.lanes == [0, 1, 2, 3], "there is none that lives"
    assert held.holdings._began
