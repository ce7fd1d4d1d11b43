"""`postroad sink`: list, retarget, filter or remove sinks, or adopt their replication slots."""

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

    from postroad.admin import Admin, FilterPreview, SinkReport
    from postroad.ops.settings import Settings
    from postroad.ops.sink_settings import SinkSettings

__all__ = ["sink"]

sink = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="List sinks and their destinations; retarget, filter or remove a sink, or adopt its replication slot.",
)

_SINKS = (
    Column("sink"),
    Column("destination"),
    Column("takes"),
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
    takes, undelivered = one_line(str(report.filter)), number_text(_undelivered(report))
    return [one_line(report.sink), _destination(report), takes, lanes, relays, served, undelivered]


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
    destination = _destination_of(settings.sink(sink), to)

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


def _destination_of(settings: SinkSettings, to: str) -> str:
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


@sink.command("filter", cls=Command)
@changes("topics", "exclude_topics", "types", "sources", reason_required=True)
def filter_sink(*, settings: Settings, sink: SinkName) -> Planning:
    """Give a sink the filter that the settings have for it. Its relays must be stopped.

    Messages that it has passed are not sent, and `postroad rewind` sends them.
    """
    filter = settings.sink(sink).filter

    async def plan(admin: Admin) -> Plan:
        preview = await admin.preview_refilter(sink, filter)
        change = f"sink {one_line(sink)!r} take {one_line(str(filter))} instead of {one_line(str(preview.before))}"
        effect = _effect(preview)
        return Plan(
            changes=Count(1),
            would=f"would make {change}; {effect}",
            question=f"Make {change}? {effect[0].upper()}{effect[1:]}.",
            act=lambda admin, by, _: admin.refilter(sink, filter, by),
            thing="lane",
            done=lambda _: f"sink {one_line(sink)!r} takes {one_line(str(filter))} now; {effect}",
        )

    return plan


@sink.command("adopt-slot", cls=Command)
@changes(reason_required=True)
def adopt_slot(*, settings: Settings, sink: SinkName) -> Planning:
    """Let a sink whose replication slot was lost follow the slot that has its name now, and resume the sink.

    First make sure that the messages which the sink has not passed are carried, such as by a snapshot of Debezium.
    """

    async def plan(admin: Admin) -> Plan:
        slot = await admin.preview_adopt_slot(sink)
        pending = about(_undelivered(await admin.sink(sink)), "message")
        adopted = f"the replication slot {one_line(slot.name)!r} as it is now"
        return Plan(
            changes=Count(1),
            would=f"sink {one_line(sink)!r} would follow {adopted}, and {pending} would count as carried by it",
            question=f"Let sink {one_line(sink)!r} follow {adopted}? {pending} will count as carried by it.",
            act=lambda admin, by, _: admin.adopt_slot(sink, by),
            thing="lane",
            done=lambda _: f"sink {one_line(sink)!r} follows {adopted}",
        )

    return plan


def _effect(preview: FilterPreview) -> str:
    """What happens to messages that are in the log already."""
    which = "in the log" if preview.all_searched else f"among the newest {preview.searched:,} in the log"
    passed, dropped = about(Count(preview.passed), "message"), about(Count(preview.dropped), "message")
    parts = []
    if preview.passed:
        rewind = f"postroad rewind --sink {preview.sink} --to {preview.first_passed}"
        parts.append(
            f"{passed} {which} that it takes from now on, and has passed, will not be sent, unless you send them "
            f"afterwards with everything else that it has had since: {rewind}"
        )
    if preview.dropped:
        parts.append(f"{dropped} {which} that wait for it, and that it does not take any more, will not be sent")
    return "; ".join(parts) or f"no message {which} is affected"


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
