"""`postroad message`: show, skip or poison one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.admin import Count, Filter
from postroad.errors import NotFound
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, MessageId, OfSink, WithPayload, parse_id_digits
from postroad.ops.rendering.messages import history_as_json, show_history
from postroad.ops.rendering.text import one_line
from postroad.ops.runner import Plan, Planning, changes, with_admin
from postroad.ops.terminal import Command, Group
from postroad.payload_view import LARGEST_SHOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.admin import Admin, MessageHistory, MessageRow
    from postroad.lifecycle import State
    from postroad.ops.settings import Settings

__all__ = ["message", "show_message"]

message = typer.Typer(cls=Group, no_args_is_help=True, help="Show, skip or poison a message.")

_WHOLE_PAYLOAD = 2**31 - 1


@message.command("show", cls=Command)
@takes(*FOR_ANY_DATABASE)
def show(*, settings: Settings, id: MessageId, payload: WithPayload = False, as_json: AsJson = False) -> None:
    """Show a message with its history: added, failed attempts, published, and the messages it caused."""
    show_message(settings, id, payload=payload, as_json=as_json)


def show_message(settings: Settings, id: str, *, payload: bool, as_json: bool, required: State | None = None) -> None:
    """Show a message; raises NotFound if it does not have the required state at any sink."""
    digits = parse_id_digits(id)
    size = (_WHOLE_PAYLOAD if as_json else LARGEST_SHOWN + 4) if payload else 0

    async def read(admin: Admin) -> MessageHistory:
        return await admin.message(await admin.find_id(digits), payload_bytes=size)

    found = with_admin(settings, read)
    states = {each.row.state for each in found.sinks}
    if required is not None and required not in states:
        raise NotFound(f"message {found.id} is not {required} but {', '.join(sorted(states)) or 'not sent yet'}")
    if as_json:
        typer.echo(history_as_json(found, payload=payload))
    else:
        show_history(found, payload=payload)


@message.command("skip", cls=Command)
@changes(reason_required=True)
def skip(*, settings: Settings, id: MessageId, sink: OfSink = None) -> Planning:
    """Never publish this message, because it was published by other means."""
    digits = parse_id_digits(id)

    async def plan(admin: Admin) -> Plan:
        uuid = await admin.find_id(digits)
        rows = await admin.preview_skip(uuid, sink)
        return Plan(
            changes=Count(len(rows)),
            would=f"message {uuid} would be skipped at {_places(rows)}",
            question=f"Skip message {uuid} at {_places(rows)}? It will never be published there.",
            act=lambda admin, by, _: admin.skip(Filter(ids=(uuid,), sink=sink), by),
            thing="sink",
            done=lambda sinks: f"skipped message {uuid} at {sinks}",
        )

    return plan


@message.command("poison", cls=Command)
@changes(reason_required=True)
def poison(
    *,
    settings: Settings,
    id: MessageId,
    sink: OfSink = None,
    hold_key: Annotated[
        bool, typer.Option("--hold-key", help="Hold later messages of its key, as with on_dead = hold.")
    ] = False,
) -> Planning:
    """Make a message dead: it is not attempted any more. The reason becomes its error."""
    digits = parse_id_digits(id)

    async def plan(admin: Admin) -> Plan:
        uuid = await admin.find_id(digits)
        rows = await admin.preview_poison(uuid, sink)
        return Plan(
            changes=Count(len(rows)),
            would=f"message {uuid} would be dead at {_places(rows)}",
            act=lambda admin, by, _: admin.poison(Filter(ids=(uuid,), sink=sink), by, holds_key=hold_key),
            thing="sink",
            done=lambda sinks: f"message {uuid} is dead at {sinks}",
        )

    return plan


def _places(rows: Sequence[MessageRow]) -> str:
    return ", ".join(f"sink {one_line(row.sink)!r} ({row.state})" for row in rows)
