"""No wake-up is lost, in whatever order writers and a lane that falls asleep take their steps.

The lane is the real `IdleWait`; the database is a model in which each step of a transaction is a step of its own. All
orders of steps are tried, as a search through states. Each rule of the protocol is then taken away, and the search must
find an order in which a committed message waits for a lane that sleeps.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from itertools import combinations_with_replacement
from typing import Any
from uuid import UUID

import pytest

from postroad.config import RelaySettings
from postroad.relay import idle, wake_signal
from postroad.relay.clock import Clock
from postroad.relay.idle import NO_LIMIT, IdleWait, still_unaware
from postroad.relay.owned_lane import OwnedLane
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from postroad.stores.naps import Writer

LEASE = Lease("s", 0, 0, 1023, UUID(int=1), 1, 1, Cursor(0))
SETTINGS = RelaySettings(linger="0s")
LANE = -1
POLLS = 1
"""How often polling may be faster than all other steps; more would be the same again."""


class Step:
    """A point at which others may go first."""

    def __init__(self, name: str, may_go: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        self.may_go = may_go

    def __await__(self) -> Generator[Step, None, None]:
        yield self


class World:
    """The database, the lane's own clock, and what is under way between them."""

    def __init__(self) -> None:
        self.napping = False
        self.marked = False
        self.marking: int | None = None
        """Who has the lock without which no mark is set or wiped: a writer's number, or -1 for the lane."""
        self.writing: frozenset[Writer] = frozenset()
        self.committed = self.read = 0
        self.notifications = 0
        self.polls = POLLS
        self.others_may_go: Callable[[], bool] = lambda: False

    # What `IdleWait` asks of a store and of a clock

    async def begin(self, lease: Lease, *, channel: str, seconds: float) -> int | None:
        await Step("mark the nap")
        if self.marking is not None:
            return None
        self.marking = LANE
        self.marked = True
        await Step("commit the nap")
        self.napping = True
        self.marking = None
        return 1

    async def writers(self) -> Collection[Writer]:
        await Step("who writes?")
        return self.writing

    def now(self) -> float:
        return 0.0

    async def wait(self, event: Any, seconds: float) -> None:
        await Step("sleep" if seconds == NO_LIMIT else "poll", lambda: event.is_set() or self._may_poll(seconds))
        if not event.is_set() and self.others_may_go():
            self.polls -= 1

    def _may_poll(self, seconds: float) -> bool:
        return seconds != NO_LIMIT and (self.polls > 0 or not self.others_may_go())


class Model:
    """What a `IdleWait` needs of its relay."""

    def __init__(self, world: World) -> None:
        self.settings = SETTINGS
        self.nap_seconds = 3.0
        self.clock: Clock = world
        self.listen_losses = 0
        self.listen_works = True
        self.naps: Any = world
        self._world = world

    def end_nap(self, nap: int) -> None:
        self._world.napping = False


async def lane(world: World, rest: IdleWait) -> None:
    """The hook as a lane has it: look; if there is something, say so; if there is nothing, wait."""
    while True:
        if await something_to_do(world):
            rest.worked = True
            if rest.nap is not None:
                rest.end_nap()
        else:
            await rest.wait()


async def something_to_do(world: World) -> bool:
    await Step("look")
    seen, world.read = world.committed - world.read, world.committed
    await Step("receive what was there")
    return bool(seen)


async def delivery(world: World, rest: IdleWait) -> None:
    """Notifications arrive some time after the commit."""
    while True:
        await Step("deliver", lambda: world.notifications > 0)
        world.notifications -= 1
        rest.on_notify()


# -- transactions ----------------------------------------------------------------------------------------------------

Transaction = Callable[[World, int], Awaitable[None]]


async def looked(world: World, number: int, *, snapshot: bool | None = None, alone: bool = True) -> bool | None:
    """The trigger looks at the mark, then at naps; whoever finds a mark and no nap wipes it. Whether it notifies; None
    when it has found no mark, and looks again for the next row.
    """
    await Step("the trigger looks for a mark")
    if not world.marked:
        return None
    await Step("the trigger looks for naps")
    if world.napping if snapshot is None else snapshot:
        return True
    await Step("the trigger asks to wipe")
    if alone and world.marking is not None:
        return False
    if alone:
        world.marking = number
        await Step("the trigger looks for naps again")
        still = world.napping if snapshot is None else snapshot
    else:
        still = False
    await Step("wipe")
    world.marked = still
    await Step("let go")
    if alone:
        world.marking = None
    return False


async def read_committed(world: World, number: int) -> None:
    await locked(world, number)
    await committed(world, number, notifies=bool(await looked(world, number)))


async def rolled_back(world: World, number: int, *, alone: bool = True) -> None:
    """It may have wiped a mark, and leaves nothing that would make the lane look."""
    await locked(world, number)
    await looked(world, number, alone=alone)
    await Step("roll back")
    world.writing -= {Writer(str(number), prepared=False)}


