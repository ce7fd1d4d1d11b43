"""`postroad status`: a line per sink, its last hour, and what needs attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from postroad.admin import Count, totals
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.tables import Column, Row, only_ascii, show_rows
from postroad.ops.rendering.text import age, bars, count, number_text, one_line, time_text, without_secrets
from postroad.ops.runner import about, with_admin
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.admin import SinkReport, StatusReport, Totals
    from postroad.ops.settings import Settings

__all__ = ["status"]

_STALLED_SECONDS: Final = 120
"""A sink with this lag that has published nothing for two minutes is reported as stalled."""

_UNSERVED_SECONDS: Final = 86_400
"""A sink that no relay has served for this long is reported."""

_SINKS = (
    Column("sink"),
    Column("", whole=True, optional=True),
    *(
        Column(name, right=True, whole=True)
        for name in ("pending", "lag", "oldest unsent", "failing", "held", "dead", "last hour")
    ),
)
_LANES = (
    Column("sink"),
    *(
        Column(name, right=True, whole=True)
        for name in ("lane", "position", "pending", "lag", "failing", "held", "dead")
    ),
    Column("owner"),
)


@takes(*FOR_ANY_DATABASE)
def status(
    *,
    settings: Settings,
    by_lane: Annotated[bool, typer.Option("--by-lane", help="One line per lane: its position and its owner.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show pending, failing, held and dead messages, throughput, and what needs attention."""
    report = with_admin(settings, lambda admin: admin.status())
    if as_json:
        shown: dict[str, Any] = msgspec.to_builtins(report)
        typer.echo(in_json(shown | {"totals": totals(report.sinks)}))
    elif not report.sinks:
        typer.echo("There is no sink yet: the first `postroad relay` creates one. Until then all messages are kept.")
    elif by_lane:
        show_rows(_LANES, list(_lane_rows(report)))
    else:
        _show(report)


def _show(report: StatusReport) -> None:
    sinks = report.sinks
    rows = [Row([one_line(sink.sink), _mark(sink), *_cells(totals([sink]))], style=_style(sink)) for sink in sinks]
    if len(sinks) > 1:
        rows.append(Row(["all", "", *_cells(totals(sinks))], style="bold"))
    show_rows(_SINKS, rows)
    typer.echo()
    for sink in sinks:
        _show_last_hour(sink)
    notes = [*_notes(report)]
    if notes:
        typer.echo()
    for note in notes:
        typer.echo(f"! {note}")


def _lane_rows(report: StatusReport) -> Iterator[Row]:
    for sink in report.sinks:
        for lane in sink.lanes:
            numbers = [f"{number:,}" for number in (lane.failing, lane.held, lane.dead)]
            owner = ("PAUSED " if lane.paused else "") + str(lane.owner or "none")
            place = [one_line(sink.sink), str(lane.lane), f"{lane.position:,}"]
            yield Row([*place, number_text(lane.pending), age(lane.lag_seconds), *numbers, owner])


def _cells(sums: Totals) -> list[str]:
    return [
        number_text(Count(sums.pending, exact=sums.exact)),
        age(sums.lag_seconds),
        age(sums.oldest_unsent_seconds),
        f"{sums.failing:,}",
        f"{sums.held:,}",
        f"{sums.dead:,}",
        f"{sums.published_last_hour:,}",
    ]


def _mark(sink: SinkReport) -> str:
    return "PAUSED" if sink.paused else ""


def _style(sink: SinkReport) -> str:
    if any(lane.dead for lane in sink.lanes):
        return "red"
    return "yellow" if sink.paused or any(lane.failing or lane.held for lane in sink.lanes) else ""


def _show_last_hour(sink: SinkReport) -> None:
    minutes = sink.published_per_minute
    average, most = sum(minutes) / max(1, len(minutes)), max(minutes, default=0)
    name = one_line(sink.sink)
    typer.echo(f"{name!r}, published per minute: {average:,.1f} on average, {most:,} at most in the last hour")
    typer.echo(f"|{bars(minutes, plain=only_ascii())}|")


def _notes(report: StatusReport) -> Iterator[str]:
    for sink in report.sinks:
        yield from _notes_of_sink(sink, (report.at - sink.served_at).total_seconds())
    if report.scheduled.number:
        first = time_text(report.next_scheduled_at)
        yield f"{about(report.scheduled, 'scheduled message')}, the first due at {first}"


def _notes_of_sink(sink: SinkReport, unserved_seconds: float) -> Iterator[str]:
    sums, name = totals([sink]), one_line(sink.sink)
    if sink.paused:
        yield f"sink {name!r} is paused; `postroad resume {name}` resumes it"
    elif sums.lag_seconds > _STALLED_SECONDS and not any(sink.published_per_minute[-2:]):
        waiting = count(sums.pending, "message")
        yield f"sink {name!r}: {waiting} pending and none published; check that a relay runs, and its log"
    if unserved_seconds >= _UNSERVED_SECONDS:
        yield (
            f"sink {name!r}: no relay has served it for {age(unserved_seconds)}, so retention keeps all messages; "
            f"start a relay for it, or `postroad sink remove {name}`"
        )
    if sums.dead:
        yield f"sink {name!r}: {count(sums.dead, 'dead message')}; see `postroad dead list`"
    if sums.unroutable:
        yield (
            f"sink {name!r}: {count(sums.unroutable, 'message')} dropped because no consumer had subscribed; "
            "see `postroad messages --state dropped`"
        )
    for held in sink.held_keys:
        reason = f": {without_secrets(held.reason, 200)}" if held.reason else ""
        by = f"by {one_line(held.who)} since {time_text(held.since)}"
        yield f"sink {name!r}: key {one_line(held.key)!r} is held {by}{reason}"
