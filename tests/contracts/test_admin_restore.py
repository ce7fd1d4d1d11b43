"""The way back from `dropped`, on SQLite and two versions of PostgreSQL, with relays that run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from postroad import CountGrown, NotFound
from postroad.brokers.memory import MemoryBroker
from postroad.lifecycle import State
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import Count, Done, Filter
from tests.contracts.test_admin import (
    ME,
    admin_of,
    at,
    id_of,
    mend,
    ops,
    refusing,
    run_relay,
    running,
    states,
    until,
    until_passed,
)
from tests.logs import Log, PostgreSQLLog, log_fixture, numbered
from tests.services.postgresql import PostgreSQL

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")
ONCE = Backoff(max_attempts=1)
DROPPED = Filter(state=State.DROPPED)


async def test_a_drop_is_undone_and_the_message_is_published(log: Log, ops: Admin) -> None:
    broker = refusing(1, 2)
    async with running(log, broker, retry=ONCE):
        await log.add(*numbered(1, 2, 3, key="k"))
        await until(ops, 1, State.DEAD)
        await until(ops, 2, State.DEAD)
        await until(ops, 3, State.PUBLISHED)
        error = (await at(ops, 1)).error
        assert await ops.drop(Filter(all=True), ME) == Done(2)
        assert await ops.preview_restore(DROPPED) == Count(2)
        with pytest.raises(CountGrown):
            await ops.restore(DROPPED, ME, expected=1)
        assert await ops.restore(Filter(ids=[await id_of(ops, 1)]), ME, expected=1) == Done(1)
        assert await states(ops, all=True) == {1: "dead", 2: "dropped", 3: "published"}
        assert (await at(ops, 1)).error == error, "with its history"
        with pytest.raises(NotFound, match="only a message that is dropped can be restored"):
            await ops.preview_restore(Filter(ids=[await id_of(ops, 3)]))
        mend(broker)
        assert await ops.retry(Filter(state=State.DEAD), ME) == Done(1)
        await until(ops, 1, State.PUBLISHED)
    assert [line.command for line in await ops.audit()] == ["retry", "restore", "drop"]


async def test_only_what_was_dropped_is_restored(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3))
    await run_relay(log, refusing(1, 2), retry=ONCE)
    await ops.skip(Filter(ids=[await id_of(ops, 2)]), ME)
    everyone = Filter(ids=[await id_of(ops, position) for position in (1, 2, 3)])
    assert await ops.restore(everyone, ME) == Done(0, {State.DEAD: 1, State.SKIPPED: 1, State.PUBLISHED: 1})
    assert await ops.restore(Filter(all=True), ME) == Done(0)
    assert await states(ops, all=True) == {1: "dead", 2: "skipped", 3: "published"}


async def test_a_relay_that_owns_the_lane_reloads_it(log: Log, ops: Admin) -> None:
    """The key of a dead message is held; a drop lets the others go, and a restore does not hold them again."""
    broker = refusing(1)
    async with running(log, broker, retry=ONCE, on_dead="hold"):
        await log.add(*numbered(1, 2, key="k"))
        await until(ops, 1, State.DEAD)
        await ops.drop(Filter(all=True), ME)
        await until(ops, 2, State.PUBLISHED)
        assert await ops.restore(DROPPED, ME) == Done(1)
        await log.add(*numbered(3, key="k"))
        await until(ops, 3, State.PUBLISHED)
        assert await states(ops, all=True) == {1: "dead", 2: "published", 3: "published"}


async def test_what_no_consumer_had_subscribed_to_is_sent_when_one_has(log: Log, ops: Admin) -> None:
    broker = MemoryBroker()
    broker.unbind("lost")
    async with running(log, broker, retry=ONCE, unroutable="drop"):
        await log.add(*numbered(1, topic="lost"))
        await until(ops, 1, State.DROPPED)
        broker.bind("lost")
        assert await ops.restore(DROPPED, ME) == Done(1)
        row = await at(ops, 1)
        assert (row.state, row.route) == (State.DEAD, None)
        assert await ops.retry(Filter(all=True), ME) == Done(1)
        await until(ops, 1, State.PUBLISHED)


async def test_a_restored_message_is_not_deleted(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2))
    await run_relay(log, refusing(1, 2), retry=ONCE)
    await ops.drop(Filter(all=True), ME)
    await ops.restore(Filter(ids=[await id_of(ops, 1)]), ME)
    await ops.cleanup(timedelta(0), ME)
    assert await states(ops, all=True) == {1: "dead"}
    assert await ops.restore(Filter(all=True), ME) == Done(0), "the other one is gone"


async def test_restoring_waits_for_retention(postgresql15: PostgreSQL) -> None:
    """Retention has decided what to delete when it takes its lock. SQLite has one writer at a time."""
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.add(*numbered(1))
    await run_relay(log, refusing(1), retry=ONCE)
    async with admin_of(log) as ops, log.connected() as connection:
        await ops.drop(Filter(all=True), ME)
        async with connection.transaction():
            await connection.execute("select from postroad.locks where name = 'retention' for update")
            restoring: asyncio.Task[Any] = asyncio.create_task(ops.restore(DROPPED, ME))
            async with asyncio.timeout(60):
                while not await connection.fetchval("select count(*) from pg_locks where not granted"):
                    assert not restoring.done()
                    await asyncio.sleep(0.01)
            await connection.execute("delete from postroad.deferred")
            await connection.execute("delete from postroad.outbox")
        assert await restoring == Done(0)
        await until_passed(ops)
