"""The log under anything that transactions can do: every committed row is dealt with exactly once, and in order per key.

A machine drives real connections to a real PostgreSQL: writers that begin, add, set and roll back savepoints, prepare,
commit and roll back in any order, in any isolation level; a reader with two lanes that reads pages of any size, deals
with any beginning of them, and crashes between reading and settling; and retention in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from postroad import Message
from postroad.stores.base import Lease
from postroad.stores.cursor import PageLimit
from postroad.stores.postgresql import PostgreSQLStore
from tests.logs import OUTBOX, PLENTY, PostgreSQLLog
from tests.services.postgresql import PostgreSQL

T = TypeVar("T")

LANES = 2
KEYS = ["a", "b", "c"]  # of these, "a" and "c" share a lane
writers = st.sampled_from(range(4))
limits = st.builds(PageLimit, rows=st.integers(1, 6), payload_bytes=st.sampled_from([3, 10, 1000]))


class Writer:
    """One connection, and what its transaction would add if it were committed now."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.added: list[int] | None = None
        self.savepoints: list[int] = []


class LogMachine(RuleBasedStateMachine):
    runner: asyncio.Runner
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.committed: set[int] = set()
        self.prepared: dict[str, list[int]] = {}
        self.dealt_with: list[tuple[int, str | None, int]] = []
        self.reading: dict[int, Any] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def begin_afresh(self) -> None:
        async def begin() -> None:
            self.writers = [Writer(await asyncpg.connect(self.url)) for _ in range(4)]
            self.admin = await asyncpg.connect(self.url)
            await self.admin.execute("truncate postroad.outbox, postroad.lanes")
            self.store = PostgreSQLStore(self.url)
            await self.store.open()
            leases = await self.store.take_lanes("s", uuid4(), lanes=LANES, start="oldest")
            self.lanes: list[Lease] = list(leases)

        self.run(begin())

    # -- writers -----------------------------------------------------------------------------------------------------

    @rule(
        number=writers,
        isolation=st.sampled_from(["read committed", "repeatable read", "serializable"]),
        xid_first=st.booleans(),
    )
    def begin(self, number: int, isolation: str, xid_first: bool) -> None:
        writer = self.writers[number]
        if writer.added is None:
            self.run(writer.connection.execute(f"begin isolation level {isolation}"))
            if xid_first:  # xids in another order than positions
                self.run(writer.connection.execute("select pg_current_xact_id()"))
            writer.added, writer.savepoints = [], []

    @rule(number=writers, key=st.sampled_from([*KEYS, None]), count=st.sampled_from([1, 1, 1, 2, 15]))
    def add(self, number: int, key: str | None, count: int) -> None:
        writer = self.writers[number]
        if writer.added is None:
            return
        if key is not None and not self.run(
            # What a writer does who locks the aggregate before it adds; one who would have to wait does not add.
            writer.connection.fetchval("select pg_try_advisory_xact_lock(hashtext($1))", key)
        ):
            return
        numbers = range(self.number + 1, self.number + count + 1)
        self.number += count
        messages = [
            Message(str(each), type="t", key=key) if key else Message(str(each), type="t") for each in numbers
        ]
        self.run(self._add(writer, messages))
        writer.added += numbers

    async def _add(self, writer: Writer, messages: list[Message]) -> None:
        await OUTBOX.add_many(writer.connection, messages)

    @rule(number=writers)
    def savepoint(self, number: int) -> None:
        writer = self.writers[number]
        if writer.added is not None:
            writer.savepoints.append(len(writer.added))
            self.run(writer.connection.execute(f"savepoint s{len(writer.savepoints)}"))

    @rule(number=writers)
    def roll_back_to_savepoint(self, number: int) -> None:
        writer = self.writers[number]
        if writer.added is not None and writer.savepoints:
            self.run(writer.connection.execute(f"rollback to savepoint s{len(writer.savepoints)}"))
            del writer.added[writer.savepoints.pop() :]

    @rule(number=writers, how=st.sampled_from(["commit", "commit", "rollback", "prepare"]))
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

    # -- reader ------------------------------------------------------------------------------------------------------

    @rule(lane=st.sampled_from(range(LANES)), limit=limits, part=st.floats(0, 1))
    def read_and_settle(self, lane: int, limit: PageLimit, part: float) -> None:
        self.run(self._step(lane, limit, part))

    async def _step(self, number: int, limit: PageLimit, part: float) -> int:
        lane = self.lanes[number]
        page = await self.store.read(lane, lane.cursor, limit)
        count = round(part * len(page.messages))
        self.lanes[number] = await self.store.settle(lane, page.cursor_after(count))
        self.dealt_with += [(int(each.payload), each.key, each.position) for each in page.messages[:count]]
        return len(page.messages)

    @rule(lane=st.sampled_from(range(LANES)), limit=limits)
    def read_and_crash(self, lane: int, limit: PageLimit) -> None:
        """What was read is gone with the reader; the next one begins from what the database says."""

        async def crash() -> None:
            await self.store.read(self.lanes[lane], self.lanes[lane].cursor, limit)
            await self.store.close()
            await self.store.open()
            self.lanes = list(await self.store.take_lanes("s", uuid4(), lanes=LANES, start="oldest"))

        self.run(crash())

    @rule(batch=st.integers(1, 20))
    def clean_up(self, batch: int) -> None:
        self.run(self.store.delete_passed(after=0, older_than=timedelta(0), batch=batch))

    # -- the end -----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "lanes"):
            return
        try:
            for number in range(4):
                self.finish(number, "commit")
            while self.prepared:
                self.finish_prepared("commit")
            self.run(self._drain())
            self._check()
        finally:
            self.run(self._close())

    async def _drain(self) -> None:
        for number in range(LANES):
            while await self._step(number, PLENTY, 1.0) or self.lanes[number].cursor.catching_up:
                pass

    def _check(self) -> None:
        numbers = [number for number, _, _ in self.dealt_with]
        assert len(numbers) == len(set(numbers)), "something was dealt with twice"
        assert set(numbers) == self.committed, "lost, or never committed"
        for key in KEYS:
            positions = [position for _, its_key, position in self.dealt_with if its_key == key]
            assert positions == sorted(positions), f"key {key} is out of order"

    async def _close(self) -> None:
        await self.store.close()
        for writer in self.writers:
            await writer.connection.close()
        for name in self.prepared:
            await self.admin.execute(f"rollback prepared '{name}'")
        await self.admin.close()


@pytest.fixture
def machine(postgresql15: PostgreSQL) -> Iterator[type[LogMachine]]:
    with asyncio.Runner() as runner:
        log = runner.run(PostgreSQLLog.fresh(postgresql15))

        class Machine(LogMachine):
            pass

        Machine.runner, Machine.url = runner, log.url
        yield Machine


def test_every_committed_row_is_dealt_with_once_and_in_order(machine: type[LogMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
        ),
    )
