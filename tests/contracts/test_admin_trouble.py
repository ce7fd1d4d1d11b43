"""Failures in groups, on SQLite and two versions of PostgreSQL: what is grouped, and that a group can be acted on."""

from __future__ import annotations

import pytest

from postroad import InvalidSetting
from postroad.lifecycle import State
from postroad.retry import Backoff
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import Count, Done, Filter
from postroad.stores.admin.error_patterns import normalise_error
from tests.contracts.test_admin import LATER, ME, at, id_of, ops, run_relay, states
from tests.logs import Arrivals, Log, log_fixture, numbered

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")


def failing() -> Arrivals:
    """Refuses odd numbers with one error and even ones with another, and takes those above 10."""
    broker = Arrivals()

    def reason(number: int) -> str | None:
        if number > 10:
            return None
        return f"'{number}' is not known at 10.0.0.{number}:80" if number % 2 else f"no room for {number} bytes"

    broker.refuse(lambda message: reason(int(message.payload)))
    return broker


async def test_failures_are_grouped_by_their_errors_without_values(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, 5, 11))
    await run_relay(log, failing(), retry=Backoff(max_attempts=1))
    await log.add(*numbered(4, 6))
    await run_relay(log, failing(), retry=LATER)
    unknown, full = await ops.trouble()
    assert (unknown.pattern, full.pattern) == ("<value> is not known at <address>", "no room for <n> bytes")
    assert (unknown.sink, unknown.count, unknown.states) == ("default", Count(3), {State.DEAD: 3})
    assert full.states == {State.DEAD: 1, State.RETRYING: 2}
    assert normalise_error(unknown.example) == unknown.pattern != unknown.example
    assert unknown.types == [(await at(ops, 1)).type]
    assert set(unknown.ids) == {await id_of(ops, position) for position in (1, 3, 4)}
    assert unknown.first_at <= unknown.last_at
    assert [group.pattern for group in await ops.trouble("default", 1)] == [unknown.pattern], "the largest"
    with pytest.raises(InvalidSetting, match="there is no sink 'none'"):
        await ops.trouble("none")


async def test_a_group_is_listed_counted_retried_and_dropped(log: Log, ops: Admin) -> None:
    await log.add(*numbered(1, 2, 3, 4))
    await run_relay(log, failing(), retry=Backoff(max_attempts=1))
    group = Filter(sink="default", error_pattern="<value> is not known at <address>")
    assert {row.position for row in (await ops.messages(group)).messages} == {1, 3}
    assert [row.position for row in (await ops.messages(group, 1)).messages] == [3]
    assert [row.position for row in (await ops.messages(group, below=3)).messages] == [1]
    assert await ops.count(group) == Count(2)
    assert await ops.preview_dead(group) == Count(2)
    assert await ops.drop(group, ME) == Done(2)
    assert await states(ops, all=True) == {1: "dropped", 2: "dead", 3: "dropped", 4: "dead"}
    other = Filter(error_pattern="no room for <n> bytes", ids=[await id_of(ops, 1), await id_of(ops, 2)])
    assert await ops.retry(other, ME) == Done(1)
    assert await states(ops, all=True) == {1: "dropped", 2: "retrying", 3: "dropped", 4: "dead"}
    assert await ops.preview_dead(Filter(error_pattern="no room for 2 bytes")) == Count(0)


async def test_bounds(log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.add(*numbered(*range(1, 8)))
    await run_relay(log, failing(), retry=Backoff(max_attempts=1))
    which = Filter(error_pattern="<value> is not known at <address>")
    monkeypatch.setattr("postroad.stores.admin.trouble.MOST_GROUPED", 3)
    assert [(group.count.number, group.count.exact) for group in await ops.trouble()] == [(2, False), (1, False)]
    monkeypatch.setattr("postroad.stores.admin.inspect.SCAN_LIMIT", 3)
    assert await ops.count(which) == Count(2, exact=False)
    monkeypatch.setattr("postroad.stores.admin.inspect.SAMPLE", 3)
    page = await ops.messages(which)
    assert ([row.position for row in page.messages], page.looked_back_to) == ([7, 5], 5)
    page = await ops.messages(which, below=5)
    assert ([row.position for row in page.messages], page.looked_back_to) == ([3], 2)
    monkeypatch.setattr("postroad.stores.admin.change.BATCH", 2)
    assert await ops.drop(which, ME) == Done(4), "a change reads all"


async def test_no_trouble(log: Log, ops: Admin) -> None:
    assert await ops.trouble() == []
    await log.add(*numbered(11))
    await run_relay(log, failing())
    assert await ops.trouble() == []
