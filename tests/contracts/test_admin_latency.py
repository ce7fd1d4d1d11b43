"""How long messages were on their way, on SQLite and two versions of PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad import InvalidSetting
from postroad.stores.admin.admin import Admin
from postroad.stores.base import Settlement, Tally
from postroad.stores.latency import LATENCIES, NUMBER_OF_BUCKETS
from tests.contracts.test_admin import ops, run_relay
from tests.contracts.test_admin_causation import execute
from tests.lanes import take_lanes
from tests.logs import Arrivals, Log, log_fixture, numbered

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")
HOUR = timedelta(hours=1)


async def test_what_a_relay_has_published_is_in_the_matrix(log: Log, ops: Admin) -> None:
    await log.add(*numbered(*range(1, 41)))
    await run_relay(log, Arrivals())
    now = datetime.now(UTC)
    matrix = await ops.latency("default", now - HOUR, now + HOUR)
    assert (tuple(matrix.bounds), matrix.step) == (LATENCIES, timedelta(minutes=2))
    assert sum(sum(counts) for _, counts in matrix.times) == 40
    assert all(len(counts) == NUMBER_OF_BUCKETS for _, counts in matrix.times)
    (time, _), *_ = matrix.times
    assert now - timedelta(minutes=3) < time <= now
    assert list((await ops.latency("default", now - 2 * HOUR, now - HOUR)).times) == []
    await execute(log, "update {postroad}progress set latencies = null")
    assert list((await ops.latency("default", now - HOUR, now + HOUR)).times) == [], "rows that have none"


async def test_a_time_that_ends_before_it_begins(log: Log, ops: Admin) -> None:
    await run_relay(log, Arrivals())
    now = datetime.now(UTC)
    with pytest.raises(InvalidSetting, match="until is .* must be later than since"):
        await ops.latency("default", now, now)
    with pytest.raises(InvalidSetting, match="there is no sink 'none'"):
        await ops.latency("none", now - HOUR, now)


async def test_tallies_are_written_on_every_way(log: Log, ops: Admin) -> None:
    """By a settle, by a record, and by the settle of several lanes."""
    ages = tuple(range(NUMBER_OF_BUCKETS))
    tally = Tally(sum(ages), 0, ages)
    store = log.another_store()
    await store.open()
    try:
        first, second, *rest = await take_lanes(store, "default", lanes=4)
        await store.settle(first, first.cursor, tally)
        await store.record(second, second.cursor, tally=tally)
        for lease in rest if store.many is None else ():
            await store.settle(lease, lease.cursor, tally)
        if store.many is not None:
            await store.many.settle([Settlement(lease, lease.cursor, tally) for lease in rest])
    finally:
        await store.close()
    now = datetime.now(UTC)
    matrix = await ops.latency("default", now - HOUR, now + HOUR)
    assert [sum(column) for column in zip(*(counts for _, counts in matrix.times), strict=True)] == [
        4 * age for age in ages
    ]
