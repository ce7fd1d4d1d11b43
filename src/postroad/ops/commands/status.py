"""`postroad status`: a line per sink, its last hour, and what needs attention, or that nothing does."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from postroad.admin import Count, notices, open_admin, totals
from postroad.commands import command_of, with_command
from postroad.errors import InvalidSetting, PostroadError
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, parse_seconds
from postroad.ops.rendering.tables import Column, Row, only_ascii, show_rows
from postroad.ops.rendering.text import age, bars, count, number_text, one_line, sentence_lines, time_text
from postroad.ops.runner import with_admin
from postroad.ops.terminal import as_json as in_json
from postroad.ops.terminal import output, print_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.admin import Notice, SinkReport, StatusReport, Totals
    from postroad.ops.settings import Settings

__all__ = ["notice_line", "status"]

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
    check: Annotated[bool, typer.Option("--check", help="Exit with code 1 if anything is wrong.")] = False,
    watch: Annotated[
        str | None,
        typer.Option(
            "--watch", metavar="[SECONDS]", help="Show it again every so many seconds, 2 by default, until Ctrl-C."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show pending, failing, held and dead messages, throughput, and what needs attention."""
    if watch is not None:
        if check:
            raise InvalidSetting("--check and --watch are both given; --check is for one status")
        seconds = parse_seconds("--watch", watch)
        with suppress(KeyboardInterrupt):
            asyncio.run(_watch(settings, seconds, by_lane=by_lane, as_json=as_json))
        return
    report = with_admin(settings, lambda admin: admin.status())
    _show_report(report, by_lane=by_lane, as_json=as_json)
    if check and any(notice.problem for notice in notices(report)):
        raise typer.Exit(1)


async def _watch(settings: Settings, seconds: float, *, by_lane: bool, as_json: bool) -> None:
    """Show the status again and again, also after the database was away. In JSON, each is one line."""
    while True:
        try:
            async with open_admin(settings.needed("database"), schema=settings.command.schema, connections=1) as admin:
                while True:
                    report = await admin.status()
                    _begin_again(report, as_json=as_json)
                    _show_report(report, by_lane=by_lane, as_json=as_json, compact=True)
                    sys.stdout.flush()
                    await asyncio.sleep(seconds)
        except InvalidSetting:
            raise
        except PostroadError as error:
            print_error(str(error), 1)
            await asyncio.sleep(seconds)


def _begin_again(report: StatusReport, *, as_json: bool) -> None:
    """On a terminal, erase the last one; in a pipe, say when the next one is from."""
    if as_json:
        return
    if sys.stdout.isatty():
        typer.echo("\x1b[H\x1b[2J", nl=False)
    typer.echo(f"{time_text(report.at)}")


def _show_report(report: StatusReport, *, by_lane: bool, as_json: bool, compact: bool = False) -> None:
    found = notices(report)
    if as_json:
        shown: dict[str, Any] = msgspec.to_builtins(report)
        shown |= {"totals": totals(report.sinks), "notices": [with_command(each, each.remedy) for each in found]}
        typer.echo(in_json(shown, compact=compact))
    elif not report.sinks:
        typer.echo("There is no sink yet: the first `postroad relay` creates one. Until then all messages are kept.")
    elif by_lane:
        show_rows(_LANES, list(_lane_rows(report)))
    else:
        _show(report, found)


def _show(report: StatusReport, found: Sequence[Notice]) -> None:
    sinks = report.sinks
    rows = [Row([one_line(sink.sink), _mark(sink), *_cells(totals([sink]))], style=_style(sink)) for sink in sinks]
    if len(sinks) > 1:
        rows.append(Row(["all", "", *_cells(totals(sinks))], style="bold"))
    show_rows(_SINKS, rows)
    typer.echo()
    for sink in sinks:
        _show_last_hour(sink)
    typer.echo()
    if not any(notice.problem for notice in found):
        typer.echo(_all_is_well(report))
    for notice in found:
        line = notice_line(notice)
        typer.echo("\n".join(sentence_lines(line, output().width)) if sys.stdout.isatty() else line)


def _all_is_well(report: StatusReport) -> str:
    relays, consumers = sum(sink.relays for sink in report.sinks), sum(each.alive for each in report.consumers)
    alive = [count(number, thing) for number, thing in ((relays, "relay"), (consumers, "consumer")) if number]
    running = f"; running: {', '.join(alive)}" if alive else ""
    return f"All is well{running}."


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


def notice_line(notice: Notice) -> str:
    """What is the case, since when, and what to do."""
    command = "" if notice.remedy is None else f" `{one_line(command_of(notice.remedy))}`"
    advice = f"; {notice.advice}{command}" if notice.advice or command else ""
    return f"{'!' if notice.problem else '-'} {notice.text}{advice}"
