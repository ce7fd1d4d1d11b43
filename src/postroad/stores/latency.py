"""How long messages were on their way, from being added to the confirm: counted in buckets, a few per page. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import StoredMessage

__all__ = ["LATENCIES", "NUMBER_OF_BUCKETS", "SAMPLES", "count_ages", "sample"]

LATENCIES: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    21_600.0,
)  # fmt: skip
"""The upper bounds of the buckets, in seconds. One more bucket, without a bound, follows."""
NUMBER_OF_BUCKETS: Final = len(LATENCIES) + 1
SAMPLES: Final = 16
"""Of a page, the ages of so many messages are looked at; each stands for its neighbours."""

_BOUNDS_US: Final = [round(bound * 1_000_000) for bound in LATENCIES]


def sample(messages: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """A few messages of a page, evenly spread; of a short page, all."""
    return messages[:: max(1, len(messages) // SAMPLES)]


def count_ages(counts: list[int], messages: Sequence[StoredMessage], number: int, now_us: int) -> None:
    """Add `number` messages of a page to the buckets. A time in the future counts as now."""
    if not number:
        return
    times = [message.created_us for message in sample(messages)]
    bucket = bisect_left(_BOUNDS_US, now_us - min(times))
    if bucket == bisect_left(_BOUNDS_US, now_us - max(times)):  # as nearly always
        counts[bucket] += number
        return
    share, rest = divmod(number, len(times))
    for time_us in times:
        counts[bisect_left(_BOUNDS_US, now_us - time_us)] += share
    counts[bisect_left(_BOUNDS_US, now_us - times[-1])] += rest
