"""Names and labels follow Prometheus's rules, and no label can have an unbounded number of values."""

from __future__ import annotations

import re

import pytest

from postroad.metrics.catalog import CATALOG
from postroad.metrics.instruments import Metric

LABELS = {"sink", "lane", "cause", "state", "table", "consumer", "outcome", "version", "python"}


@pytest.mark.parametrize("metric", CATALOG.values(), ids=lambda metric: metric.name)
def test_the_metric_follows_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"postroad_[a-z_]+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.kind != "histogram" or metric.name.endswith("_seconds")
    assert set(metric.labels) <= LABELS
    assert re.fullmatch(r"[A-Z0-9].*\.", metric.help)
