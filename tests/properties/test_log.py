"""The log under anything that transactions can do: every committed row is dealt with once, and in order per key.

A machine drives real connections to a real PostgreSQL: writers that begin, add, set and roll back savepoints, prepare,
commit and roll back in any order, in any isolation level; a relay whose lanes read pages of any size, together in a
convoy or alone, deal with any beginning of them, and settle, while they read ahead or not; lanes that lag, are lost,
leave and come back; sweeps and joint settles that fail; relays that are away while others write, or crash between
reading and settling; and retention, and restores from another cluster, in between. With a filter, that holds for every
row that the sink takes, and no other row is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from postroad import Message, StoreUnavailable
from postroad.errors import LaneChanged
from postroad.message import UNSET
from postroad.relay.convoy import Convoy
from postroad.sink_filter import EVERYTHING, SinkFilter
from postroad.stores.base import Lease, ManyLanes, Settlement
from postroad.stores.cursor import Cursor, Page, PageLimit, Sweep
from postroad.stores.dialects.base import POSITIONS
from postroad.stores.postgresql import PostgreSQLStore
from tests.lanes import take_lanes
from tests.logs import OUTBOX, PLENTY, PostgreSQLLog
from tests.services.postgresql import PostgreSQL

T = TypeVar("T")

LANES = 4
KEYS = ["a", "b", "c", "d", "e", "f"]
WRITERS = 3
writers = st.sampled_from(range(WRITERS))
isolations = st.sampled_from(["read committed", "repeatable read", "serializable"])
lanes = st.sampled_from(range(LANES))
parts = st.sampled_from([1.0, 1.0, 0.5, 0.2])
TOPICS = ["a", "a.b", "a.b.c", "d"]
topics = st.sampled_from(TOPICS)
TAKES_SOME = SinkFilter(topics=["a.*", "d"])
TAKEN = {"a.b", "d"}
limits = st.builds(PageLimit, rows=st.sampled_from([2, 5, 50]), payload_bytes=st.sampled_from([50, 5000, 5000]))


class Writer:
    """One connection, and what its transaction would add if it were committed now."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.added: list[int] | None = None
        self.savepoints: list[int] = []


class AtOnce:
    """A clock that never waits."""

    def now(self) -> float:
        return 0.0

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """It is over already."""


class Failing:
    """Reads and settles many lanes at once, and fails when it is told to: before the database is asked, or after."""

    def __init__(self, many: ManyLanes) -> None:
        self._many = many
        self.failures: dict[str, str] = {}

    async def read(self, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit) -> Sweep:
        return await self._fail("read", self._many.read(lanes, limit))

    async def settle(self, asked: Sequence[Settlement]) -> Sequence[Lease | None]:
        return await self._fail("settle", self._many.settle(asked))

    async def _fail(self, what: str, call: Coroutine[Any, Any, T]) -> T:
        failure = self.failures.pop(what, None)
        if failure == "before":
            call.close()
            raise StoreUnavailable("before")
        answer = await call
        if failure == "after":
            raise StoreUnavailable("after")
        return answer


