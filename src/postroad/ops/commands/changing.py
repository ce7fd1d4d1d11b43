"""`postroad message` and `postroad key`: one message or one key, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.ops.asking import DryRun, Reason, Who, Yes, actor, given_reason, needed_reason, sure
from postroad.ops.commands.choosing import AsJson, AtSink, OfSink, OneId, ask, named
from postroad.ops.commands.showing_done import show_done, show_plan
from postroad.ops.commands.showing_messages import show_message
from postroad.ops.given import read_text
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.showing import count, one_line, said, when
from postroad.ops.tables import Column, Row, show_rows
from postroad.ops.terminal import Command, Group
from postroad.ops.terminal import as_json as in_json
from postroad.stores.operating import By

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.ops.settings import Settings
    from postroad.stores.operating import HeldKey, MessageRow

__all__ = ["key", "message"]

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]

message = typer.Typer(cls=Group, no_args_is_help=True, help="Look at one message, skip it, or poison it.")
key = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="List held keys; hold a key's messages back, let them go on, or skip them.",
)


# -- one message -----------------------------------------------------------------------------------------------------


@message.command("show", cls=Command)
@takes(*FOR_ANY_DATABASE)
def show(
    *,
    settings: Settings,
    id: OneId,
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a message and its whole history: added, each failed attempt, published, and what it caused."""
    show_message(settings, named(settings, id), payload=payload, as_json=as_json)


@message.command("skip", cls=Command)
@takes(*FOR_ANY_DATABASE)
def skip(
    *,
    settings: Settings,
    id: OneId,
    sink: OfSink = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Never publish this message: it is known to have been published by other means."""
    uuid = named(settings, id)
    rows = ask(settings, lambda insights: insights.skippable(uuid, sink))
    if dry_run:
        show_plan(f"message {uuid} would be skipped at {_places(rows)}", len(rows), as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Skip message {uuid} at {_places(rows)}? It will never be published there.", yes=yes)
    done = ask(settings, lambda insights: insights.skip(uuid, sink, by))
    show_done(done, "sink", lambda many: f"skipped message {uuid}, at {many}", as_json=as_json)


@message.command("poison", cls=Command)
@takes(*FOR_ANY_DATABASE)
def poison(
    *,
    settings: Settings,
    id: OneId,
    sink: OfSink = None,
    hold_key: Annotated[
        bool, typer.Option("--hold-key", help="Later messages of its key wait, as with on_dead = hold.")
    ] = False,
    dry_run: DryRun = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Declare a message dead: it is not tried any more. The reason becomes its error."""
    uuid = named(settings, id)
    rows = ask(settings, lambda insights: insights.poisonable(uuid, sink))
    if dry_run:
        show_plan(f"message {uuid} would be dead at {_places(rows)}", len(rows), as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    done = ask(settings, lambda insights: insights.poison(uuid, sink, by, holds_key=hold_key))
    show_done(done, "sink", lambda many: f"message {uuid} is dead, at {many}", as_json=as_json)


def _places(rows: Sequence[MessageRow]) -> str:
    return ", ".join(f"sink {one_line(row.sink)!r} ({row.state})" for row in rows)


# -- keys ------------------------------------------------------------------------------------------------------------

_HELD = (Column("sink"), Column("key"), Column("since (UTC)", whole=True), Column("who"), Column("why"))


@key.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_keys(*, settings: Settings, sink: OfSink = None, as_json: AsJson = False) -> None:
    """List the keys that are held: at which sink, since when, by whom and why."""
    held = ask(settings, lambda insights: insights.held_keys(sink))
    if as_json:
        typer.echo(in_json(held))
    elif held:
        show_rows(_HELD, [Row(_held_cells(each)) for each in held])
    else:
        typer.echo("No key is held.")


def _held_cells(held: HeldKey) -> list[str]:
    why = said(held.reason or "")
    return [one_line(held.sink), one_line(held.key), when(held.since).rstrip("Z"), one_line(held.who), why]


@key.command("hold", cls=Command)
@takes(*FOR_ANY_DATABASE)
def hold(
    *,
    settings: Settings,
    key: Key,
    sink: AtSink = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """From now on publish nothing of this key, until it is released. Asks if no message of it is known."""
    key = read_text("KEY", key)
    facts = ask(settings, lambda insights: insights.key(key, sink))
    known = "" if facts.known else f"No message of key {key!r} was found, {facts.similar} "
    waiting = f"of its messages {facts.waiting:,} wait now"
    if dry_run:
        show_plan(f"{known}key {key!r} would be held at sink {facts.sink!r}; {waiting}", 1, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"{known}Hold it all the same?", yes=yes or facts.known)
    done = ask(settings, lambda insights: insights.hold(facts.sink, key, by))
    show_done(
        done, "key", lambda _: f"key {one_line(key)!r} is held at sink {facts.sink!r}; {waiting}", as_json=as_json
    )


@key.command("release", cls=Command)
@takes(*FOR_ANY_DATABASE)
def release(
    *,
    settings: Settings,
    key: Key,
    sink: AtSink = None,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Let a held key's messages go on, in order."""
    key, by = read_text("KEY", key), By(actor(who), given_reason(reason))
    done = ask(settings, lambda insights: insights.release(sink, key, by))
    show_done(
        done, "key", lambda _: f"key {one_line(key)!r} is released; its messages go on, in order", as_json=as_json
    )


@key.command("skip", cls=Command)
@takes(*FOR_ANY_DATABASE)
def skip_key(
    *,
    settings: Settings,
    key: Key,
    sink: AtSink = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Never publish what is retried, held or dead of a key. If the key is held, it stays so."""
    key = read_text("KEY", key)
    where, number = ask(settings, lambda insights: insights.in_trouble(sink, key))
    meant = f"{count(number, 'message')} of key {key!r} at sink {where!r}"
    if dry_run:
        show_plan(f"{meant} would be skipped", number, as_json=as_json)
        return
    by = By(actor(who), needed_reason(reason))
    sure(f"Skip {meant}? They will never be published there.", yes=yes)
    done = ask(settings, lambda insights: insights.skip_key(where, key, by))
    show_done(done, "message", lambda many: f"skipped {many} of key {one_line(key)!r}", as_json=as_json)
