"""The SDK exports what the page has."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from postroad.brokers.memory import MemoryBroker
from postroad.metrics import Metrics
from postroad.metrics.catalog import CATALOG
from postroad.metrics.instruments import Buckets
from postroad.metrics.otel import instrument
from postroad.relay import Relay
from tests.logs import MemoryLog, numbered


def exported(reader: InMemoryMetricReader) -> dict[tuple[Any, ...], float]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (metric.name, *sorted((point.attributes or {}).items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


async def test_the_sdk_exports_every_metric() -> None:
    metrics, log, reader = Metrics(), MemoryLog(), InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instrument(metrics, provider)
    await log.add(*numbered(*range(25)))
    await Relay(log.store, MemoryBroker(), listeners=[metrics]).run_until_empty()
    found = exported(reader)
    provider.shutdown()
    expected: dict[tuple[Any, ...], float] = {}
    for metric, family_samples in metrics.read():
        for labels, value in family_samples:
            named = tuple(sorted(zip(metric.labels, labels, strict=True)))
            if isinstance(value, Buckets):
                expected[f"{metric.name}_sum", *named] = value.sum
                expected[f"{metric.name}_count", *named] = value.total
                for bound, count in value.cumulative:
                    expected[f"{metric.name}_bucket", *sorted((*named, ("le", bound)))] = count
            else:
                expected[metric.name.removesuffix("_total"), *named] = value
    assert found == expected
    assert {name for name, *_ in found} <= {
        part
        for name in CATALOG
        for part in (name.removesuffix("_total"), *(f"{name}_{e}" for e in ("bucket", "sum", "count")))
    }
