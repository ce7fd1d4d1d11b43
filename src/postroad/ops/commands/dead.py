"""`postroad dead`: inspect, retry and drop dead messages, and restore dropped ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from postroad.errors import InvalidSetting
from postroad.lifecycle import State
from postroad.ops.commands.message import show_message
from postroad.ops.commands.messages import list_messages
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import (
    AsJson,
    Limit,
    MessageId,
    OfKey,
    OfSink,
    OfTopic,
    OfType,
    OlderThan,
    WithError,
    WithPattern,
    WithPayload,
    parse_filter,
    parse_id_digits,
)
from postroad.ops.rendering.messages import show_listing
from postroad.ops.rendering.text import count
from postroad.ops.runner import Plan, Planning, changes, with_admin
from postroad.ops.terminal import Command, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.admin import Admin, Count, Filter
    from postroad.ops.settings import Settings

__all__ = ["dead"]

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of messages, or their last digits.")]
All = Annotated[bool, typer.Option("--all", help="Every dead message.")]

AllDropped = Annotated[bool, typer.Option("--all", help="Every dropped message.")]

dead = typer.Typer(
    cls=Group, no_args_is_help=True, help="Inspect, retry or drop dead messages, or restore dropped ones."
)


@dead.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_dead(
    *,
    settings: Settings,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    pattern: WithPattern = None,
    older: OlderThan = None,
    sink: OfSink = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List dead messages, newest first."""
    which = parse_filter(
        state=State.DEAD, key=key, type=type, topic=topic, error=error, pattern=pattern, older=older, sink=sink
    )
    listing = with_admin(settings, lambda admin: list_messages(admin, which, limit))
    show_listing(listing, "dead message", as_json=as_json)


@dead.command("show", cls=Command)
@takes(*FOR_ANY_DATABASE)
def show_dead(*, settings: Settings, id: MessageId, payload: WithPayload = False, as_json: AsJson = False) -> None:
    """Show a dead message with its failed attempts and their errors."""
    show_message(settings, id, payload=payload, as_json=as_json, required=State.DEAD)


@dead.command("retry", cls=Command)
@changes(reason_required=False)
def retry(
    *,
    settings: Settings,
    ids: Ids = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    pattern: WithPattern = None,
    older: OlderThan = None,
    sink: OfSink = None,
    all: All = False,
) -> Planning:
    """Retry dead messages at once, with attempts counted from 0."""
    which = parse_filter(key=key, type=type, topic=topic, error=error, pattern=pattern, older=older, sink=sink)
    digits = _checked(which, ids, all=all)

    async def plan(admin: Admin) -> Plan:
        chosen, number = await _preview(admin, which, digits)
        return Plan(
            changes=number,
            nothing=_NOTHING,
            would=f"{_dead(number)} would be retried",
            question=f"Retry {_dead(number)}?",
            act=lambda admin, by, on_progress: admin.retry(chosen, by, on_progress=on_progress),
            thing="dead message",
            done="{} will be retried".format,
            progress="retrying",
        )

    return plan


@dead.command("drop", cls=Command)
@changes(reason_required=True)
def drop(
    *,
    settings: Settings,
    ids: Ids = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    pattern: WithPattern = None,
    older: OlderThan = None,
    sink: OfSink = None,
    all: All = False,
) -> Planning:
    """Drop dead messages: they are never published, and retention deletes them."""
    which = parse_filter(key=key, type=type, topic=topic, error=error, pattern=pattern, older=older, sink=sink)
    digits = _checked(which, ids, all=all)

    async def plan(admin: Admin) -> Plan:
        chosen, number = await _preview(admin, which, digits)
        return Plan(
            changes=number,
            nothing=_NOTHING,
            would=f"{_dead(number)} would be dropped",
            question=f"Drop {_dead(number)}? They will never be published.",
            act=lambda admin, by, on_progress: admin.drop(chosen, by, on_progress=on_progress),
            thing="dead message",
            done="dropped {}".format,
            progress="dropping",
        )

    return plan


@dead.command("restore", cls=Command)
@changes(reason_required=False)
def restore(
    *,
    settings: Settings,
    ids: Ids = None,
    key: OfKey = None,
    type: OfType = None,
    topic: OfTopic = None,
    error: WithError = None,
    pattern: WithPattern = None,
    older: OlderThan = None,
    sink: OfSink = None,
    all: AllDropped = False,
) -> Planning:
    """Make dropped messages dead again, so that they can be retried, as long as they are in the log."""
    which = parse_filter(key=key, type=type, topic=topic, error=error, pattern=pattern, older=older, sink=sink)
    digits = _checked(which, ids, all=all, state=State.DROPPED)

    async def plan(admin: Admin) -> Plan:
        chosen = replace(which, ids=tuple([await admin.find_id(each) for each in digits]), state=State.DROPPED)
        number = await admin.preview_restore(chosen)
        messages = count(number.number, "dropped message")
        return Plan(
            changes=number,
            nothing="no dropped message matches; `postroad messages --state dropped` shows all dropped messages",
            would=f"{messages} would be restored",
            question=f"Restore {messages}? They will be dead, and can be retried.",
            act=lambda admin, by, on_progress: admin.restore(chosen, by, on_progress=on_progress),
            thing="dropped message",
            done="restored {}; retry them with `postroad dead retry`".format,
            progress="restoring",
        )

    return plan


_NOTHING = "no dead message matches; `postroad dead list` shows all dead messages"


def _checked(which: Filter, ids: Sequence[str] | None, *, all: bool, state: State = State.DEAD) -> list[str]:
    """The digits of the ids. Raises InvalidSetting if all messages are selected without --all, or with more."""
    selects = bool(ids) or not which.is_empty
    if all and selects:
        raise InvalidSetting(f"--all selects every {state} message; omit it, or what else selects messages")
    if not all and not selects:
        raise InvalidSetting("no messages are selected; give ids, options that select messages, or --all")
    return [parse_id_digits(id) for id in ids or ()]


async def _preview(admin: Admin, which: Filter, digits: Sequence[str]) -> tuple[Filter, Count]:
    ids = [await admin.find_id(each) for each in digits]
    chosen = replace(which, ids=tuple(ids), state=State.DEAD)
    return chosen, await admin.preview_dead(chosen)


def _dead(number: Count) -> str:
    return count(number.number, "dead message")
