"""Metrics for a registry of prometheus_client, in a program that serves its metrics already (extra `metrics`).

REGISTRY.register(PrometheusCollector(metrics))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.errors import MissingExtra
from postroad.metrics.catalog import CATALOG
from postroad.metrics.instruments import Buckets, Family

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtra("postroad.metrics.prometheus", "metrics") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from postroad.metrics.collect import Metrics

__all__ = ["PrometheusCollector"]


class PrometheusCollector(Collector):
    """Reads `metrics` whenever the registry is scraped, in whichever thread. The values that come from the database are
    those of the last scrape's reading, if `metrics.database` is open.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        """The names, so that registering reads nothing."""
        return (_family(Family(metric, ())) for metric in CATALOG.values())

    def collect(self) -> Iterator[Metric]:
        """All metrics that have values."""
        return (_family(family) for family in self._metrics.read() if family.samples)


def _family(family: Family) -> Metric:
    metric = family.metric
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in family.samples:
            if isinstance(value, Buckets):
                histogram.add_metric(labels, buckets=value.cumulative, sum_value=value.sum)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in family.samples:
        if not isinstance(value, Buckets):
            plain.add_metric(labels, value)
    return plain