class LogMachine(RuleBasedStateMachine):
    runner: asyncio.Runner
    connections: list[Any]
    store: PostgreSQLStore
    many: Failing
    filter = EVERYTHING

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.committed: set[int] = set()
        self.not_taken: set[int] = set()
        self.prepared: dict[str, list[int]] = {}
        self.dealt_with: list[tuple[int, str | None, int]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize(limit=limits, fewest=st.sampled_from([2, 2, 3, LANES + 1]))
    def begin_afresh(self, limit: PageLimit, fewest: int) -> None:
        self.limit, self.fewest = limit, fewest
        self.admin, *connections = self.connections
        self.writers = [Writer(connection) for connection in connections]
        self.run(self.admin.execute("truncate postroad.outbox, postroad.lanes, postroad.sinks"))
        self.run(self._start())

    async def _start(self) -> None:
        """A relay that knows nothing takes all lanes."""
        self.many.failures.clear()
        taken = await take_lanes(self.store, "s", uuid4(), lanes=LANES, filter=self.filter)
        loaded = [await self.store.load(lane) for lane in taken]
        self.lanes = sorted((each.lease for each in loaded), key=lambda lane: lane.lane)
        self.epochs = [lane.epoch for lane in self.lanes]
        self.convoy = Convoy(self.store, clock=AtOnce(), fewest=self.fewest)
        for lane in range(LANES):
            self.convoy.add(lane)
        self.ahead: dict[int, asyncio.Future[Page]] = {}

    # -- writers -----------------------------------------------------------------------------------------------------

    @rule(number=writers, isolation=isolations)
    def begin_with_an_xid(self, number: int, isolation: str) -> None:
        """Xids are then in another order than positions."""
        if self.writers[number].added is None:
            self._begin(self.writers[number], isolation)
            self.run(self.writers[number].connection.execute("select pg_current_xact_id()"))

    def _begin(self, writer: Writer, isolation: str) -> None:
        self.run(writer.connection.execute(f"begin isolation level {isolation}"))
        writer.added, writer.savepoints = [], []

    @rule(
        number=writers,
        isolation=isolations,
        key=st.sampled_from([*KEYS, None]),
        count=st.sampled_from([1, 1, 2, 9]),
        topic=topics,
    )
    def add(self, number: int, isolation: str, key: str | None, count: int, topic: str = "d") -> None:
        writer = self.writers[number]
        if writer.added is None:
            self._begin(writer, isolation)
        assert writer.added is not None
        if key is not None and not self.run(
            # What a writer does who locks the aggregate before it adds; one who would have to wait does not add.
            writer.connection.fetchval("select pg_try_advisory_xact_lock(hashtext($1))", key)
        ):
            return
        numbers = range(self.number + 1, self.number + count + 1)
        self.number += count
        messages = [Message(str(each), type=topic, key=key or UNSET, id=UUID(int=each)) for each in numbers]
        self.run(self._add(writer, messages))
        self._note(topic, numbers)
        writer.added += numbers

    def _note(self, topic: str, numbers: Iterable[int]) -> None:
        if self.filter is not EVERYTHING and topic not in TAKEN:
            self.not_taken.update(numbers)

    async def _add(self, writer: Writer, messages: list[Message]) -> None:
        await OUTBOX.add_many(writer.connection, messages)

    @rule(number=writers, back=st.booleans())
    def savepoint(self, number: int, back: bool) -> None:
        """Set one, or roll back to the last."""
        writer = self.writers[number]
        if writer.added is None:
            return
        if back and writer.savepoints:
            self.run(writer.connection.execute(f"rollback to savepoint s{len(writer.savepoints)}"))
            del writer.added[writer.savepoints.pop() :]
        else:
            writer.savepoints.append(len(writer.added))
            self.run(writer.connection.execute(f"savepoint s{len(writer.savepoints)}"))

    @rule(number=writers, how=st.sampled_from(["commit", "commit", "commit", "rollback", "prepare"]))
    def finish(self, number: int, how: str) -> None:
        writer = self.writers[number]
        if writer.added is None:
            return
        if how == "prepare":
            name = f"p{uuid4()}"
            self.run(writer.connection.execute(f"prepare transaction '{name}'"))
            self.prepared[name] = writer.added
        else:
            self.run(writer.connection.execute(how))
            if how == "commit":
                self.committed.update(writer.added)
        writer.added = None

    @precondition(lambda self: self.prepared)
    @rule(how=st.sampled_from(["commit", "rollback"]))
    def finish_prepared(self, how: str) -> None:
        name, added = self.prepared.popitem()
        self.run(self.admin.execute(f"{how} prepared '{name}'"))
        if how == "commit":
            self.committed.update(added)

    @rule(number=writers, key=st.sampled_from([*KEYS, None]), count=st.sampled_from([1, 9]), some=st.sets(lanes))
    def overtake(self, number: int, key: str | None, count: int, some: set[int]) -> None:
        """Others commit behind an open transaction and are dealt with; what it added is late from now on."""
        self.add(number, "read committed", key, count)
        self.commit_many(1)
        self.read_together(some, 1.0)

    @rule(pair=st.permutations(range(WRITERS)), key=st.sampled_from([*KEYS, None]), some=st.sets(lanes, min_size=1))
    def overtake_with_an_older_xid(self, pair: list[int], key: str | None, some: set[int]) -> None:
        """The reader's snapshot ends with the older one: it does not know that the younger one is in progress."""
        older, younger, _ = pair
        self.begin_with_an_xid(older, "read committed")
        self.begin_with_an_xid(younger, "read committed")
        self.add(younger, "read committed", key, 2)
        self.add(older, "read committed", None, 2)
        self.finish(older, "commit")
        self.read_together(some, 1.0)

    @rule(count=st.sampled_from([1, 5, 20]), topic=topics)
    def commit_many(self, count: int, topic: str = "d") -> None:
        for _ in range(count):
            self.number += 1
            self.committed.add(self.number)
        numbers = range(self.number - count + 1, self.number + 1)
        self.run(self._add_and_commit(numbers, topic))
        self._note(topic, numbers)

    async def _add_and_commit(self, numbers: range, topic: str) -> None:
        async with self.admin.transaction():
            await OUTBOX.add_many(self.admin, [Message(str(each), type=topic, id=UUID(int=each)) for each in numbers])

    # -- reader ------------------------------------------------------------------------------------------------------

    @rule(lane=lanes, part=parts, ahead=st.booleans())
    def read_and_settle(self, lane: int, part: float, ahead: bool) -> None:
        self.run(self._step(lane, part, ahead))

    @rule(some=st.sets(lanes, min_size=2), part=parts, ahead=st.booleans())
    def read_together(self, some: set[int], part: float, ahead: bool = False) -> None:
        """These lanes ask at the same time, and so do their settles; the others lag behind."""
        self.run(self._steps(some, part, ahead))

    async def _steps(self, some: Iterable[int], part: float, ahead: bool) -> list[Page | None]:
        return await asyncio.gather(*(self._step(lane, part, ahead) for lane in sorted(some)))

    async def _step(self, number: int, part: float, ahead: bool) -> Page | None:
        """What a lane does with a page; with `ahead`, it begins to read the next one before it settles. If it may not
        go on, it forgets everything and loads again.
        """
        lane, page, to, count = self.lanes[number], None, None, 0
        try:
            page = await (self.ahead.pop(number, None) or self.convoy.read(lane, lane.cursor, self.limit))
            if page.version > lane.version:
                raise lane.changed()
            if ahead and page.messages:
                self.ahead[number] = self.convoy.read(lane, page.after, self.limit)
            count = round(part * len(page.messages))
            to = page.cursor_after(count)
            self.lanes[number] = await self.convoy.settle(lane, to)
        except (LaneChanged, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable):
                self.convoy.clear()
            await self._leave(number)
            lane = msgspec.structs.replace(lane, epoch=self.epochs[number])
            self.lanes[number] = (await self.store.load(lane)).lease
            if page is None or self.lanes[number].cursor != to:
                return None  # else it was saved, and the answer lost
        if count < len(page.messages):
            await self._leave(number)
        self.dealt_with += [(int(each.payload), each.key, each.position) for each in page.messages[:count]]
        return page

    async def _leave(self, lane: int) -> None:
        """As a lane does that is not to go on from where it was."""
        reading = self.ahead.pop(lane, None)
        if reading is not None:
            reading.cancel()
        self.convoy.leave(lane)
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)

    @rule(lane=lanes)
    def lose_and_take_again(self, lane: int) -> None:
        """The lane is not told: it finds out."""
        self.epochs[lane] += 1
        self.run(
            self.admin.execute(
                "update postroad.lanes set epoch = epoch + 1, version = version + 1 where lane = $1", lane
            )
        )

    @rule(lane=lanes)
    def leave(self, lane: int) -> None:
        """As a lane does that is stopped while it reads."""

        async def give_up() -> None:
            if lane not in self.ahead:
                self.ahead[lane] = self.convoy.read(self.lanes[lane], self.lanes[lane].cursor, self.limit)
            await asyncio.sleep(0)
            await self._leave(lane)

        self.run(give_up())

    @rule(what=st.sampled_from(["read", "settle"]), failure=st.sampled_from(["before", "after"]))
    def fail(self, what: str, failure: str) -> None:
        """The next sweep, or the next joint settle."""
        self.many.failures[what] = failure

    @rule(some=st.sets(lanes, min_size=1))
    def read_and_crash(self, some: set[int]) -> None:
        """What was read is gone with the relay; the next one begins from what the database says."""

        async def crash() -> None:
            for lane in some - self.ahead.keys():
                self.ahead[lane] = self.convoy.read(self.lanes[lane], self.lanes[lane].cursor, self.limit)
            await asyncio.gather(*self.ahead.values(), return_exceptions=True)
            await self._restart()

        self.run(crash())

    async def _restart(self) -> None:
        for lane in range(LANES):
            await self._leave(lane)
        await self.convoy.close()
        await self._start()

    @rule(number=writers, keys=st.lists(st.sampled_from([*KEYS, None]), min_size=1, max_size=5), some=st.sets(lanes))
    def be_away(self, number: int, keys: list[str | None], some: set[int]) -> None:
        """A transaction begins while the relay is there, and commits while it is away, among others that it has not
        seen; the relay begins again from what the database says.
        """
        self.add(number, "read committed", keys[0], 2)
        self.read_together(some, 1.0)
        for key in keys:
            self.add((number + 1) % WRITERS, "read committed", key, 1)
            self.finish((number + 1) % WRITERS, "commit")
        self.finish(number, "commit")
        self.run(self._restart())

    @precondition(lambda self: not self.prepared and all(writer.added is None for writer in self.writers))
    @rule()
    def restore(self) -> None:
        """As if the schema came from another cluster: all transaction ids and snapshots are converted."""

        async def restore() -> None:
            await self.admin.execute("update postroad.installation set system_identifier = 1")
            await self.store._check_server(self.admin)
            await self._restart()

        self.run(restore())

    @rule(batch=st.integers(1, 20))
    def clean_up(self, batch: int) -> None:
        self.run(self.store.delete_passed(after=0, older_than=timedelta(0), batch=batch))

    # -- the end -----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "convoy"):
            return
        try:
            for number in range(WRITERS):
                self.finish(number, "commit")
            while self.prepared:
                self.finish_prepared("commit")
            self.run(self._drain())
            self._check()
        finally:
            self.run(self._leave_nothing_open())

    async def _drain(self) -> None:
        self.limit = PLENTY
        waiting = set(range(LANES))
        await self._steps(waiting, 1.0, False)  # what was read ahead may be from before the last commit
        while waiting:
            pages = await self._steps(waiting, 1.0, False)
            for lane, page in zip(sorted(waiting), pages, strict=True):
                if page is not None and not (page.messages or page.more or page.before.catching_up):
                    waiting.remove(lane)
        await self.convoy.close()

    def _check(self) -> None:
        numbers = [number for number, _, _ in self.dealt_with]
        assert len(numbers) == len(set(numbers)), "something was dealt with twice"
        assert set(numbers) == self.committed - self.not_taken, "lost, never committed, or not taken"
        for key in KEYS:
            positions = [position for _, its_key, position in self.dealt_with if its_key == key]
            assert positions == sorted(positions), f"key {key} is out of order"

    async def _leave_nothing_open(self) -> None:
        for writer in self.writers:
            if writer.added is not None:
                await writer.connection.execute("rollback")
        for name in self.prepared:
            await self.admin.execute(f"rollback prepared '{name}'")


