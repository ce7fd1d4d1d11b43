"""`postroad inbox dead`: list, show, retry and drop what consumers have given up.

The database has a record of each dead letter. The letter itself is with the consumer's broker, so `--app` names the
consumer where the letter is needed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from postroad.admin import DeadLetterFilter
from postroad.errors import InvalidSetting
from postroad.ops.apps import consumer_named
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, Limit, OfType, WithError, WithPayload, parse_age, parse_text
from postroad.ops.rendering.letters import letter_as_json, page_as_json, show_letter, show_page
from postroad.ops.rendering.text import count, one_line
from postroad.ops.runner import Plan, Planning, changes, with_admin
from postroad.ops.terminal import Command, Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.admin import Admin, Count, DeadLetterRow
    from postroad.consumer import Consumer
    from postroad.dead_letters import DeadLetter
    from postroad.ops.settings import Settings

__all__ = ["inbox"]

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The message's id, or its last characters.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of messages, or their last characters.")]
OfConsumer = Annotated[
    str | None, typer.Option("--consumer", metavar="NAME", help="Only of this consumer; default: of all consumers.")
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="TIME", help="Only letters that are dead for at least this long.")
]
All = Annotated[bool, typer.Option("--all", help="Every dead letter of the consumer.")]

inbox = typer.Typer(cls=Group, no_args_is_help=True, help="What consumers have received.")
dead = typer.Typer(cls=Group, no_args_is_help=True, help="List, show, retry or drop the dead letters of consumers.")
inbox.add_typer(dead, name="dead")


@dead.command("list", cls=Command)
@takes(*FOR_ANY_DATABASE)
def list_letters(
    *,
    settings: Settings,
    consumer: OfConsumer = None,
    type: OfType = None,
    error: WithError = None,
    older: OlderThan = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of consumers, newest first."""
    which = _parsed(consumer, type=type, error=error, older=older)
    page = with_admin(settings, lambda admin: admin.dead_letters(which, limit))
    if as_json:
        typer.echo(page_as_json(page))
    else:
        show_page(page)


@dead.command("show", cls=Command)
@takes("app", *FOR_ANY_DATABASE)
def show(
    *,
    settings: Settings,
    id: LetterId,
    consumer: OfConsumer = None,
    payload: WithPayload = False,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter. With --app also its headers and, with --payload, its payload, from the consumer's broker."""
    app = settings.value("app")
    known = None if app is None else consumer_named(app)
    if payload and known is None:
        raise InvalidSetting("--payload is given and app is not set: the broker has the payload, so give --app too")

    async def read(admin: Admin) -> tuple[DeadLetterRow, DeadLetter | None]:
        of = known.name if consumer is None and known is not None else consumer
        row = await admin.find_dead_letter(parse_text("ID", id), of)
        if known is None:
            return row, None
        return row, await admin.read_dead_letter(known.dead_letters(), row)

    row, letter = with_admin(settings, read)
    if as_json:
        typer.echo(letter_as_json(row, letter, payload=payload))
    else:
        show_letter(row, letter, payload=payload, asked=known is not None)


@dead.command("retry", cls=Command)
@changes("app", reason_required=False)
def retry(
    *,
    settings: Settings,
    ids: Ids = None,
    type: OfType = None,
    error: WithError = None,
    older: OlderThan = None,
    all: All = False,
) -> Planning:
    """Move dead letters back to where their consumer receives from: it handles them with attempts counted from 0."""
    consumer = consumer_named(settings.needed("app"))
    which = _selected(consumer, ids, type=type, error=error, older=older, all=all)
    box = consumer.dead_letters()

    async def plan(admin: Admin) -> Plan:
        chosen, number = await _preview(admin, which, ids)
        return Plan(
            changes=number,
            nothing=_nothing(consumer),
            would=f"{_letters(number, consumer)} would be moved from {box.name} back to the consumer",
            question=f"Retry {_letters(number, consumer)}?",
            act=lambda admin, by, on_progress: admin.retry_dead_letters(box, chosen, by, on_progress=on_progress),
            thing="dead letter",
            done="{} will be handled again".format,
            progress="retrying",
        )

    return plan


@dead.command("drop", cls=Command)
@changes("app", reason_required=True)
def drop(
    *,
    settings: Settings,
    ids: Ids = None,
    type: OfType = None,
    error: WithError = None,
    older: OlderThan = None,
    all: All = False,
) -> Planning:
    """Drop dead letters: their consumer will never handle them."""
    consumer = consumer_named(settings.needed("app"))
    which = _selected(consumer, ids, type=type, error=error, older=older, all=all)
    box = consumer.dead_letters()

    async def plan(admin: Admin) -> Plan:
        chosen, number = await _preview(admin, which, ids)
        return Plan(
            changes=number,
            nothing=_nothing(consumer),
            would=f"{_letters(number, consumer)} would be dropped from {box.name}",
            question=f"Drop {_letters(number, consumer)}? It will never handle them.",
            act=lambda admin, by, on_progress: admin.drop_dead_letters(box, chosen, by, on_progress=on_progress),
            thing="dead letter",
            done="dropped {}".format,
            progress="dropping",
        )

    return plan


def _parsed(consumer: str | None, *, type: str | None, error: str | None, older: str | None) -> DeadLetterFilter:
    for option, value in {"--consumer": consumer, "--type": type, "--error": error}.items():
        if value is not None:
            parse_text(option, value)
    before = None if older is None else datetime.now(UTC) - parse_age(older)
    return DeadLetterFilter(consumer=consumer, type=type, error=error, before=before)


def _selected(
    consumer: Consumer[object],
    ids: Sequence[str] | None,
    *,
    type: str | None,
    error: str | None,
    older: str | None,
    all: bool,
) -> DeadLetterFilter:
    """Raises InvalidSetting if all letters are selected without --all, or with more."""
    which = _parsed(consumer.name, type=type, error=error, older=older)
    selects = bool(ids) or not which.is_empty
    if all and selects:
        raise InvalidSetting("--all selects every dead letter; omit it, or what else selects letters")
    if not all and not selects:
        raise InvalidSetting("no dead letters are selected; give ids, options that select letters, or --all")
    return replace(which, all=all)


async def _preview(admin: Admin, which: DeadLetterFilter, ids: Sequence[str] | None) -> tuple[DeadLetterFilter, Count]:
    found = [await admin.find_dead_letter(parse_text("ID", id), which.consumer) for id in ids or ()]
    chosen = replace(which, ids=tuple(row.id for row in found))
    return chosen, await admin.preview_dead_letters(chosen)


def _letters(number: Count, consumer: Consumer[object]) -> str:
    shown = count(number.number, "dead letter")
    return f"{'' if number.exact else 'the newest '}{shown} of consumer {one_line(consumer.name)!r}"


def _nothing(consumer: Consumer[object]) -> str:
    return f"no dead letter of consumer {consumer.name!r} matches; `postroad inbox dead list` shows all dead letters"
