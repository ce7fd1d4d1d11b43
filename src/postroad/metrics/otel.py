"""Metrics as OpenTelemetry's observable instruments (extra `otel`): only the API; SDK and exporter are the program's.

    instrument(metrics)

Names are those of Prometheus, counters without `_total`. The API has no observable histogram, so a histogram becomes
three counters: `…_bucket` with the attribute `le`, `…_sum` and `…_count`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from postroad.errors import MissingExtra
from postroad.metrics.catalog import CATALOG
from postroad.metrics.instruments import Buckets
from postroad.version import __version__

try:
    from opentelemetry.metrics import Observation, get_meter
except ImportError as error:
    raise MissingExtra("postroad.metrics.otel", "otel") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

    from postroad.metrics.collect import Metrics
    from postroad.metrics.instruments import Family, Metric, Sample

    Callback = Callable[[CallbackOptions], Iterable[Observation]]

__all__ = ["instrument"]

SHARED_SECONDS: Final = 0.5


def instrument(metrics: Metrics, meter_provider: MeterProvider | None = None) -> None:
    """Create an instrument for each metric, of this provider or the global one. Call it once."""
    meter, readings = get_meter("postroad", __version__, meter_provider=meter_provider), _Readings(metrics)
    for metric in CATALOG.values():
        _create(meter, readings, metric)


class _Readings:
    """An export calls one callback per instrument: they share a reading."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._families: dict[str, Family] = {}
        self._read_at = float("-inf")

    def of(self, metric: Metric) -> Family:
        if time.monotonic() - self._read_at > SHARED_SECONDS:
            self._families = {family.metric.name: family for family in self._metrics.read()}
            self._read_at = time.monotonic()
        return self._families[metric.name]


def _create(meter: Meter, readings: _Readings, metric: Metric) -> None:
    unit = "s" if metric.name.removesuffix("_total").endswith("_seconds") else "By" if "bytes" in metric.name else "1"
    if metric.kind == "gauge":
        meter.create_observable_gauge(metric.name, [_callback(readings, metric, _value)], unit, metric.help)
    elif metric.kind == "counter":
        name = metric.name.removesuffix("_total")
        meter.create_observable_counter(name, [_callback(readings, metric, _value)], unit, metric.help)
    else:
        for part, read, of in (("bucket", _buckets, "1"), ("sum", _sum, unit), ("count", _count, "1")):
            meter.create_observable_counter(
                f"{metric.name}_{part}", [_callback(readings, metric, read)], of, metric.help
            )


def _callback(
    readings: _Readings, metric: Metric, read: Callable[[dict[str, str], Sample], Iterable[Observation]]
) -> Callback:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for sample in readings.of(metric).samples:
            yield from read(dict(zip(metric.labels, sample.labels, strict=True)), sample)

    return observe


def _value(attributes: dict[str, str], sample: Sample) -> Iterator[Observation]:
    if not isinstance(sample.value, Buckets):
        yield Observation(sample.value, attributes)


def _buckets(attributes: dict[str, str], sample: Sample) -> Iterator[Observation]:
    if isinstance(sample.value, Buckets):
        for bound, count in sample.value.cumulative:
            yield Observation(count, {**attributes, "le": bound})


def _sum(attributes: dict[str, str], sample: Sample) -> Iterator[Observation]:
    if isinstance(sample.value, Buckets):
        yield Observation(sample.value.sum, attributes)


def _count(attributes: dict[str, str], sample: Sample) -> Iterator[Observation]:
    if isinstance(sample.value, Buckets):
        yield Observation(sample.value.total, attributes)
