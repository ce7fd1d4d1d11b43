"""If `cancel` returned CANCELED and was committed, the broker never had the message and never gets it.

Chance decides what the broker answers, when the database fails, when relays are started and killed (also between a
publish and the saving of the cursor), and when keys are held, released, poisoned and messages canceled.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from postroad import Cancellation, Message
from postroad.message import UNSET, new_id
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.admin.sqlite import SQLiteAdminDatabase
from tests.logs import Log, MemoryLog, PostgreSQLLog, SQLiteLog
from tests.unreliable import UnreliableBroker, UnreliableStore, a_relay

KEYS = ["a", "b", None]
ME = By("anna")


class Life:
    """A log, the relays that read it, and what people and applications do meanwhile."""

    def __init__(self, log: Log, ops: Admin | None, random: Random) -> None:
        self._log = log
        self._ops = ops
        self._random = random
        self._broker = UnreliableBroker(random)
        self._running: list[asyncio.Task[Any]] = []
        self._shaky: list[UnreliableStore] = []
        self._on_dead = random.choice(["release", "hold"])
        self._added: list[UUID] = []
        self.canceled: set[UUID] = set()

    @property
    def arrived(self) -> set[UUID]:
        return {message.id for message in self._broker.messages}

    async def live(self) -> None:
        acts = [self._add, self._add, self._start, self._kill, self._cancel, self._cancel, self._pause, self._pause]
        if self._ops is not None:
            acts += [self._hold, self._hold, self._release, self._poison]
        await self._add()
        await self._start()
        await asyncio.wait_for(self._broker.asked.wait(), 60)
        for _ in range(self._random.randrange(5, 25)):
            await self._random.choice(acts)()
            await asyncio.sleep(self._random.choice([0, 0, 0.001, 0.005]))
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._cancel()
        await self._mend()

    async def _mend(self) -> None:
        self._broker.mended = True
        for store in self._shaky:
            store.mended = True
        if self._ops is not None and await self._ops.sinks():
            for key in filter(None, KEYS):
                await self._ops.release("default", key, ME)
            await self._ops.retry(Filter(all=True), ME)
        async with asyncio.timeout(60):
            while (await self._relay(self._log.another_store()).run_until_empty()).published:
                pass

    def _relay(self, store: Any) -> Any:
        return a_relay(store, self._broker, self._random, self._on_dead)

    async def _add(self) -> None:
        ids = [new_id() for _ in range(self._random.randrange(1, 6))]
        self._added += ids
        keys = [self._random.choice(KEYS) for _ in ids]
        await self._log.add(
            *(
                Message("1", type="t", topic=self._random.choice("xy"), key=key or UNSET, id=id)
                for id, key in zip(ids, keys, strict=True)
            )
        )

    async def _start(self) -> None:
        self._shaky.append(UnreliableStore(self._log.another_store(), self._random))
        self._running.append(asyncio.create_task(self._relay(self._shaky[-1]).run()))

    async def _kill(self) -> None:
        task = self._random.choice(self._running)
        task.cancel()
        await asyncio.wait((task,))

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.random() * 0.05)

    async def _cancel(self) -> None:
        ids = self._random.sample(self._added, min(4, len(self._added)))
        commit = self._random.random() < 0.8
        answers = await self._log.cancel(*ids, commit=commit)
        if commit:
            self.canceled |= {id for id, answer in zip(ids, answers, strict=True) if answer is Cancellation.CANCELED}
            assert not self.canceled & self.arrived, "it had arrived when it was canceled"

    async def _hold(self) -> None:
        assert self._ops is not None
        if await self._ops.sinks():
            await self._ops.hold("default", self._random.choice("ab"), ME)

    async def _release(self) -> None:
        assert self._ops is not None
        if await self._ops.sinks():
            await self._ops.release("default", self._random.choice("ab"), ME)

    async def _poison(self) -> None:
        assert self._ops is not None
        if await self._ops.sinks():
            ids = tuple(self._random.sample(self._added, min(2, len(self._added))))
            await self._ops.poison(Filter(ids=ids), ME, holds_key=self._random.random() < 0.5)


CANCELED = {"memory": 0, "sqlite": 0, "postgresql": 0}


async def check(name: str, log: Log, ops: Admin | None, seed: int) -> None:
    async with AsyncExitStack() as stack:
        if ops is not None:
            await stack.enter_async_context(ops)
        life = Life(log, ops, Random(seed))
        await life.live()
        assert not life.canceled & life.arrived, "it arrived after it was canceled"
        CANCELED[name] += len(life.canceled)


# A seed can't be made smaller in any sense that helps, so a failure is reported as it was found.
ONCE = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
OFTEN = settings(ONCE, max_examples=100)
SELDOM = settings(ONCE, max_examples=20)
SEEDS = st.integers(0, 1 << 32)


def test_in_memory() -> None:
    @OFTEN
    @given(SEEDS)
    def some(seed: int) -> None:
        asyncio.run(check("memory", MemoryLog(), None, seed))

    some()
    assert CANCELED["memory"], "nothing was ever canceled, so nothing was tried"


def test_on_sqlite() -> None:
    @SELDOM
    @given(SEEDS)
    def some(seed: int) -> None:
        with TemporaryDirectory() as folder:
            log = SQLiteLog(Path(folder) / "log.sqlite")
            asyncio.run(check("sqlite", log, Admin(SQLiteAdminDatabase(log.path)), seed))

    some()
    assert CANCELED["sqlite"], "nothing was ever canceled, so nothing was tried"


def test_on_postgresql(postgresql15: Any) -> None:
    @SELDOM
    @given(SEEDS)
    def some(seed: int) -> None:
        async def run() -> None:
            log = await PostgreSQLLog.fresh(postgresql15)
            await check("postgresql", log, Admin(PostgreSQLAdminDatabase(log.url)), seed)

        asyncio.run(run())

    some()
    assert CANCELED["postgresql"], "nothing was ever canceled, so nothing was tried"
