"""What metrics are made of: a histogram that counts in integers, and the values that exporters read. Pure.

Times are whole microseconds. A histogram is filled once per page, not once per message: the times of a few messages
stand for those of all.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from postroad.stores.latency import LATENCIES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DURATIONS", "LATENCIES", "Buckets", "Family", "Histogram", "Kind", "Metric", "Sample"]

Kind = Literal["counter", "gauge", "histogram"]

DURATIONS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""The upper bounds of the buckets for how long something takes, in seconds."""


class Metric(NamedTuple):
    """A metric as it is declared in `catalog`."""

    name: str
    """In full, as Prometheus knows it; the name of a counter ends with _total."""
    kind: Kind
    labels: tuple[str, ...]
    help: str


class Buckets(NamedTuple):
    """What a histogram has counted."""

    bounds: tuple[float, ...]
    """In seconds. One more bucket, without a bound, follows."""
    counts: tuple[int, ...]
    """Of each bucket, the last one included; not cumulative."""
    sum: float
    """In seconds."""

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """The buckets as Prometheus has them: upper bound, and how many are not above it."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))

    @property
    def total(self) -> int:
        """How many were observed."""
        return sum(self.counts)


class Sample(NamedTuple):
    """A value of a metric."""

    labels: tuple[str, ...]
    """The labels' values, in the metric's order."""
    value: float | Buckets


class Family(NamedTuple):
    """A metric and its values at one moment."""

    metric: Metric
    samples: Sequence[Sample]


class Histogram:
    """Counts observations in buckets."""

    __slots__ = ("_bounds", "_bounds_us", "_counts", "_sum_us")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper bounds in seconds, ascending."""
        self._bounds = tuple(bounds)
        self._bounds_us = [round(bound * 1_000_000) for bound in bounds]
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum_us = 0

    def observe(self, microseconds: int) -> None:
        """Something took so long. A clock that was set back makes no negative observation."""
        self._add(max(0, microseconds), 1)

    def observe_ages(self, times_us: Sequence[int], now_us: int, number: int) -> None:
        """So many observations of how long ago something was. Each of the times stands for the same number of them, and
        the last one for the rest, too. A time in the future counts as now.
        """
        if not times_us:
            return
        share, rest = divmod(number, len(times_us))
        for time_us in times_us:
            self._add(max(0, now_us - time_us), share)
        self._add(max(0, now_us - times_us[-1]), rest)

    def _add(self, microseconds: int, number: int) -> None:
        self._counts[bisect_left(self._bounds_us, microseconds)] += number
        self._sum_us += microseconds * number

    def read(self) -> Buckets:
        """What was counted so far. From any thread."""
        return Buckets(self._bounds, tuple(self._counts), self._sum_us / 1_000_000)