async def wipes_without_the_lock(world: World, number: int) -> None:
    await rolled_back(world, number, alone=False)


async def wipes_by_an_old_snapshot(world: World, number: int) -> None:
    await Step("take the snapshot")
    seen = world.napping
    await locked(world, number)
    await committed(world, number, notifies=bool(await looked(world, number, snapshot=seen)))


async def repeatable_read(world: World, number: int, *, notifies_always: bool = True) -> None:
    await Step("take the snapshot")
    seen = world.napping
    await locked(world, number)
    await Step("the trigger looks for a mark")
    await committed(world, number, notifies=world.marked and (notifies_always or seen))


async def two_phase(world: World, number: int) -> None:
    """One that saw no nap can be prepared; one that notified can't, as PostgreSQL says."""
    await locked(world, number)
    if await looked(world, number):
        await Step("roll back")
        world.writing -= {Writer(str(number), prepared=False)}
        return
    await Step("prepare")
    world.writing = world.writing - {Writer(str(number), prepared=False)} | {Writer(f"-{number}", prepared=True)}
    await Step("commit prepared")
    world.committed += 1
    await Step("unlock")
    world.writing -= {Writer(f"-{number}", prepared=True)}


async def two_statements(world: World, number: int) -> None:
    """Who has found a mark looks no more, whatever it has found there."""
    await locked(world, number)
    notifies = await looked(world, number)
    if notifies is None:
        notifies = await looked(world, number)
    await committed(world, number, notifies=bool(notifies))


async def unlocked_too_early(world: World, number: int) -> None:
    """As no PostgreSQL does: the lock is gone before the commit can be seen."""
    await locked(world, number)
    notifies = await looked(world, number)
    await Step("unlock")
    world.writing -= {Writer(str(number), prepared=False)}
    await committed(world, number, notifies=bool(notifies))


async def locked(world: World, number: int) -> None:
    await Step("lock the log")
    world.writing |= {Writer(str(number), prepared=False)}


async def committed(world: World, number: int, *, notifies: bool) -> None:
    await Step("commit")
    world.committed += 1
    world.notifications += notifies
    await Step("unlock")
    world.writing -= {Writer(str(number), prepared=False)}


# -- the search ------------------------------------------------------------------------------------------------------


class Run:
    """One order of steps, from the beginning; at each step a choice says who goes."""

    def __init__(self, transactions: Collection[Transaction], resting: type[IdleWait]) -> None:
        self.world = World()
        self.rest = resting(Model(self.world), OwnedLane(LEASE, float("inf"), self.world))
        self.world.others_may_go = lambda: any(step is not None and step.may_go() for step in self.at[1:])
        actors = [lane(self.world, self.rest), delivery(self.world, self.rest)]
        actors += [transaction(self.world, number) for number, transaction in enumerate(transactions)]  # type: ignore[misc]
        self.actors: list[Any] = actors
        self.at: list[Step | None] = [actor.send(None) for actor in self.actors]
        self.logged: list[str] = []

    def may_go(self) -> list[int]:
        return [number for number, step in enumerate(self.at) if step is not None and step.may_go()]

    def go(self, number: int) -> None:
        step = self.at[number]
        assert step is not None
        self.logged.append(f"{'lane' if number == 0 else number}: {step.name}")
        try:
            self.at[number] = self.actors[number].send(None)
        except StopIteration:
            self.at[number] = None

    @property
    def lost(self) -> bool:
        return not self.may_go() and self.world.read < self.world.committed

    def state(self) -> tuple[object, ...]:
        rest, world = self.rest, self.world
        return (
            *((step and step.name, known_to(actor)) for step, actor in zip(self.at, self.actors, strict=True)),
            (
                rest.nap,
                frozenset(rest._unaware),
                bool(rest._unaware) and frozenset(rest._writers),
                rest._signal._signal.is_set(),
                rest._signal._notified,
                rest._signal._paid_until,
            ),
            (
                world.napping,
                world.marked,
                world.marking,
                world.writing,
                world.committed,
                world.read,
                world.notifications,
                world.polls,
            ),
        )

    def close(self) -> None:
        for actor in self.actors:
            actor.close()


def known_to(actor: Any) -> tuple[object, ...]:
    """What a transaction or a lane remembers at its step: its own and its callers' variables."""
    known: list[object] = []
    while getattr(actor, "cr_frame", None) is not None:
        known += [value for value in actor.cr_frame.f_locals.values() if isinstance(value, bool | int | frozenset)]
        actor = actor.cr_await
    return tuple(known)


