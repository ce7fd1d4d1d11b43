"""What metrics are made of: a histogram that counts in integers, and the values that exporters read. Pure.

Times are whole microseconds. A histogram is filled once per page, not once per message: `observe_ages` sorts a page's
times and counts by bisection, so that a message costs a comparison of integers and no call.
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
        microseconds = max(0, microseconds)
        self._counts[bisect_left(self._bounds_us, microseconds)] += 1
        self._sum_us += microseconds

    def observe_ages(self, times_us: Sequence[int], now_us: int) -> None:
        """Each of these times is so long ago: one observation for each. A time in the future counts as now."""
        if not times_us:
            return
        times, bounds, counts = sorted(times_us), self._bounds_us, self._counts
        lowest = bisect_left(bounds, max(0, now_us - times[-1]))
        highest = bisect_left(bounds, max(0, now_us - times[0]))
        before = 0
        for index in range(lowest, highest):  # empty when the whole page falls into one bucket
            within = len(times) - bisect_left(times, now_us - bounds[index])
            counts[index] += within - before
            before = within
        counts[highest] += len(times) - before
        if times[-1] > now_us:
            times = [min(time, now_us) for time in times]
        self._sum_us += now_us * len(times) - sum(times)

    def read(self) -> Buckets:
        """What was counted so far. From any thread."""
        return Buckets(self._bounds, tuple(self._counts), self._sum_us / 1_000_000)
