"""`postroad sink`: where each sink delivers to, moving one elsewhere, and removing one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from postroad.brokers.registry import known_schemes, publisher_for, url_examples
from postroad.errors import InvalidSetting
from postroad.ops.asking import DryRun, Reason, Who, Yes, actor, needed_reason, sure
from postroad.ops.commands.choosing import AsJson, ask
from postroad.ops.commands.showing_done import show_done, show_plan
from postroad.ops.insights import totals
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import age, count, one_line
from postroad.ops.tables import Column, Row, show_rows
from postroad.ops.terminal import Command, Group
from postroad.ops.terminal import as_json as in_json
from postroad.stores.operating import By

if TYPE_CHECKING:
    from datetime import datetime

    from postroad.ops.settings import Settings
    from postroad.stores.operating import SinkReport

__all__ = ["sink"]

sink = typer.Typer(
    cls=Group, no_args_is_help=True, help="See where sinks deliver to, move one elsewhere, or remove one."
)

Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]

_SINKS = (
    Column("sink"),
    Column("delivers to"),
    *(Column(name, right=True, whole=True) for name in ("lanes", "relays", "last served", "undelivered")),
)


@sink.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_sinks(*, settings: Settings, as_json: AsJson = False) -> None:
    """List the sinks: where each delivers to, how many relays serve it, and when one last did."""
    report = ask(settings, lambda insights: insights.status()).report
    if as_json:
        typer.echo(in_json({"sinks": [msgspec.to_builtins(each) for each in report.sinks]}))
    elif report.sinks:
        show_rows(_SINKS, [Row(_cells(each, report.at)) for each in report.sinks])
    else:
        typer.echo("There is no sink yet: the first `postroad relay` creates one.")


def _cells(report: SinkReport, now: datetime) -> list[str]:
    served = "now" if report.relays else f"{age((now - report.served_at).total_seconds())} ago"
    to = one_line(report.destination or "(not known: no relay of this version has served it)")
    number, exact = _undelivered(report)
    undelivered = f"{'' if exact else '~'}{number:,}"
    return [one_line(report.sink), to, str(len(report.lanes)), str(report.relays), served, undelivered]


@sink.command("retarget", cls=Command)
@takes(*FOR_ANY_DATABASE)
def retarget(
    *,
    settings: Settings,
    sink: Sink,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="The broker's URL as the sink's relays will have it; for handlers in a relay, local:NAME.",
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Let a sink deliver elsewhere: what it has not delivered goes there. Its relays must be stopped."""
    destination = _destination(settings, to)
    report = ask(settings, lambda insights: insights.movable(sink, destination))
    number, exact = _undelivered(report)
    meant = (
        f"sink {one_line(sink)!r} deliver to {one_line(destination)} instead of "
        f"{one_line(report.destination or '(not known)')}, "
        f"with {'' if exact else 'about '}{count(number, 'message')} that it has not delivered"
    )
    if dry_run:
        show_plan(f"would let {meant}", 1, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Let {meant}?", yes=yes)
    done = ask(settings, lambda insights: insights.retarget(sink, destination, by))
    show_done(
        done, "lane", lambda _: f"sink {one_line(sink)!r} delivers to {one_line(destination)} now", as_json=as_json
    )


def _destination(settings: Settings, to: str) -> str:
    """What a publisher for this URL, with the settings of its kind, says of itself.

    It is kept and shown, so no other text is taken, nor quoted in the error: it may hold a password.
    """
    scheme, separator, rest = to.strip().partition("://")
    url = f"{scheme.lower()}{separator}{rest}"
    if separator and scheme.lower() in known_schemes():
        return publisher_for(url, settings.for_broker(url)).destination
    if re.fullmatch(r"local:\S.*", url) and url.isprintable() and not separator:
        return url
    raise InvalidSetting(
        "--to is no destination (it is not shown because it may hold a password); it must look like "
        f"{url_examples('local:NAME')}",
        settings=("to",),
    )


@sink.command("remove", cls=Command)
@takes(*FOR_ANY_DATABASE)
def remove(
    *,
    settings: Settings,
    sink: Sink,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Forget a sink that is not needed any more: retention waits for it no longer. Its relays must be stopped."""
    report, is_last = ask(settings, lambda insights: insights.removable(sink))
    loss = _loss(report)
    last = " It is the only sink: nothing is deleted from the log until there is another." if is_last else ""
    name = f"sink {one_line(sink)!r}, which delivers to {one_line(report.destination or '(not known)')}"
    if dry_run:
        show_plan(f"{name}, would be removed; {loss}.{last}".rstrip("."), 1, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Remove {name}? For good: {loss}.{last}", yes=yes)
    done = ask(settings, lambda insights: insights.remove_sink(sink, by))
    show_done(done, "lane", lambda many: f"removed sink {one_line(sink)!r}, with {many}; {loss}", as_json=as_json)


def _loss(report: SinkReport) -> str:
    """What a sink has not delivered, by state."""
    sums = totals([report])
    states = {"pending": sums.pending, "failing": sums.failing, "held": sums.held, "dead": sums.dead}
    some = ", ".join(f"{number:,} {state}" for state, number in states.items() if number)
    if not some:
        return "it has delivered every message"
    number, exact = _undelivered(report)
    return f"{'' if exact else 'about '}{count(number, 'message')} will never be delivered there ({some})"


def _undelivered(report: SinkReport) -> tuple[int, bool]:
    sums = totals([report])
    return sums.pending + sums.failing + sums.held + sums.dead, sums.exact
