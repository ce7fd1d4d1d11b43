"""`postroad why`: why a message, or a key, is not sent."""

from __future__ import annotations

import sys
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from postroad.admin import Explanation, Reason
from postroad.commands import command_of, with_command
from postroad.errors import InvalidSetting
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.parsing import AsJson, OfSink, parse_id_digits, parse_text
from postroad.ops.rendering.tables import show_facts
from postroad.ops.rendering.text import one_line
from postroad.ops.runner import with_admin
from postroad.ops.terminal import as_json as in_json
from postroad.ops.terminal import output
from postroad.wording import moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.admin import Admin, Answer, KeyExplanation
    from postroad.ops.settings import Settings

__all__ = ["why"]

_NOT_THERE: Final = frozenset({Reason.UNKNOWN, Reason.EXPIRED})


@takes(*FOR_ANY_DATABASE)
def why(
    *,
    settings: Settings,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The message's id, or its last digits.", show_default=False)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Instead of an ID: what a key's messages wait for."),
    ] = None,
    sink: OfSink = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a message is not sent, or what became of it: one answer per sink, and what to do."""
    if (id is None) == (key is None):
        raise InvalidSetting("postroad why takes either a message's ID or --key KEY")
    if key is not None:
        _why_key(settings, parse_text("--key", key), sink, as_json=as_json)
        return
    digits = parse_id_digits(id or "")

    async def ask(admin: Admin) -> Explanation:
        return await admin.why(await admin.find_id(digits), sink)

    found = with_admin(settings, ask)
    if as_json:
        typer.echo(in_json(_as_json(found)))
    else:
        typer.echo(f"message {found.id}")
        show_facts(list(_facts(found)), indent="  ")
        _show_answers(found.answers)
    if any(answer.reason in _NOT_THERE for answer in found.answers):
        raise typer.Exit(1)


def _why_key(settings: Settings, key: str, sink: str | None, *, as_json: bool) -> None:
    found: KeyExplanation | None = with_admin(settings, lambda admin: admin.why_key(key, sink))
    if as_json:
        typer.echo(in_json({"key": key, "answers": []} if found is None else _as_json(found)))
    elif found is None:
        typer.echo("There is no sink yet: the first `postroad relay` creates one. Until then all messages are kept.")
    else:
        typer.echo(f"key {one_line(key)}")
        _show_answers(found.answers)


def _as_json(found: Explanation | KeyExplanation) -> dict[str, Any]:
    """With the command for each remedy."""
    answers = [with_command(answer, answer.remedy) for answer in found.answers]
    return msgspec.structs.asdict(found) | {"answers": answers}


def _facts(found: Explanation) -> Iterator[tuple[str, str]]:
    if found.type is None or found.created_at is None:
        return
    yield "type", one_line(found.type)
    if found.topic is not None and found.topic != found.type:
        yield "topic", one_line(found.topic)
    yield "key", "(none)" if found.key is None else one_line(found.key)
    place = "" if found.position is None else f", position {found.position:,}"
    yield "added", f"{moment(found.created_at, found.at)}{place}"


def _show_answers(answers: Sequence[Answer]) -> None:
    """For each answer the sink and the reason, the sentence, and what to do."""
    for answer in answers:
        place = "" if answer.sink is None else f"at sink {one_line(answer.sink)!r}: "
        typer.echo(f"\n{place}{answer.reason}")
        _show_text(answer.text)
        if answer.because is not None:
            _show_text(f"that message: {answer.because.text}")
        if answer.advice:
            _show_text(f"to do: {answer.advice}")
        if answer.remedy is not None:
            typer.echo(f"  $ {one_line(command_of(answer.remedy))}")


def _show_text(text: str) -> None:
    """A sentence, on a terminal wrapped to its width."""
    lines = wrap(text, max(20, output().width - 4), break_on_hyphens=False) if sys.stdout.isatty() else [text]
    for number, line in enumerate(lines):
        typer.echo(f"  {'  ' if number else ''}{line}")
