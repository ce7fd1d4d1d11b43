"""How messages look: as a list, and one message with its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import typer

from postroad.codecs.description import by_codecs
from postroad.lifecycle import State
from postroad.ops.rendering.payloads import show_payload
from postroad.ops.rendering.tables import Column, Row, show_facts, show_rows
from postroad.ops.rendering.text import age, count, one_line, time_text, without_secrets
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.admin import Count, MessageAtSink, MessageHistory, MessagePage, MessageRow

__all__ = ["Listing", "history_as_json", "show_history", "show_listing"]

_STYLES = {State.DEAD: "red", State.RETRYING: "yellow", State.SENDING: "yellow", State.HELD: "yellow"}
_COLUMNS = (
    Column("id", whole=True),
    Column("state", whole=True),
    Column("tries", right=True, whole=True),
    Column("age", right=True, whole=True),
    Column("next", right=True, whole=True, optional=True),
    Column("type"),
    Column("key"),
)


# -- a list ----------------------------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """Messages, newest first, and how many match."""

    page: MessagePage
    total: Count
    sinks: Sequence[str]
    """All sinks, whether they have messages on the page or not."""


def show_listing(listing: Listing, thing: str, *, as_json: bool) -> None:
    """Print a list of messages and how many of all matches are in it."""
    if as_json:
        shown = [_row_as_json(row) for row in listing.page.messages]
        back = listing.page.looked_back_to
        typer.echo(in_json({"messages": shown, "total": listing.total, "looked_back_to": back}))
        return
    rows = listing.page.messages
    if rows:
        several = len(listing.sinks) > 1
        columns = (Column("sink"), *_COLUMNS) if several else _COLUMNS
        now = datetime.now(UTC)
        show_rows(columns, [_shown(row, now, several=several) for row in rows], note="error")
    typer.echo(_summary(listing, thing), err=bool(rows))


def _shown(row: MessageRow, now: datetime, *, several: bool) -> Row:
    due = "" if row.next_attempt_at is None else _until(row.next_attempt_at, now)
    error = without_secrets(row.error or "") + (f" (route {one_line(row.route)} is blocked)" if row.route else "")
    rough = age(now - row.created_at).split()[0]
    cells = [str(row.id), row.state, str(row.attempts), rough, due, one_line(row.type)]
    sink = [one_line(row.sink)] if several else []
    return Row([*sink, *cells, one_line(row.key or "")], error, _STYLES.get(row.state, ""))


def _until(moment: datetime, now: datetime) -> str:
    return f"in {age(moment - now)}" if moment > now else "now"


def _row_as_json(row: MessageRow) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(row)
    return shown | {"error": None if row.error is None else without_secrets(row.error)}


def _summary(listing: Listing, thing: str) -> str:
    shown, total = len(listing.page.messages), listing.total
    back = listing.page.looked_back_to
    limit = "" if back is None else f"; only messages above position {back:,} were searched"
    if not shown:
        return f"No {thing} matches{limit}."
    if shown < total.number:
        return f"{shown:,} of {'' if total.exact else 'about '}{count(total.number, thing)} shown; see --limit{limit}."
    unread = "" if listing.sinks else "; no relay has run yet, so none was published"
    return f"{count(shown, thing)}{limit}{unread}."


# -- one -------------------------------------------------------------------------------------------------------------


def show_history(message: MessageHistory, *, payload: bool) -> None:
    typer.echo(f"message {message.id}")
    show_facts(list(_facts(message)), indent="  ")
    if payload:
        show_payload(message.payload, message.content_type, message.headers, size=message.payload_size)
    for each in message.sinks:
        typer.echo(f"\nat sink {one_line(each.row.sink)!r}, lane {each.row.lane}")
        show_facts(list(_history(message, each)), indent="  ")
    if not message.sinks:
        typer.echo("\nno sink has read it yet")


def history_as_json(message: MessageHistory, *, payload: bool) -> str:
    """Everything about a message as JSON; the payload in Base64, if it was asked for."""
    shown: dict[str, Any] = msgspec.to_builtins(message)
    if not payload:
        del shown["payload"]
    for at, each in enumerate(message.sinks):
        shown["sinks"][at] |= {"row": _row_as_json(each.row)}
        for failure in shown["sinks"][at]["failures"]:
            failure["error"] = without_secrets(failure["error"])
    return in_json(shown)


def _facts(message: MessageHistory) -> Iterator[tuple[str, str]]:
    now = datetime.now(UTC)
    yield "type", one_line(message.type)
    if message.topic != message.type:
        yield "topic", one_line(message.topic)
    yield "key", "(none)" if message.key is None else one_line(message.key)
    place = "" if message.position is None else f", position {message.position:,}"
    yield "added", f"{time_text(message.created_at)} ({age(now - message.created_at)} ago){place}"
    if message.deliver_at is not None:
        yield "due", f"{time_text(message.deliver_at)} ({_until(message.deliver_at, now)})"
    for name, value in message.headers.items():
        yield one_line(name, 30), one_line(value)
    for id, type in message.caused:
        yield "caused", f"{id} {one_line(type)}"
    if message.is_tombstone:
        yield "payload", "none: it is a tombstone"
        return
    size = message.payload_size
    shown = "not readable by this role;" if size is None else f"{count(size, 'byte')} of"
    done = by_codecs(message.headers)
    yield "payload", f"{shown} {one_line(message.content_type, 100)}{done and f', {done}'}"


def _history(message: MessageHistory, there: MessageAtSink) -> Iterator[tuple[str, str]]:
    """What happened, in order, and the current state."""
    row, now = there.row, datetime.now(UTC)
    if message.position is not None:
        yield time_text(message.created_at), "added"
    for failure in there.failures:
        yield time_text(failure.failed_at), f"attempt {failure.attempt} failed: {without_secrets(failure.error)}"
    if row.published_at is not None:
        yield time_text(row.published_at), "published"
    shown = {failure.error for failure in there.failures}
    if row.error and row.error not in shown and row.state is not State.PUBLISHED:
        yield "last error", without_secrets(row.error)
    yield f"now {row.state}", _outlook(row, now)


def _outlook(row: MessageRow, now: datetime) -> str:
    tried = f"after {count(row.attempts, 'attempt')}" if row.attempts else ""
    match row.state:
        case State.DEAD:
            return f"{tried}; use `postroad dead retry ID` or `postroad dead drop ID`".removeprefix("; ")
        case State.RETRYING if row.next_attempt_at is not None:
            return f"{tried}; next {_until(row.next_attempt_at, now)}, at {time_text(row.next_attempt_at)}".lstrip("; ")
        case State.HELD if row.route:
            return f"until route {one_line(row.route)} is unblocked"
        case State.HELD:
            return "until earlier messages of its key are published, and the key is not held"
        case State.WAITING:
            return "in the log; no relay has read it yet"
        case _:
            return ""
