"""How messages look: as a list, and one with its whole history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from postroad.errors import NotFound
from postroad.lifecycle import State
from postroad.ops.commands.choosing import ask
from postroad.ops.showing import LARGEST_SHOWN, age, count, one_line, payload_view, said, when
from postroad.ops.tables import Column, Row, show_facts, show_rows
from postroad.ops.terminal import as_json as in_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from postroad.ops.insights import Listing
    from postroad.ops.settings import Settings
    from postroad.stores.operating import MessageAtSink, MessageHistory, MessageRow

__all__ = ["show_listing", "show_message"]

_WHOLE_PAYLOAD = 2**31 - 1
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


def show_listing(listing: Listing, thing: str, *, as_json: bool) -> None:
    """The messages, and whether these are all."""
    if as_json:
        shown = [_row_for_programs(row) for row in listing.found.messages]
        back = listing.found.looked_back_to
        typer.echo(in_json({"messages": shown, "total": listing.total, "looked_back_to": back}))
        return
    rows = listing.found.messages
    if rows:
        several = len(listing.sinks) > 1
        columns = (Column("sink"), *_COLUMNS) if several else _COLUMNS
        now = datetime.now(UTC)
        show_rows(columns, [_shown(row, now, several=several) for row in rows], note="error")
    typer.echo(_what_is_not_shown(listing, thing), err=bool(rows))


def _shown(row: MessageRow, now: datetime, *, several: bool) -> Row:
    due = "" if row.next_attempt_at is None else _until(row.next_attempt_at, now)
    error = said(row.error or "") + (f" (the route {one_line(row.route)} is out)" if row.route else "")
    rough = age(now - row.created_at).split()[0]
    cells = [str(row.id), row.state, str(row.attempts), rough, due, one_line(row.type)]
    sink = [one_line(row.sink)] if several else []
    return Row([*sink, *cells, one_line(row.key or "")], error, _STYLES.get(row.state, ""))


def _until(moment: datetime, now: datetime) -> str:
    return f"in {age(moment - now)}" if moment > now else "now"


def _row_for_programs(row: MessageRow) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(row)
    return shown | {"error": None if row.error is None else said(row.error)}


def _what_is_not_shown(listing: Listing, thing: str) -> str:
    shown, total = len(listing.found.messages), listing.total
    back = listing.found.looked_back_to
    limit = "" if back is None else f"; only what lies above position {back:,} was looked at"
    if not shown:
        return f"No {thing} matches{limit}."
    if shown < total.number:
        return f"{shown:,} of {'' if total.exact else 'about '}{count(total.number, thing)} shown; see --limit{limit}."
    unread = "" if listing.sinks else "; no relay has run yet, so none was sent"
    return f"{count(shown, thing)}{limit}{unread}."


# -- one -------------------------------------------------------------------------------------------------------------


def show_message(settings: Settings, id: UUID, *, payload: bool, as_json: bool, must_be: State | None = None) -> None:
    """Find a message and show all that is known of it."""
    size = (_WHOLE_PAYLOAD if as_json else LARGEST_SHOWN + 4) if payload else 0
    message = ask(settings, lambda insights: insights.message(id, payload_bytes=size))
    states = {each.row.state for each in message.sinks}
    if must_be is not None and must_be not in states:
        raise NotFound(f"message {id} is not {must_be} but {', '.join(sorted(states)) or 'not sent yet'}")
    if as_json:
        typer.echo(in_json(_for_programs(message, payload=payload)))
        return
    typer.echo(f"message {message.id}")
    show_facts(list(_facts(message)), indent="  ")
    if payload:
        _show_payload(message)
    for each in message.sinks:
        typer.echo(f"\nat sink {one_line(each.row.sink)!r}, lane {each.row.lane}")
        show_facts(list(_history(message, each)), indent="  ")
    if not message.sinks:
        typer.echo("\nno sink reads it yet")


def _for_programs(message: MessageHistory, *, payload: bool) -> dict[str, Any]:
    """The payload is in Base64, as whatever it is; it is there only if it was asked for."""
    shown: dict[str, Any] = msgspec.to_builtins(message)
    if not payload:
        del shown["payload"]
    for at, each in enumerate(message.sinks):
        shown["sinks"][at] |= {"row": _row_for_programs(each.row)}
        for failure in shown["sinks"][at]["failures"]:
            failure["error"] = said(failure["error"])
    return shown


def _facts(message: MessageHistory) -> Iterator[tuple[str, str]]:
    now = datetime.now(UTC)
    yield "type", one_line(message.type)
    if message.topic != message.type:
        yield "topic", one_line(message.topic)
    yield "key", "(none)" if message.key is None else one_line(message.key)
    place = "" if message.position is None else f", position {message.position:,}"
    yield "added", f"{when(message.created_at)} ({age(now - message.created_at)} ago){place}"
    if message.deliver_at is not None:
        yield "to be sent", f"{when(message.deliver_at)} ({_until(message.deliver_at, now)})"
    for name, value in message.headers.items():
        yield one_line(name, 30), one_line(value)
    for id, type in message.caused:
        yield "caused", f"{id} {one_line(type)}"
    size = message.payload_size
    shown = "not readable by this role;" if size is None else f"{count(size, 'byte')} of"
    yield "payload", f"{shown} {one_line(message.content_type, 100)}"


def _show_payload(message: MessageHistory) -> None:
    view = payload_view(message.payload, message.content_type, size=message.payload_size)
    for line in view.lines:
        typer.echo(f"  | {line}")
    if view.shown < view.size:
        typer.echo(f"  | ... cut: {view.shown:,} of {view.size:,} bytes shown; --json has all of it, in Base64")


def _history(message: MessageHistory, there: MessageAtSink) -> Iterator[tuple[str, str]]:
    """What happened, in order, and what is true now."""
    row, now = there.row, datetime.now(UTC)
    if message.position is not None:
        yield when(message.created_at), "added"
    for failure in there.failures:
        yield when(failure.failed_at), f"attempt {failure.attempt} failed: {said(failure.error)}"
    if row.published_at is not None:
        yield when(row.published_at), "published"
    told = {failure.error for failure in there.failures}
    if row.error and row.error not in told and row.state is not State.PUBLISHED:
        yield "the last error", said(row.error)
    yield f"now {row.state}", _what_next(row, now)


def _what_next(row: MessageRow, now: datetime) -> str:
    tried = f"after {count(row.attempts, 'attempt')}" if row.attempts else ""
    match row.state:
        case State.DEAD:
            return f"{tried}; to decide: `postroad dead retry ID`, `postroad dead drop ID`".removeprefix("; ")
        case State.RETRYING if row.next_attempt_at is not None:
            return f"{tried}; the next one {_until(row.next_attempt_at, now)}, at {when(row.next_attempt_at)}".lstrip(
                "; "
            )
        case State.HELD if row.route:
            return f"until the route {one_line(row.route)} works again"
        case State.HELD:
            return "until nothing before it in its key is in trouble, and nobody holds the key"
        case State.WAITING:
            return "in the log; no relay has come that far"
        case _:
            return ""
