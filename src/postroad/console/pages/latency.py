"""Latency: how long messages were on their way, from commit to confirm, as a heatmap for each sink."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.console.charts import Cell, heatmap
from postroad.console.pages.change import given_to
from postroad.errors import InvalidSetting
from postroad.wording import count

if TYPE_CHECKING:
    from datetime import datetime

    from markupsafe import Markup
    from starlette.responses import Response

    from postroad.admin import LatencyMatrix
    from postroad.console.context import Context

__all__ = ["chart_of", "latency"]

SPANS: Final = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": timedelta(hours=24)}


async def latency(context: Context) -> Response:
    """The page."""
    admin, name = await context.database.admin(), given_to(context).text("span") or "1h"
    if name not in SPANS:
        raise InvalidSetting(f"span is {name!r}; it must be {', '.join(SPANS)}")
    look = await context.database.poller.latest()
    charts: list[tuple[str, Markup]] = []
    for sink in await admin.sinks():
        if look.snapshot is None:
            break
        until = look.snapshot.report.at
        found = await admin.latency(sink, until - SPANS[name], until)
        if found.times:
            charts.append((sink, chart_of(found, until - SPANS[name], until)))
    return context.page("latency.html", charts=charts, spans=SPANS, span=name)


def chart_of(found: LatencyMatrix, since: datetime, until: datetime) -> Markup:
    """The heatmap: times from left to right, lengths of time from the bottom up."""
    labels = [f"\u2264 {_seconds(bound)}" for bound in found.bounds] + [f"> {_seconds(found.bounds[-1])}"]
    used = [at for _, numbers in found.times for at, number in enumerate(numbers) if number]
    lowest, highest = min(used, default=0), max(used, default=0)
    steps = max(1, int((until - since) / found.step))
    total = sum(sum(numbers) for _, numbers in found.times)
    cells = [
        Cell(
            min(steps - 1, max(0, int((time - since) / found.step))),
            at - lowest,
            number,
            f"{time:%H:%M:%S} UTC, {labels[at]}: {count(number, 'message')}",
        )
        for time, numbers in found.times
        for at, number in enumerate(numbers)
    ]
    return heatmap(
        cells,
        columns=[f"{since:%H:%M} UTC", *([""] * (steps - 2)), f"{until:%H:%M} UTC"],
        rows=labels[lowest : highest + 1],
        title="Latency",
        description=f"{count(total, 'message')}, most of them {_most(found, labels)}",
    )


def _most(found: LatencyMatrix, labels: list[str]) -> str:
    sums = [sum(numbers[at] for _, numbers in found.times) for at in range(len(labels))]
    return labels[sums.index(max(sums))]


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min"
