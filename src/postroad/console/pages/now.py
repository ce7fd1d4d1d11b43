"""Now: one sentence per sink: what is wrong, since when, and the button for it; throughput and lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.admin import totals
from postroad.commands import command_of
from postroad.console.charts import Mark, throughput
from postroad.console.remedies import button_of
from postroad.console.text import argument_text
from postroad.stores.admin.snapshot import added_per_second, published_per_second
from postroad.wording import age, count, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from markupsafe import Markup
    from starlette.responses import Response

    from postroad.admin import AuditEntry, Notice, SinkReport, Totals
    from postroad.console.context import Context
    from postroad.console.database import Look
    from postroad.console.remedies import Button

__all__ = ["now", "sentence", "view"]


class Advice(NamedTuple):
    """A notice, with what can be done about it."""

    notice: Notice
    text: str
    """Without the name of its sink, which stands above it."""
    button: Button | None
    command: str | None


class SinkView(NamedTuple):
    """A sink, as the page shows it."""

    report: SinkReport
    sums: Totals
    problems: Sequence[Advice]
    notes: Sequence[Advice]
    sentence: str
    per_second: float
    chart: Markup


async def now(context: Context) -> Response:
    """The page."""
    look = await context.database.poller.latest()
    return context.page("now.html", **view(look))


def view(look: Look) -> dict[str, Any]:
    """What the live part of the page shows."""
    advice = [_advice(each) for each in look.notices]
    general = [each for each in advice if each.notice.sink is None]
    snapshot = look.snapshot
    if snapshot is None:
        return {"look": look, "sinks": [], "general": general, "added": None, "recent": [], "at": None}
    return {
        "look": look,
        "sinks": [_sink(sink, look, [each for each in advice if each.notice.sink == sink.sink]) for sink in
                  snapshot.report.sinks],
        "general": general,
        "added": added_per_second(snapshot, look.before),
        "recent": snapshot.audit[:5],
        "at": snapshot.report.at,
    }  # fmt: skip


def _advice(notice: Notice) -> Advice:
    text = notice.text.removeprefix(f"sink {one_line(notice.sink or '')!r}")
    text = text.removeprefix(":").strip().removeprefix("is ")
    text = text[:1].upper() + text[1:]
    if notice.remedy is None:
        return Advice(notice, text, None, None)
    return Advice(notice, text, button_of(notice.remedy), command_of(notice.remedy))


def _sink(sink: SinkReport, look: Look, advice: Sequence[Advice]) -> SinkView:
    snapshot = look.snapshot
    assert snapshot is not None  # noqa: S101 - the caller has one
    sums = totals([sink])
    rate = published_per_second(sink, snapshot, look.before)
    marks = _marks(snapshot.audit, snapshot.report.at, sink.sink)
    return SinkView(
        sink,
        sums,
        [each for each in advice if each.notice.problem],
        [each for each in advice if not each.notice.problem],
        sentence(sink, sums),
        rate,
        throughput(sink.published_per_minute, marks, name=sink.sink),
    )


def sentence(sink: SinkReport, sums: Totals) -> str:
    """What a sink without a problem does."""
    hour = f"{count(sums.published_last_hour, 'message')} published in the last hour"
    if sums.pending:
        return (
            f"Publishing: {count(sums.pending, 'message')} to go, the oldest waits for {age(sums.lag_seconds)}; {hour}."
        )
    if sums.published_last_hour:
        return f"Everything is published; {hour}."
    if not sink.relays:
        return "No relay runs, and no message waits."
    return "Ready: a relay waits for messages, and none has come in the last hour."


def _marks(audit: Sequence[AuditEntry], at: datetime, sink: str) -> list[Mark]:
    """What operators did within the hour, as far as it concerns the sink."""
    return [
        Mark((at - entry.at).total_seconds() / 60, f"{entry.who}: {entry.command} {argument_text(entry.arguments)}")
        for entry in audit
        if entry.arguments.get("sink") in (None, sink)
    ]
