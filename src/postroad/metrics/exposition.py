"""Writes metrics in Prometheus's text format (version 0.0.4). Pure.

No library: any Prometheus, OpenTelemetry collector or agent reads this format.
"""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING, Final

from postroad.metrics.instruments import Buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from postroad.metrics.instruments import Family, Metric, Sample

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(families: Iterable[Family]) -> bytes:
    """The page that is scraped. A family without samples is left out."""
    lines = [line for family in families if family.samples for line in _lines(family)]
    return "".join(lines).encode(errors="backslashreplace")  # a sink's name may be no valid Unicode text


def _lines(family: Family) -> Iterator[str]:
    metric = family.metric
    yield f"# HELP {metric.name} {metric.help.translate(_IN_HELP)}\n"
    yield f"# TYPE {metric.name} {metric.kind}\n"
    for sample in family.samples:
        yield from _sample(metric, sample)


def _sample(metric: Metric, sample: Sample) -> Iterator[str]:
    labels = list(zip(metric.labels, sample.labels, strict=True))
    if not isinstance(sample.value, Buckets):
        yield f"{metric.name}{_labels(labels)} {_number(sample.value)}\n"
        return
    for bound, count in sample.value.cumulative:
        yield f"{metric.name}_bucket{_labels([*labels, ('le', bound)])} {count}\n"
    yield f"{metric.name}_sum{_labels(labels)} {_number(sample.value.sum)}\n"
    yield f"{metric.name}_count{_labels(labels)} {sample.value.total}\n"


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_IN_LABEL)}"' for name, value in labels) + "}"


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    if value in {inf, -inf}:
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
