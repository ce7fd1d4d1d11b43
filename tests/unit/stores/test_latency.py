"""How a page's messages are counted by age."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.stores.latency import LATENCIES, NUMBER_OF_BUCKETS, SAMPLES, count_ages

NOW = 10**15


def page(*ages_us: int) -> Any:
    return [SimpleNamespace(created_us=NOW - age) for age in ages_us]


@pytest.mark.parametrize(
    ("age", "bucket"), [(0, 0), (-5, 0), (1000, 0), (1001, 1), (2500, 1), (10**6, 9), (10**13, NUMBER_OF_BUCKETS - 1)]
)
def test_each_age_has_its_bucket(age: int, bucket: int) -> None:
    counts = [0] * NUMBER_OF_BUCKETS
    count_ages(counts, page(age), 1, NOW)
    assert counts.index(1) == bucket


@given(st.lists(st.integers(-10, 10**11), min_size=1, max_size=200), st.data())
def test_no_message_is_lost_or_counted_twice(ages: list[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(ages)))
    counts = [0] * NUMBER_OF_BUCKETS
    count_ages(counts, page(*ages), number, NOW)
    assert sum(counts) == number


def test_a_small_page_is_counted_exactly_and_a_large_one_by_a_few() -> None:
    counts = [0] * NUMBER_OF_BUCKETS
    count_ages(counts, page(*[10**6] * 10, *[10**7] * 5), 15, NOW)
    assert [number for number in counts if number] == [10, 5]
    seen = []

    class Seen:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def created_us(self) -> int:
            seen.append(self.number)
            return NOW

    many: Any = [Seen(number) for number in range(1000)]
    count_ages(counts, many, 1000, NOW)
    assert len(set(seen)) <= SAMPLES + 1


def test_the_bounds_grow() -> None:
    assert list(LATENCIES) == sorted(set(LATENCIES))