def machine_with(postgresql15: PostgreSQL, filter: SinkFilter, positions: int | None) -> Iterator[type[LogMachine]]:
    """A machine whose sink has this filter. `positions`: how far one statement reaches."""
    with asyncio.Runner() as runner:
        log = runner.run(PostgreSQLLog.fresh(postgresql15))
        # What a commit waits for makes no difference here, but for the time it takes.
        hasty = {"synchronous_commit": "off", "postroad.notify": "off"}  # and some are prepared

        class Machine(LogMachine):
            pass

        Machine.filter = filter
        Machine.runner = runner
        Machine.connections = [runner.run(asyncpg.connect(log.url, server_settings=hasty)) for _ in range(WRITERS + 1)]
        Machine.store = PostgreSQLStore(log.url)
        if positions is not None:
            reaching = {n: sql.replace(f"+ {POSITIONS}", f"+ {positions}") for n, sql in Machine.store._sql.items()}
            assert reaching != Machine.store._sql
            Machine.store._sql = Machine.store.many._sql = reaching
        Machine.many = Machine.store.many = Failing(Machine.store.many)  # type: ignore[assignment]
        runner.run(Machine.store.open())
        yield Machine
        runner.run(Machine.store.close())
        for connection in Machine.connections:
            connection.terminate()


@pytest.fixture
def machine(postgresql15: PostgreSQL) -> Iterator[type[LogMachine]]:
    yield from machine_with(postgresql15, EVERYTHING, None)


@pytest.fixture
def filtered(postgresql15: PostgreSQL) -> Iterator[type[LogMachine]]:
    yield from machine_with(postgresql15, TAKES_SOME, 7)


def test_every_committed_row_is_dealt_with_once_and_in_order(machine: type[LogMachine]) -> None:
    run(machine, 150)


def test_with_a_filter_every_committed_row_that_it_takes_is_and_no_other(filtered: type[LogMachine]) -> None:
    run(filtered, 100)


def run(machine: type[LogMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # A failure is shown as it was found: making it smaller takes minutes of real transactions.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
