"""A change that was confirmed for a number never changes more: `expected`, on SQLite and two versions of PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroad import CountGrown
from postroad.brokers.memory import MemoryBroker
from postroad.lifecycle import State
from postroad.retry import Backoff
from postroad.stores.admin import change, inspect
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import Count, Done, Filter, Rewind, totals
from tests.contracts.test_admin import ME, admin_of, id_of, ops, refusing, run_relay, states
from tests.logs import Log, PostgreSQLLog, log_fixture, numbered
from tests.services.postgresql import PostgreSQL

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")
DEAD = Filter(state=State.DEAD)
ONCE = Backoff(max_attempts=1)


async def refused(call: Any, expected: int, number: int) -> None:
    with pytest.raises(CountGrown, match=f"{number} would be changed now, and {expected} were expected") as raised:
        await call
    assert (raised.value.expected, raised.value.number) == (expected, number)


async def test_a_number_that_has_grown_is_refused_and_nothing_is_changed(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, key="k"), *numbered(3))
    await run_relay(log, refusing(1, 2, 3), retry=ONCE)
    both = [await id_of(ops, 1), await id_of(ops, 3)]
    for call in (ops.retry, ops.drop, ops.skip):
        await refused(call(DEAD, ME, expected=2), 2, 3)
        await refused(call(Filter(ids=both), ME, expected=1), 1, 2)
        await refused(call(Filter(error_pattern="no <n>"), ME, expected=0), 0, 3)
    await refused(ops.skip_key("default", "k", ME, expected=1), 1, 2)
    assert set((await states(ops, all=True)).values()) == {"dead"}
    assert await ops.audit() == []
    assert await ops.retry(DEAD, ME, expected=3) == Done(3)
    await refused(ops.poison(Filter(state=State.RETRYING), ME, expected=0), 0, 3)
    assert await ops.poison(Filter(all=True), ME, expected=3) == Done(3)
    assert await ops.drop(Filter(ids=both), ME, expected=5) == Done(2), "fewer is no reason to ask again"


async def test_messages_that_wait_are_counted_by_id(log: Log, ops: Admin) -> None:
    await run_relay(log, MemoryBroker())
    await log.add(*numbered(1, 2))
    ids = [await id_of(ops, 1), await id_of(ops, 2)]
    await refused(ops.skip(Filter(ids=ids), ME, expected=1), 1, 2)
    await refused(ops.poison(Filter(ids=ids), ME, expected=1), 1, 2)
    assert await ops.skip(Filter(ids=ids), ME, expected=2) == Done(2)


async def test_what_comes_between_batches_is_not_changed(log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is confirmed; then more messages die."""
    monkeypatch.setattr("postroad.stores.admin.change.BATCH", 2)
    await log.add(*numbered(1, 2, 3))
    await run_relay(log, refusing(1, 2, 3, 4, 5), retry=ONCE)
    await log.add(*numbered(4, 5))
    find = inspect.find_deferred

    async def finding(query: Any, which: Filter, states: Any, after: Any, rows: int) -> Any:
        if after != ("", 0) and await ops.audit():
            await run_relay(log, refusing(4, 5), retry=ONCE)
        return await find(query, which, states, after, rows)

    monkeypatch.setattr(change, "find_deferred", finding)
    async with admin_of(log) as other:
        assert await other.drop(DEAD, ME, expected=3) == Done(3)
    assert await states(ops, state=State.DEAD) == {4: "dead", 5: "dead"}


async def test_it_is_decided_with_the_lanes_locked(postgresql15: PostgreSQL) -> None:
    """While the change waits for the lanes, another one makes more match. SQLite has one writer at a time."""
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.add(*numbered(1, 2))
    await run_relay(log, refusing(1, 2), retry=ONCE)
    async with admin_of(log) as ops, log.connected() as connection:
        await ops.retry(Filter(ids=[await id_of(ops, 2)]), ME)
        async with connection.transaction():
            await connection.execute("select from postroad.lanes for update")
            dropping = asyncio.create_task(ops.drop(Filter(all=True), ME, expected=1))
            async with asyncio.timeout(60):
                while not await connection.fetchval("select count(*) from pg_locks where not granted"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await connection.execute(
                "update postroad.deferred set state = 'dead', blocks = false, due_at = null where state = 'retrying'"
            )
        await refused(dropping, 1, 2)
        assert await ops.preview_dead(Filter(all=True)) == Count(2)


async def test_keys_sinks_and_the_log(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, key="k"))
    await run_relay(log, MemoryBroker())
    await log.add(*numbered(4, 5, key="k"))
    await refused(ops.hold("default", "k", ME, expected=1), 1, 2)
    assert await ops.held_keys() == []
    assert await ops.hold("default", "k", ME, expected=2) == Done(1)
    await refused(ops.rewind(Rewind(sink="default", to=1), ME, expected=2), 2, 3)
    await refused(ops.cleanup(timedelta(0), ME, expected=2), 2, 3)
    await refused(ops.forget("k", ME, expected=2), 2, 3)
    await refused(ops.remove_sink("default", ME, expected=1), 1, 2)
    assert await ops.rewind(Rewind(sink="default", to=1), ME, expected=3) == Done(3)
    undelivered = totals([await ops.preview_remove_sink("default")]).undelivered
    assert (await ops.remove_sink("default", ME, expected=undelivered.number)).changed == 2
