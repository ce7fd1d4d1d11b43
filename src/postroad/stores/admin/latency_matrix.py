"""How long messages were on their way, by time, from the progress that lanes have recorded: for a heatmap."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.errors import InvalidSetting
from postroad.stores.admin.contract import LatencyMatrix
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.session import from_microseconds, to_microseconds
from postroad.stores.latency import LATENCIES, NUMBER_OF_BUCKETS

if TYPE_CHECKING:
    from datetime import datetime

    from postroad.stores.admin.session import Query

__all__ = ["latency_matrix"]

STEPS: Final = 60
"""Into so many steps the time is divided."""
MOST_ROWS: Final = 50_000
"""At most so many rows of progress are read, the newest: one per lane and second."""


async def latency_matrix(query: Query, sink: str, since: datetime, until: datetime) -> LatencyMatrix:
    await check_sink(query, sink)
    if until <= since:
        raise InvalidSetting(f"until is {until.isoformat()}; it must be later than since, {since.isoformat()}")
    begin, end = to_microseconds(since), to_microseconds(until)
    step = max(1_000_000, -(-(end - begin) // STEPS))
    found: dict[int, list[int]] = {}
    for number, bucket, messages in await query("latencies", sink, begin, end, step, MOST_ROWS):
        counts = found.setdefault(number, [0] * NUMBER_OF_BUCKETS)
        counts[min(bucket, NUMBER_OF_BUCKETS) - 1] += messages
    return LatencyMatrix(
        bounds=LATENCIES,
        step=timedelta(microseconds=step),
        times=[(from_microseconds(begin + number * step), found[number]) for number in sorted(found)],
    )
