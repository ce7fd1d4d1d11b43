"""`postroad key`: list, hold, release or skip keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from postroad.admin import Count
from postroad.errors import NotFound
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, AtSink, Key, OfSink, parse_text
from postroad.ops.rendering.tables import Column, Row, show_rows
from postroad.ops.rendering.text import count, one_line, time_text, without_secrets
from postroad.ops.runner import Plan, Planning, changes, resolve_sink, with_admin
from postroad.ops.terminal import Command, Group
from postroad.ops.terminal import as_json as in_json
from postroad.stores.admin.names import suggestion

if TYPE_CHECKING:
    from postroad.admin import Admin, HeldKey
    from postroad.ops.settings import Settings

__all__ = ["key"]

key = typer.Typer(cls=Group, no_args_is_help=True, help="List held keys; hold, release or skip a key's messages.")

_HELD = (Column("sink"), Column("key"), Column("since (UTC)", whole=True), Column("who"), Column("reason"))


@key.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_keys(*, settings: Settings, sink: OfSink = None, as_json: AsJson = False) -> None:
    """List the held keys: at which sink, since when, by whom and why."""
    held = with_admin(settings, lambda admin: admin.held_keys(sink))
    if as_json:
        typer.echo(in_json(held))
    elif held:
        show_rows(_HELD, [Row(_cells(each)) for each in held])
    else:
        typer.echo("No key is held.")


def _cells(held: HeldKey) -> list[str]:
    since = time_text(held.since).rstrip("Z")
    return [one_line(held.sink), one_line(held.key), since, one_line(held.who), without_secrets(held.reason or "")]


@key.command("hold", cls=Command)
@changes(reason_required=True)
def hold(*, settings: Settings, key: Key, sink: AtSink = None) -> Planning:
    """Publish no message of this key until it is released. Asks for confirmation if the key is unknown."""
    key = parse_text("KEY", key)

    async def plan(admin: Admin) -> Plan:
        where = await resolve_sink(admin, sink)
        found = await admin.preview_hold(where, key)
        similar = "" if found.similar is None else f"; did you mean {found.similar!r}?"
        unknown = "" if found.known else f"No message has the key {key!r}{similar or '.'} "
        waiting = f"{count(found.waiting, 'message')} of it not published yet"
        return Plan(
            changes=Count(1),
            would=f"{unknown}key {key!r} would be held at sink {where!r}, with {waiting}",
            question=None if found.known else f"{unknown}Hold it anyway?",
            act=lambda admin, by, _: admin.hold(where, key, by),
            thing="key",
            done=lambda _: f"key {one_line(key)!r} is held at sink {where!r}, with {waiting}",
        )

    return plan


@key.command("release", cls=Command)
@changes(reason_required=False)
def release(*, settings: Settings, key: Key, sink: AtSink = None) -> Planning:
    """Publish the messages of a held key again, in order."""
    key = parse_text("KEY", key)

    async def plan(admin: Admin) -> Plan:
        where = await resolve_sink(admin, sink)
        held = [each.key for each in await admin.held_keys(where)]
        if key not in held:
            raise NotFound(f"key {key!r} is not held at sink {where!r}; {suggestion(key, held)}")
        return Plan(
            changes=Count(1),
            would=f"key {key!r} would be released at sink {where!r}",
            act=lambda admin, by, _: admin.release(where, key, by),
            thing="key",
            done=lambda _: f"key {one_line(key)!r} is released; its messages are published in order",
        )

    return plan


@key.command("skip", cls=Command)
@changes(reason_required=True)
def skip(*, settings: Settings, key: Key, sink: AtSink = None) -> Planning:
    """Never publish a key's messages that are retrying, held or dead. If the key is held, it stays held."""
    key = parse_text("KEY", key)

    async def plan(admin: Admin) -> Plan:
        where = await resolve_sink(admin, sink)
        number = await admin.preview_skip_key(where, key)
        selected = f"{count(number, 'message')} of key {key!r} at sink {where!r}"
        return Plan(
            changes=Count(number),
            nothing=f"no message of key {key!r} is retrying, held or dead at sink {where!r}",
            would=f"{selected} would be skipped",
            question=f"Skip {selected}? They will never be published there.",
            act=lambda admin, by, _: admin.skip_key(where, key, by),
            thing="message",
            done=lambda messages: f"skipped {messages} of key {one_line(key)!r}",
        )

    return plan
