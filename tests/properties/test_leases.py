"""Whatever several relays do to the lanes of a sink, in whatever order: at most one owner's writes succeed, and no
relay loses a lane before its lease has expired, unless it seems dead: its session was cut, and it has sent no
heartbeat since.

Every lease that was ever taken is kept, and after each step each of them tries to write. So is every
suspect there ever was, and each eviction is tried with all of them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from postroad.errors import LaneChanged
from postroad.stores.base import Lease, Store
from postroad.stores.leases import LivenessLock, RelayIdentity, Suspect
from postroad.stores.memory import MemoryStore
from postroad.stores.postgresql_leases import PostgreSQLLivenessLock
from tests.lanes import HERE, identity
from tests.logs import PostgreSQLLog, SQLiteLog
from tests.services.postgresql import PostgreSQL

LANES, RELAYS = 3, 3
LEASE = 1000.0

PassTime = Callable[[float], Awaitable[None]]
UntilGone = Callable[[LivenessLock], Awaitable[None]]

relay = st.integers(0, RELAYS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), relay, st.integers(1, LANES)),
        st.tuples(st.just("reclaim"), relay, st.integers(0, LANES - 1)),
        st.tuples(st.just("heartbeat"), relay, st.just(0)),
        st.tuples(st.just("release"), relay, st.integers(0, 5)),
        st.tuples(st.just("deregister"), relay, st.just(0)),
        st.tuples(st.just("cut"), relay, st.just(0)),
        st.tuples(st.just("evict"), relay, st.just(0)),
        st.tuples(st.just("pass_time"), relay, st.sampled_from([300, 600, 1001])),
    ),
    max_size=14,
)

CUT_OFF = (("heartbeat", 0, 0), ("take", 0, 2), ("cut", 0, 0), ("pass_time", 0, 300))


class Model:
    """What must be true of the lanes."""

    def __init__(self, store: Store, sink: str, pass_time: PassTime, until_gone: UntilGone | None) -> None:
        self.store = store
        self.relays: list[RelayIdentity] = [identity(sink) for _ in range(RELAYS)]
        self.now = 0.0
        self.owner: dict[int, int | None] = dict.fromkeys(range(LANES))
        self.until: dict[int, float] = dict.fromkeys(range(LANES), 0.0)
        self.handles: list[tuple[int, Lease]] = []
        self.sessions: dict[int, LivenessLock | None] = {}
        self.received: dict[int, float] = {}
        """The last heartbeats of the relays that are not gone."""
        self.cut_off: set[int] = set()
        """Relays whose session was cut, without a heartbeat since."""
        self.suspected: set[Suspect] = set()
        self._pass_time = pass_time
        self._until_gone = until_gone

    async def step(self, what: str, who: int, number: int) -> None:
        await getattr(self, what)(who, number)
        await self.everybody_writes()

    async def take(self, who: int, at_most: int, reclaim: tuple[int, ...] = ()) -> None:
        taken = await self.store.leases.take(self.relays[who], at_most, LEASE, reclaim=reclaim)
        for lease in taken:
            before = self.owner[lease.lane]
            free = before is None or self.until[lease.lane] < self.now
            assert free or (before == who and lease.lane in reclaim), "a lane was taken before its lease expired"
            self.owner[lease.lane], self.until[lease.lane] = who, self.now + LEASE
            self.handles.append((who, lease))
        left = [
            lane
            for lane, owner in self.owner.items()
            if owner is None or (owner != who and self.until[lane] < self.now)
        ]
        assert not left or len(taken) == at_most, "a free lane was left"

    async def reclaim(self, who: int, lane: int) -> None:
        await self.take(who, 1, reclaim=(lane,))

    async def heartbeat(self, who: int, _: int) -> None:
        leases, me = self.store.leases, self.relays[who]
        snapshot = await leases.heartbeat(me, LEASE, self.sessions.get(who))
        mine = {lane for lane, owner in self.owner.items() if owner == who}
        assert set(snapshot.mine) == set(snapshot.renewed) == mine
        self.until |= dict.fromkeys(mine, self.now + LEASE)
        self.received[who] = self.now
        self.cut_off.discard(who)
        if self.sessions.get(who) is None:
            self.sessions[who] = await leases.open_session(me, None, lambda: None)

    async def release(self, who: int, number: int) -> None:
        mine = [lease for owner, lease in self.handles if owner == who]
        if not mine:
            return
        lease = mine[number % len(mine)]
        await self.store.leases.release(lease)
        latest = [each.epoch for owner, each in self.handles if each.lane == lease.lane]
        if self.owner[lease.lane] == who and lease.epoch == max(latest):
            self.owner[lease.lane] = None

    async def deregister(self, who: int, _: int) -> None:
        await self.store.leases.deregister(self.relays[who])
        self.owner = {lane: None if owner == who else owner for lane, owner in self.owner.items()}

        self.received.pop(who, None)
        self.cut_off.discard(who)
        await self._end_session(who)

    async def cut(self, who: int, _: int) -> None:
        if await self._end_session(who):
            self.cut_off.add(who)

    async def evict(self, who: int, _: int) -> None:
        session = self.sessions.get(who)
        self.suspected.update((await self.store.leases.inspect(self.relays[who], session)).suspects)
        evicted = await self.store.leases.evict(self.relays[who], self.suspected)
        found = {number for number, each in enumerate(self.relays) if each.owner in evicted}
        assert found <= self.cut_off, "a live relay was evicted"
        dead = {each for each in self.cut_off - {who} if self.received[each] < self.now < self.received[each] + LEASE}
        assert found >= dead, "a dead relay was not evicted"
        self.received |= dict.fromkeys(found, float("-inf"))
        self.owner = {lane: None if owner in found else owner for lane, owner in self.owner.items()}

    async def _end_session(self, who: int) -> bool:
        session = self.sessions.pop(who, None)
        if session is None or self._until_gone is None:
            return False
        session.close()
        await self._until_gone(session)
        return True

    async def pass_time(self, _: int, seconds: int) -> None:
        await self._pass_time(float(seconds))
        self.now += seconds

    async def everybody_writes(self) -> None:
        """Only the last one who took a lane, and still has it, can write; also when its lease is over, if nobody took
        the lane since.
        """
        for place, (who, lease) in enumerate(self.handles):
            latest = max(each.epoch for _, each in self.handles if each.lane == lease.lane)
            may = self.owner[lease.lane] == who and lease.epoch == latest
            try:
                written = await self.store.settle(lease, lease.cursor)
            except LaneChanged:
                assert not may, "the owner could not write"
            else:
                assert may, "another relay than the owner could write"
                self.handles[place] = (who, msgspec.structs.replace(written))


async def play(store: Store, sink: str, steps: Any, pass_time: PassTime, until_gone: UntilGone | None = None) -> None:
    await store.leases.create(sink, HERE, lanes=LANES, start="oldest")
    model = Model(store, sink, pass_time, until_gone)
    try:
        for step in steps:
            await model.step(*step)
    finally:
        for who in range(RELAYS):
            await model.cut(who, 0)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_at_most_one_owner_in_memory(steps: Any) -> None:
    time = [1_000_000.0]

    async def pass_time(seconds: float) -> None:
        time[0] += seconds

    asyncio.run(play(MemoryStore(clock=lambda: time[0]), "s", steps, pass_time))


@given(STEPS)
@settings(max_examples=50, deadline=None)
def test_at_most_one_owner_in_sqlite(steps: Any) -> None:
    async def run(path: Path) -> None:
        log = SQLiteLog(path)

        async def pass_time(seconds: float) -> None:
            log.execute(f"update postroad_leases set lease_until = lease_until - {int(seconds * 1e6)}")

        await log.store.open()
        try:
            await play(log.store, "s", steps, pass_time)
        finally:
            await log.store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder) / "log.sqlite"))


@pytest.fixture(scope="module")
def url(postgresql15: PostgreSQL) -> str:
    return asyncio.run(PostgreSQLLog.fresh(postgresql15)).url


@given(steps=STEPS)
@example(steps=[*CUT_OFF, ("evict", 1, 0), ("take", 1, 3)])
@example(steps=[*CUT_OFF, ("heartbeat", 0, 0), ("pass_time", 0, 300), ("evict", 1, 0)])
@example(steps=[*CUT_OFF[:2], ("pass_time", 0, 300), ("evict", 1, 0)])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_at_most_one_owner_in_postgresql(url: str, steps: Any) -> None:
    async def run() -> None:
        log = PostgreSQLLog(url)

        async def pass_time(seconds: float) -> None:
            for table, column in (("lanes", "lease_until"), ("relays", "alive_until"), ("relays", "heartbeat_at")):
                await log.execute(
                    f"update postroad.{table} set {column} = {column} - make_interval(secs => $1)", seconds
                )

        async def until_gone(session: LivenessLock) -> None:
            assert isinstance(session, PostgreSQLLivenessLock)
            there = "select from pg_stat_activity where pid = $1"
            while await log.execute(there, session.process):  # noqa: ASYNC110 - it happens in the server
                await asyncio.sleep(0.001)

        await log.execute("delete from postroad.lanes")
        await log.execute("delete from postroad.relays")
        await log.store.open()
        try:
            await play(log.store, "s", steps, pass_time, until_gone)
        finally:
            await log.store.close()

    asyncio.run(run())
