"""How dead letters of consumers look: as a list, and one of them."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from postroad.codecs.description import by_codecs
from postroad.ops.rendering.payloads import show_payload
from postroad.ops.rendering.tables import Column, Row, show_facts, show_rows
from postroad.ops.rendering.text import age, count, number_text, one_line, time_text, without_secrets
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.admin import DeadLetterPage, DeadLetterRow
    from postroad.dead_letters import DeadLetter

__all__ = ["letter_as_json", "page_as_json", "show_letter", "show_page"]

_COLUMNS = (
    Column("consumer"),
    Column("id", whole=True),
    Column("tries", right=True, whole=True),
    Column("dead for", right=True, whole=True),
    Column("type"),
)


def show_page(page: DeadLetterPage) -> None:
    if not page.letters:
        typer.echo("No dead letter matches.")
        return
    now = datetime.now(UTC)
    show_rows(_COLUMNS, [_shown(row, now) for row in page.letters], note="error")
    shown, total = len(page.letters), page.total
    of = f" of {number_text(total)}" if shown < total.number else ""
    typer.echo(f"{shown:,}{of} shown; see --limit." if of else f"{count(shown, 'dead letter')}.", err=True)


def _shown(row: DeadLetterRow, now: datetime) -> Row:
    cells = [
        one_line(row.consumer),
        one_line(row.message_id),
        str(row.attempts),
        age(now - row.dead_at).split()[0],
        one_line(row.type),
    ]
    return Row(cells, without_secrets(row.error or ""), "red")


def page_as_json(page: DeadLetterPage) -> str:
    return in_json({"dead_letters": [_as_json(row) for row in page.letters], "total": page.total})


def letter_as_json(row: DeadLetterRow, letter: DeadLetter | None, *, payload: bool) -> str:
    """The record and the letter, if it was read; its payload in Base64, if it was asked for."""
    found: dict[str, Any] | None = None
    if letter is not None:
        found = {"place": letter.place, "content_type": letter.content_type, "headers": dict(letter.headers)}
        if payload:
            found["payload"] = b64encode(letter.body).decode()
    return in_json({**_as_json(row), "letter": found})


def _as_json(row: DeadLetterRow) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(row)
    return shown | {"message_id": row.message_id, "error": None if row.error is None else without_secrets(row.error)}


def show_letter(row: DeadLetterRow, letter: DeadLetter | None, *, payload: bool, asked: bool) -> None:
    """Print a dead letter. `asked`: whether the broker was asked for it."""
    typer.echo(f"dead letter {one_line(row.message_id)} of consumer {one_line(row.consumer)!r}")
    show_facts(list(_facts(row, letter, asked=asked)), indent="  ")
    if letter is not None and payload:
        show_payload(letter.body, letter.content_type, letter.headers)


def _facts(row: DeadLetterRow, letter: DeadLetter | None, *, asked: bool) -> Iterator[tuple[str, str]]:
    yield "type", one_line(row.type) or "(unreadable)"
    yield "identity", one_line(row.id)
    yield "dead since", f"{time_text(row.dead_at)} ({age(datetime.now(UTC) - row.dead_at)} ago)"
    crashes = f", {row.crashes} of them ended with their process" if row.crashes else ""
    yield "attempts", f"{row.attempts}{crashes}"
    yield "error", without_secrets(row.error or "")
    if letter is None:
        yield "letter", "it is not with the broker any more" if asked else "with the consumer's broker; see --app"
        return
    yield "letter", one_line(letter.place)
    for name, value in letter.headers.items():
        yield one_line(name, 30), without_secrets(value)
    size, done = count(len(letter.body), "byte"), by_codecs(letter.headers)
    yield "payload", f"{size} of {one_line(letter.content_type, 100) or 'no content type'}{done and f', {done}'}"