def orders(transactions: Collection[Transaction], resting: type[IdleWait]) -> Iterator[Run]:
    """Every order of steps, up to where it comes to a state that another order came to before."""
    seen: set[tuple[object, ...]] = set()
    unexplored: list[tuple[int, ...]] = [()]
    while unexplored:
        choices = unexplored.pop()
        run = Run(transactions, resting)
        for choice in choices:
            run.go(choice)
        while run.state() not in seen:
            seen.add(run.state())
            if not (able := run.may_go()):
                yield run
                break
            unexplored += [(*choices, other) for other in able[1:]]
            choices = (*choices, able[0])
            run.go(able[0])
        run.close()


def lost(*transactions: Transaction, resting: type[IdleWait] = IdleWait) -> list[str] | None:
    """An order of steps that leaves a committed message to a lane that sleeps, if there is one."""
    return next((run.logged for run in orders(transactions, resting) if run.lost), None)


KINDS: list[Transaction] = [read_committed, rolled_back, repeatable_read, two_phase, two_statements]


PAIRS: list[tuple[Transaction, Transaction]] = [
    (read_committed, read_committed),
    (rolled_back, read_committed),
    (repeatable_read, two_phase),
]


@pytest.mark.parametrize("transaction", KINDS)
def test_no_wake_up_is_lost(transaction: Transaction) -> None:
    assert lost(transaction) is None


@pytest.mark.parametrize(
    ("first", "second"), list(combinations_with_replacement(KINDS, 2)) if os.environ.get("LONG_TESTS") else PAIRS
)
def test_no_wake_up_is_lost_by_two(first: Transaction, second: Transaction) -> None:
    assert lost(first, second) is None


@pytest.mark.parametrize("transaction", [read_committed, repeatable_read])
def test_no_wake_up_is_lost_where_every_other_one_has_to_wait(
    transaction: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_signal, "WAKES_AT_ONCE", 0)
    assert lost(transaction) is None
    assert lost(transaction, transaction) is None


def test_the_search_comes_to_an_end_with_everything_read() -> None:
    ended = list(orders([repeatable_read], IdleWait))
    assert ended
    assert {(run.world.committed, run.world.read) for run in ended} == {(1, 1)}


# -- each rule, taken away -------------------------------------------------------------------------------------------


class AsksBeforeTheNap(IdleWait):
    async def _begin_nap(self, due_in: float | None) -> None:
        self._unaware = self._writers = await self._state.naps.writers()
        self.nap = await self._state.naps.begin(self.lease, channel="c", seconds=1)


class AsksNobody(IdleWait):
    async def _begin_nap(self, due_in: float | None) -> None:
        self.nap = await self._state.naps.begin(self.lease, channel="c", seconds=1)


class DoesNotLookOnceMore(IdleWait):
    async def wait(self, due_in: float | None = None) -> None:
        await super().wait(due_in)
        if self.nap is not None and not self._unaware:
            await self._sleep(None)


class ForgetsWhatItHeard(IdleWait):
    async def _sleep(self, due_in: float | None) -> None:
        self._signal._signal.clear()
        self._signal._notified = False
        await super()._sleep(due_in)


class WaitsForTheFirstToEndOnly(IdleWait):
    async def wait(self, due_in: float | None = None) -> None:
        before = self._unaware
        await super().wait(due_in)
        if len(self._unaware) < len(before):
            self._unaware = ()


async def silent_repeatable_read(world: World, number: int) -> None:
    await repeatable_read(world, number, notifies_always=False)


@pytest.mark.parametrize(
    "resting", [AsksBeforeTheNap, AsksNobody, DoesNotLookOnceMore, ForgetsWhatItHeard, WaitsForTheFirstToEndOnly]
)
def test_without_a_rule_of_the_lane_wake_ups_are_lost(resting: type[IdleWait]) -> None:
    assert lost(read_committed, read_committed, resting=resting)


@pytest.mark.parametrize("transaction", [silent_repeatable_read, unlocked_too_early])
def test_without_a_rule_of_the_database_wake_ups_are_lost(transaction: Transaction) -> None:
    assert lost(transaction)


@pytest.mark.parametrize("careless", [wipes_without_the_lock, wipes_by_an_old_snapshot])
def test_without_a_rule_for_wiping_marks_wake_ups_are_lost(careless: Transaction) -> None:
    assert lost(careless, read_committed)


def test_without_knowing_that_prepared_transactions_change_their_names_wake_ups_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle, "still_unaware", lambda unaware, before, now: set(unaware) & set(now))
    assert lost(two_phase)


def test_a_prepared_transaction_that_was_there_before_is_not_new() -> None:
    one, old, new = Writer("1", prepared=False), Writer("-7", prepared=True), Writer("-8", prepared=True)
    assert still_unaware({one}, {one, old}, {one, old, new}) == {one}
    assert still_unaware({one}, {one, old}, {old}) == set()
    assert still_unaware({one}, {one, old}, {old, new}) == {new}
