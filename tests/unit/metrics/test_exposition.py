"""What is written is what Prometheus's own parser reads, whatever a sink is called."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from postroad.metrics.catalog import CATALOG
from postroad.metrics.exposition import exposition
from postroad.metrics.instruments import LATENCIES, Buckets, Family, Histogram, Metric, Sample

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(0, 2**62) | st.floats(allow_nan=False)


@given(st.dictionaries(st.tuples(NAMES, NAMES), NUMBERS, max_size=5), NAMES)
def test_a_gauge_is_read_back(values: dict[tuple[str, str], float], help: str) -> None:
    metric = Metric("postroad_test", "gauge", ("sink", "lane"), help)
    text = exposition([Family(metric, [Sample(labels, value) for labels, value in values.items()])]).decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) == bool(values)
    for family in families:
        assert (family.name, family.type) == ("postroad_test", "gauge")
        assert {(s.labels["sink"], s.labels["lane"]): s.value for s in family.samples} == {
            labels: pytest.approx(value) for labels, value in values.items()
        }


@given(st.lists(st.integers(0, 10**11)), NAMES)
def test_a_histogram_is_read_back(observed: list[int], sink: str) -> None:
    histogram = Histogram(LATENCIES)
    for microseconds in observed:
        histogram.observe(microseconds)
    metric = Metric("postroad_test_seconds", "histogram", ("sink",), "For tests.")
    text = exposition([Family(metric, [Sample((sink,), histogram.read())])]).decode()
    (family,) = text_string_to_metric_families(text)
    found = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert all(sample.labels["sink"] == sink for sample in family.samples)
    assert found["postroad_test_seconds_count"] == found["+Inf"] == len(observed)
    assert found["postroad_test_seconds_sum"] == pytest.approx(sum(observed) / 1e6)
    assert found["1"] == sum(microseconds <= 1_000_000 for microseconds in observed)


def test_a_counter_keeps_its_name() -> None:
    metric = CATALOG["postroad_relay_dead_messages_total"]
    text = exposition([Family(metric, [Sample(("default",), 3)])]).decode()
    assert text.splitlines()[1:] == [
        "# TYPE postroad_relay_dead_messages_total counter",
        'postroad_relay_dead_messages_total{sink="default"} 3',
    ]


def test_numbers_that_are_no_numbers() -> None:
    metric = Metric("postroad_test", "gauge", ("n",), "For tests.")
    samples = [Sample((str(value),), value) for value in (math.inf, -math.inf, math.nan)]
    lines = exposition([Family(metric, samples)]).decode().splitlines()[2:]
    assert [line.split()[-1] for line in lines] == ["+Inf", "-Inf", "NaN"]


def test_a_name_that_is_no_valid_text_does_not_fail() -> None:
    metric = Metric("postroad_test", "gauge", ("sink",), "For tests.")
    assert b'{sink="\\ud800"} 1' in exposition([Family(metric, [Sample(("\ud800",), 1)])])


def test_what_has_no_value_is_left_out() -> None:
    assert exposition([Family(metric, []) for metric in CATALOG.values()]) == b""


def test_every_metric_of_the_catalog_can_be_written() -> None:
    families = [
        Family(
            metric, [Sample(tuple(metric.labels), Buckets((1.0,), (1, 2), 3.5) if metric.kind == "histogram" else 1)]
        )
        for metric in CATALOG.values()
    ]
    read = {family.name: family.type for family in text_string_to_metric_families(exposition(families).decode())}
    assert read == {metric.name.removesuffix("_total"): metric.kind for metric in CATALOG.values()}
