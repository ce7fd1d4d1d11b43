"""benchmarks/scale.py computes what it says, the same each time, and docs/scale.md has its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale import Costs, Machine, catch_up, database_rate, plan, report, shard_of, skewed, spread

SHARDS = [3, 0, 0]  # of other languages, too: CRC-32 modulo 7
PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "lines"), report().items())
def test_the_page_has_the_table(name: str, lines: list[str]) -> None:
    assert "\n".join(lines) in PAGE, f"{name}\n" + "\n".join(lines)


def test_the_costs_are_those_that_were_measured() -> None:
    measured = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for figure in ("| 32.5 µs |", "2.8 + 3.3 µs", "2.2 + 16.3 µs", "| 17.7 µs |", "| 11,812 ("):
        assert figure in measured, "docs/scale.md and Costs are to be computed again"


def test_a_database_is_limited_by_what_it_has_least_of() -> None:
    costs = Costs()
    rate, limit = database_rate(costs, Machine(cores=1000))
    assert (limit, round(rate * costs.wal_bytes)) == ("write-ahead log", 120_000_000)
    assert database_rate(costs, Machine(), sinks=2)[0] < database_rate(costs, Machine())[0]


def test_a_plan_has_a_relay_that_may_fail_and_grows_with_the_rate() -> None:
    plans = [plan(rate, Costs(), Machine()) for rate in (1, 1_000, 100_000, 1_000_000)]
    assert plans == sorted(plans)
    assert all(each.relays >= 2 * each.databases for each in plans)


def test_no_message_is_lost_or_moved_by_sharding() -> None:
    keys = skewed(1_000, 100_000)
    assert sum(spread(keys, 7)) == sum(keys.values())
    assert [shard_of(key, 7) for key in ("customer-1", "customer-2", "")] == SHARDS
    assert {shard_of(key, 7) for key in keys} == set(range(7))


def test_a_backlog_ends_only_if_more_is_drained_than_added() -> None:
    assert catch_up(18_000_000, 5_000, 10_000) == 3_600
    with pytest.raises(ValueError, match="never ends if 5,000 messages/s"):
        catch_up(1, 5_000, 5_000)
