"""`postroad sink`: list, retarget or remove sinks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from postroad.admin import Count, totals
from postroad.brokers.registry import known_schemes, publisher_for, url_examples
from postroad.errors import InvalidSetting
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, SinkName  # noqa: TC001 - options are read from annotations
from postroad.ops.rendering.tables import Column, Row, show_rows
from postroad.ops.rendering.text import age, number_text, one_line
from postroad.ops.runner import Plan, Planning, about, changes, with_admin
from postroad.ops.terminal import Command, Group
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from datetime import datetime

    from postroad.admin import Admin, SinkReport
    from postroad.ops.settings import Settings

__all__ = ["sink"]

sink = typer.Typer(
    cls=Group, no_args_is_help=True, help="List sinks and their destinations; retarget or remove a sink."
)

_SINKS = (
    Column("sink"),
    Column("destination"),
    *(Column(name, right=True, whole=True) for name in ("lanes", "relays", "last served", "undelivered")),
)
_UNKNOWN = "(unknown)"


@sink.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_sinks(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the sinks: destination, lanes, relays, when a relay last served it, and undelivered messages."""
    report = with_admin(settings, lambda admin: admin.status())
    if as_json:
        typer.echo(in_json({"sinks": [msgspec.to_builtins(each) for each in report.sinks]}))
    elif report.sinks:
        show_rows(_SINKS, [Row(_cells(each, report.at)) for each in report.sinks])
    else:
        typer.echo("There is no sink yet: the first `postroad relay` creates one.")


def _cells(report: SinkReport, now: datetime) -> list[str]:
    served = "now" if report.relays else f"{age((now - report.served_at).total_seconds())} ago"
    lanes, relays = str(len(report.lanes)), str(report.relays)
    return [one_line(report.sink), _destination(report), lanes, relays, served, number_text(_undelivered(report))]


@sink.command("retarget", cls=Command)
@changes(reason_required=True)
def retarget(
    *,
    settings: Settings,
    sink: SinkName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="The broker's URL, as its relays will use it; for handlers in a relay, local:NAME.",
        ),
    ],
) -> Planning:
    """Change where a sink delivers to: its undelivered messages go there. Its relays must be stopped."""
    destination = _destination_of(settings, to)

    async def plan(admin: Admin) -> Plan:
        report = await admin.preview_retarget(sink, destination)
        change = (
            f"from {_destination(report)} to {one_line(destination)}, "
            f"with {about(_undelivered(report), 'undelivered message')}"
        )
        return Plan(
            changes=Count(1),
            would=f"would retarget sink {one_line(sink)!r} {change}",
            question=f"Retarget sink {one_line(sink)!r} {change}?",
            act=lambda admin, by, _: admin.retarget(sink, destination, by),
            thing="lane",
            done=lambda _: f"sink {one_line(sink)!r} delivers to {one_line(destination)} now",
        )

    return plan


def _destination_of(settings: Settings, to: str) -> str:
    """The destination that a publisher for this URL, with its settings, reports.

    The destination is stored and shown. A URL that is not understood is neither, nor is it quoted in the error,
    because it may contain a password.
    """
    scheme, separator, rest = to.strip().partition("://")
    url = f"{scheme.lower()}{separator}{rest}"
    if separator and scheme.lower() in known_schemes():
        return publisher_for(url, settings.for_broker(url)).destination
    if re.fullmatch(r"local:\S.*", url) and url.isprintable() and not separator:
        return url
    raise InvalidSetting(
        "--to is not a destination (it is not shown, because it may contain a password); it must look like "
        f"{url_examples('local:NAME')}",
        settings=("to",),
    )


@sink.command("remove", cls=Command)
@changes(reason_required=True)
def remove(*, settings: Settings, sink: SinkName) -> Planning:
    """Remove a sink that is not needed any more, so that retention does not wait for it. Its relays must be stopped."""

    async def plan(admin: Admin) -> Plan:
        report = await admin.preview_remove_sink(sink)
        loss = _loss(report)
        is_last = len(await admin.sinks()) == 1
        last = " It is the only sink: retention deletes nothing until there is another." if is_last else ""
        name = f"sink {one_line(sink)!r}, which delivers to {_destination(report)}"
        return Plan(
            changes=Count(1),
            would=f"{name}, would be removed; {loss}.{last}".rstrip("."),
            question=f"Remove {name}? This can't be undone: {loss}.{last}",
            act=lambda admin, by, _: admin.remove_sink(sink, by),
            thing="lane",
            done=lambda lanes: f"removed sink {one_line(sink)!r} ({lanes}); {loss}",
        )

    return plan


def _loss(report: SinkReport) -> str:
    """The undelivered messages, by state."""
    sums = totals([report])
    states = {"pending": sums.pending, "failing": sums.failing, "held": sums.held, "dead": sums.dead}
    some = ", ".join(f"{number:,} {state}" for state, number in states.items() if number)
    if not some:
        return "it has delivered every message"
    return f"{about(_undelivered(report), 'message')} will never be delivered there ({some})"


def _undelivered(report: SinkReport) -> Count:
    return totals([report]).undelivered


def _destination(report: SinkReport) -> str:
    return one_line(report.destination or _UNKNOWN)
