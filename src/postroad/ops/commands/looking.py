"""`postroad status`, `messages`, `message show` and `audit`: looking, which changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from postroad.ops.commands import LOOK_AND_ACT
from postroad.ops.commands.choosing import (
    AsJson,
    Limit,
    OfKey,
    OfSink,
    OfTopic,
    OfType,
    WithError,
    ask,
    chosen,
)
from postroad.ops.commands.showing_messages import show_listing
from postroad.ops.commands.showing_status import show_lanes, show_status, status_for_programs
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import one_line, said, when
from postroad.ops.tables import Column, Row, show_rows
from postroad.ops.terminal import Command
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from postroad.ops.settings import Settings
    from postroad.stores.operating import AuditEntry

__all__ = ["looking"]

looking = typer.Typer()
_AUDIT = (
    Column("when (UTC)", whole=True),
    Column("who"),
    Column("role"),
    Column("command", whole=True),
    Column("changed", right=True, whole=True),
    Column("what"),
    Column("why"),
)


@looking.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def status(
    *,
    settings: Settings,
    by_lane: Annotated[bool, typer.Option("--by-lane", help="A line per lane: its position and its owner.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what waits, what is in trouble, how fast messages move, and what needs a person."""
    found = ask(settings, lambda insights: insights.status())
    if as_json:
        typer.echo(status_for_programs(found))
    elif by_lane and found.report.sinks:
        show_lanes(found)
    else:
        show_status(found)


@looking.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def messages(
    *,
    settings: Settings,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="STATE", help="Only in this state: waiting, published, retrying, held, dead and so on."
        ),
    ] = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only what was added since: a time, or how long ago, as 2h."),
    ] = None,
    sink: OfSink = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List messages, the newest first; a line for each sink."""
    which = chosen(state=state, key=key, type=type, topic=topic, error=error, since=since, sink=sink)
    listing = ask(settings, lambda insights: insights.messages(which, limit))
    show_listing(listing, "message", as_json=as_json)


@looking.command(cls=Command, rich_help_panel=LOOK_AND_ACT)
@takes(*FOR_ANY_DATABASE)
def audit(*, settings: Settings, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List what people changed: when, who, what and why; the last first."""
    entries = ask(settings, lambda insights: insights.audit(limit))
    if as_json:
        typer.echo(in_json([_for_programs(entry) for entry in entries]))
    elif entries:
        show_rows(_AUDIT, [Row(_cells(entry)) for entry in entries])
    else:
        typer.echo("Nobody has changed anything.")


def _for_programs(entry: AuditEntry) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(entry)
    return shown | {"reason": None if entry.reason is None else said(entry.reason)}


def _cells(entry: AuditEntry) -> list[str]:
    what = ", ".join(f"{name} {_argument(value)}" for name, value in entry.arguments.items() if value not in (None, []))
    reason = said(entry.reason or "")
    return [
        when(entry.at).rstrip("Z"), one_line(entry.who), one_line(entry.role or ""), one_line(entry.command),
        f"{entry.changed:,}", what, reason,
    ]  # fmt: skip


def _argument(value: object) -> str:
    if isinstance(value, list | tuple):
        first = " ".join(one_line(str(each)) for each in value[:3])
        return first if len(value) <= 3 else f"{first} and {len(value) - 3:,} more"
    return one_line(str(value), 200)
