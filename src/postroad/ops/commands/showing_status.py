"""How the state of everything looks: a line per sink, its last hour, and below what needs a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer

from postroad.ops.insights import totals
from postroad.ops.showing import age, bars, count, one_line, said, when
from postroad.ops.tables import Column, Row, only_ascii, show_rows
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.ops.insights import Status, Totals
    from postroad.stores.operating import Count, SinkReport

__all__ = ["show_lanes", "show_status", "status_for_programs"]

_STANDING_STILL = 120
"""Seconds of lag, without anything published in the last minutes, from which on it is said."""

_UNSERVED = 86_400
"""Seconds without a relay, from which on it is said."""

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
    *(Column(name, right=True, whole=True) for name in ("lane", "position", "pending", "lag")),
    *(Column(name, right=True, whole=True) for name in ("failing", "held", "dead")),
    Column("owner"),
)


def status_for_programs(status: Status) -> str:
    """All of it as JSON."""
    report: dict[str, Any] = msgspec.to_builtins(status.report)
    return in_json(report | {"totals": status.totals})


def show_status(status: Status) -> None:
    """All of it for people."""
    sinks = status.report.sinks
    if not sinks:
        typer.echo("There is no sink yet: the first `postroad relay` creates one. Until then all messages are kept.")
        return
    rows = [Row([one_line(sink.sink), _mark(sink), *_numbers(totals([sink]))], style=_style(sink)) for sink in sinks]
    if len(sinks) > 1:
        rows.append(Row(["all", "", *_numbers(status.totals)], style="bold"))
    show_rows(_SINKS, rows)
    typer.echo()
    for sink in sinks:
        _show_last_hour(sink)
    notes = [*_notes(status)]
    if notes:
        typer.echo()
    for note in notes:
        typer.echo(f"! {note}")


def show_lanes(status: Status) -> None:
    """A line per lane."""
    rows = [
        Row(
            [
                one_line(sink.sink),
                str(lane.lane),
                f"{lane.position:,}",
                _about(lane.pending),
                age(lane.lag_seconds),
                f"{lane.failing:,}",
                f"{lane.held:,}",
                f"{lane.dead:,}",
                ("PAUSED " if lane.paused else "") + str(lane.owner or "none"),
            ]
        )
        for sink in status.report.sinks
        for lane in sink.lanes
    ]
    show_rows(_LANES, rows)


def _numbers(sums: Totals) -> list[str]:
    return [
        f"{'' if sums.exact else '~'}{sums.pending:,}",
        age(sums.lag_seconds),
        age(sums.oldest_unsent_seconds),
        f"{sums.failing:,}",
        f"{sums.held:,}",
        f"{sums.dead:,}",
        f"{sums.published_last_hour:,}",
    ]


def _about(number: Count) -> str:
    return f"{'' if number.exact else '~'}{number.number:,}"


def _paused(sink: SinkReport) -> bool:
    return any(lane.paused for lane in sink.lanes)


def _mark(sink: SinkReport) -> str:
    return "PAUSED" if _paused(sink) else ""


def _style(sink: SinkReport) -> str:
    if any(lane.dead for lane in sink.lanes):
        return "red"
    return "yellow" if _paused(sink) or any(lane.failing or lane.held for lane in sink.lanes) else ""


def _show_last_hour(sink: SinkReport) -> None:
    minutes = sink.published_per_minute
    average, most = sum(minutes) / max(1, len(minutes)), max(minutes, default=0)
    name = one_line(sink.sink)
    typer.echo(f"{name!r}, published per minute: {average:,.1f} on average, {most:,} at most in the last hour")
    typer.echo(f"|{bars(minutes, plain=only_ascii())}|")


def _notes(status: Status) -> Iterator[str]:
    for sink in status.report.sinks:
        sums, name = totals([sink]), one_line(sink.sink)
        if _paused(sink):
            yield f"sink {name!r} is paused; `postroad resume {name}` lets it go on"
        elif sums.lag_seconds > _STANDING_STILL and not any(sink.published_per_minute[-2:]):
            waiting = count(sums.pending, "message")
            yield f"sink {name!r}: {waiting} wait and none moves; is a relay running? its log says why"
        unserved = (status.report.at - sink.served_at).total_seconds()
        if unserved >= _UNSERVED:
            yield (
                f"sink {name!r}: no relay has served it for {age(unserved)}, and retention keeps all messages for it; "
                f"start one, or `postroad sink remove {name}`"
            )
        if sums.dead:
            yield f"sink {name!r}: {count(sums.dead, 'message')} dead, which need a person; `postroad dead list`"
        if sums.unroutable:
            yield (
                f"sink {name!r}: {count(sums.unroutable, 'message')} dropped, to which no consumer had subscribed; "
                "`postroad messages --state dropped`"
            )
        for held in sink.held_keys:
            why = f": {said(held.reason, 200)}" if held.reason else ""
            by = f"by {one_line(held.who)} since {when(held.since)}"
            yield f"sink {name!r}: key {one_line(held.key)!r} is held {by}{why}"
    if status.report.scheduled.number:
        first = when(status.report.next_scheduled_at)
        yield f"{_about(status.report.scheduled)} to be sent later, the first at {first}"
