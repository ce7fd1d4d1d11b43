"""A histogram counts what a plain loop over all observations would count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.metrics.instruments import DURATIONS, LATENCIES, Buckets, Histogram

NOW = 1_763_000_000_000_000
AGES = st.lists(st.integers(-5_000_000, 40_000_000_000) | st.sampled_from([round(b * 1e6) for b in LATENCIES]))


def counted_one_by_one(ages: list[int], bounds: tuple[float, ...]) -> tuple[int, ...]:
    counts = [0] * (len(bounds) + 1)
    for age in ages:
        counts[sum(round(bound * 1_000_000) < age for bound in bounds)] += 1
    return tuple(counts)


@given(AGES)
def test_a_page_is_counted_as_its_messages_would_be(ages: list[int]) -> None:
    page, single = Histogram(LATENCIES), Histogram(LATENCIES)
    page.observe_ages([NOW - age for age in ages], NOW, len(ages))
    for age in ages:
        single.observe(age)
    assert page.read() == single.read()
    assert page.read().counts == counted_one_by_one([max(0, age) for age in ages], LATENCIES)
    assert page.read().sum == sum(max(0, age) for age in ages) / 1_000_000


@given(st.lists(AGES, max_size=4))
def test_pages_are_added_up(pages: list[list[int]]) -> None:
    separately, at_once = Histogram(LATENCIES), Histogram(LATENCIES)
    for ages in pages:
        separately.observe_ages([NOW - age for age in ages], NOW, len(ages))
    ages = [NOW - age for ages in pages for age in ages]
    at_once.observe_ages(ages, NOW, len(ages))
    assert separately.read() == at_once.read()


def test_a_few_stand_for_all() -> None:
    histogram = Histogram((1.0, 10.0))
    histogram.observe_ages([NOW - 1_000_000, NOW - 2_000_000, NOW + 5, NOW - 20_000_000], NOW, 11)
    assert histogram.read() == Buckets((1.0, 10.0), (4, 2, 5), (2 * 1 + 2 * 2 + 2 * 0 + 5 * 20))


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((0.001, 1.0))
    for microseconds in (1000, 1001, 1_000_000, 1_000_001):
        histogram.observe(microseconds)
    assert histogram.read().counts == (1, 2, 1)


def test_buckets_as_prometheus_has_them() -> None:
    buckets = Buckets((0.0005, 1.0, 3600.0), (1, 0, 2, 4), 12.5)
    assert buckets.cumulative == [("0.0005", 1), ("1", 1), ("3600", 3), ("+Inf", 7)]
    assert buckets.total == 7


def test_bounds_ascend_and_differ_as_text() -> None:
    for bounds in (DURATIONS, LATENCIES):
        assert list(bounds) == sorted(set(bounds))
        assert len({f"{bound:g}" for bound in bounds}) == len(bounds)
        assert [float(f"{bound:g}") for bound in bounds] == list(bounds)
