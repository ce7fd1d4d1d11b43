"""`postroad dead`: look at what was refused for good, and decide what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.lifecycle import State
from postroad.ops.asking import DryRun, Reason, Who, Yes, actor, given_reason, needed_reason, progress, sure
from postroad.ops.commands.choosing import (
    AsJson,
    Limit,
    OfKey,
    OfSink,
    OfTopic,
    OfType,
    OlderThan,
    OneId,
    WithError,
    ask,
    chosen,
    named,
)
from postroad.ops.commands.showing_done import show_done, show_plan
from postroad.ops.commands.showing_messages import show_listing, show_message
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import count
from postroad.ops.terminal import Command, Group
from postroad.stores.operating import By

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["dead"]

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of messages, or their last digits.")]
All = Annotated[bool, typer.Option("--all", help="Every dead message.")]

dead = typer.Typer(cls=Group, no_args_is_help=True, help="Look at dead messages, try them again, or give them up.")


@dead.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_dead(
    *,
    settings: Settings,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    older: OlderThan = None,
    sink: OfSink = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List dead messages, the newest first."""
    which = chosen(state="dead", key=key, type=type, topic=topic, error=error, older=older, sink=sink)
    listing = ask(settings, lambda insights: insights.messages(which, limit))
    show_listing(listing, "dead message", as_json=as_json)


@dead.command("show", cls=Command)
@takes(*FOR_ANY_DATABASE)
def show_dead(
    *,
    settings: Settings,
    id: OneId,
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a dead message: what was tried, when, and what the broker said."""
    show_message(settings, named(settings, id), payload=payload, as_json=as_json, must_be=State.DEAD)


@dead.command("retry", cls=Command)
@takes(*FOR_ANY_DATABASE)
def retry(
    *,
    settings: Settings,
    ids: Ids = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    older: OlderThan = None,
    sink: OfSink = None,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Let dead messages be tried again, at once and with all their attempts."""
    which = chosen(
        ids=[named(settings, id) for id in ids or ()],
        key=key, type=type, topic=topic, error=error, older=older, sink=sink, all=all,
    )  # fmt: skip
    number = ask(settings, lambda insights: insights.dead(which)).number
    if dry_run:
        show_plan(f"{count(number, 'dead message')} would be tried again", number, as_json=as_json)
        return
    sure(f"Try {count(number, 'dead message')} again?", yes=yes)
    by = By(actor(who), given_reason(reason))
    with progress("retrying", number) as told:
        done = ask(settings, lambda insights: insights.retry(which, by, told))
    show_done(done, "dead message", "{} will be tried again".format, as_json=as_json)


@dead.command("drop", cls=Command)
@takes(*FOR_ANY_DATABASE)
def drop(
    *,
    settings: Settings,
    ids: Ids = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    older: OlderThan = None,
    sink: OfSink = None,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Give dead messages up: they are never published, and deleted in time."""
    which = chosen(
        ids=[named(settings, id) for id in ids or ()],
        key=key, type=type, topic=topic, error=error, older=older, sink=sink, all=all,
    )  # fmt: skip
    number = ask(settings, lambda insights: insights.dead(which)).number
    if dry_run:
        show_plan(f"{count(number, 'dead message')} would be dropped", number, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Drop {count(number, 'dead message')}? Nobody will ever receive them.", yes=yes)
    with progress("dropping", number) as told:
        done = ask(settings, lambda insights: insights.drop(which, by, told))
    show_done(done, "dead message", "dropped {}".format, as_json=as_json)
