"""How a relay holds its lanes, with a clock of its own and leases that answer when they are told to."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import msgspec
import pytest

from postroad.config import RelaySettings
from postroad.relay.leases import A_LITTLE_LATER, BEATS_PER_LEASE, EAGER_SECONDS, MARGIN, Holdings
from postroad.relay.tenure import Tenure
from postroad.stores.leases import Peer, Presence, Runner, Standing, Suspect
from postroad.stores.memory import MemoryStore
from postroad.stores.memory_leases import MemoryLeases
from tests.clocks import Flying
from tests.lanes import runner

LEASE = 15.0


class Slow(MemoryLeases):
    """Leases of a database that takes its time to answer."""

    def __init__(self, store: MemoryStore, clock: Flying) -> None:
        super().__init__(store._lanes, clock.now, lambda: 0)
        self.flying = clock
        self.seconds = 0.0
        self.sent: list[float] = []
        self.suspects: list[Suspect] = []
        self.buried: list[list[Suspect]] = []

    async def beat(self, runner: Runner, seconds: float, presence: Presence | None = None) -> Standing:
        self.sent.append(self.flying.time)
        standing = await super().beat(runner, seconds, presence)
        self.flying.time += self.seconds
        return standing

    def _standing(self, runner: Runner, renewed: Collection[int]) -> Standing:
        return msgspec.structs.replace(super()._standing(runner, renewed), suspects=list(self.suspects))

    async def bury(
        self, runner: Runner, suspects: Collection[Suspect], presence: Presence | None = None
    ) -> Collection[UUID]:
        self.buried.append(list(suspects))
        return []


class Held:
    """Holdings that go round by round."""

    def __init__(self) -> None:
        self.clock = Flying()
        self.leases = Slow(MemoryStore(), self.clock)
        self.runner = runner()
        settings = RelaySettings(lanes=4, lease="15s")
        self.holdings = Holdings(self.leases, self.runner, settings, clock=self.clock)
        self.tenures: list[Tenure] = []

    async def once(self) -> float:
        return await self.holdings._once(self.tenures.append)


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
    await held.leases.create("s", lanes=4, start="oldest")
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
    held.clock.time += EAGER_SECONDS
    await held.once()
    assert held.leases.buried == [[suspect]]
    held.leases.suspects = [Suspect(suspect.owner, 8)]
    held.clock.time += EAGER_SECONDS
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
    await held.leases.create("s", lanes=4, start="oldest")
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
    await held.leases.create("s", lanes=4, start="oldest")
    await held.leases.beat(other, LEASE)
    await held.leases.take(other, 1, LEASE)
    held.holdings._until_empty = True
    await held.once()
    held.clock.time += LEASE + 1
    await held.once()
    assert sorted(tenure.lease.lane for tenure in held.tenures) == [0, 1, 2, 3]
    assert held.holdings._began
