"""Message: its history at each sink, why it is not sent, what it was caused by and what it caused, and its payload.

The payload needs a right of its own, and each look at it is written into the audit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID

from starlette.exceptions import HTTPException

from postroad.admin import By, State
from postroad.codecs.description import by_codecs
from postroad.commands import command_of
from postroad.console.causation import walk
from postroad.console.charts import Box, graph
from postroad.console.remedies import button_of
from postroad.lifecycle import Mover, may_move
from postroad.payload_view import LARGEST_SHOWN, payload_view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from starlette.responses import Response

    from postroad.admin import Answer, MessageAtSink, MessageHistory, MessageRow, Node
    from postroad.console.context import Context
    from postroad.console.remedies import Button

__all__ = ["answer_view", "message", "payload", "shown_payload"]

PAYLOAD_BYTES: Final = 256 * 1024
"""So much of a payload is read. A larger one is redacted as a text whose end is missing."""


class Step(NamedTuple):
    """A line of a message's history."""

    at: datetime | None
    text: str
    kind: str
    """`added`, `failed`, `published` or `now`."""


class AnswerView(NamedTuple):
    """An answer of the explainer, with what can be done."""

    answer: Answer
    button: Button | None
    command: str | None


async def message(context: Context) -> Response:
    """The page."""
    return context.page("message.html", **await _view(context), shown=None)


async def payload(context: Context) -> Response:
    """The page with the payload. That it was looked at is written into the audit first."""
    id, admin = _id(context), await context.database.admin()
    found = await admin.message(id, payload_bytes=PAYLOAD_BYTES)
    reason = context.form.get("reason", "").strip() or None
    await admin.record_view(id, By(context.user.name, reason))
    context.database.forget()
    return context.page("message.html", **await _view(context), shown=_payload(context, found))


async def _view(context: Context) -> dict[str, Any]:
    id, admin = _id(context), await context.database.admin()
    explained = await admin.why(id)
    found = await admin.message(id, payload_bytes=0) if explained.type is not None else None
    return {
        "id": id,
        "explained": explained,
        "answers": [answer_view(each) for each in explained.answers],
        "found": found,
        "headers": {} if found is None else context.shared.redaction.headers(found.headers),
        "timelines": []
        if found is None
        else [(each.row, list(_steps(found, each)), _possible(each.row)) for each in found.sinks],
        "codecs": "" if found is None else by_codecs(found.headers),
        "causes": await _causes(context, id),
    }


async def _causes(context: Context, id: UUID) -> dict[str, Any] | None:
    """The causation graph across the databases of the console; None if the message is alone in it."""
    found = await walk(context.shared.databases, id)
    if len(found.graph.nodes) < 2:
        return None
    boxes = [_box(context, node, id) for node in found.graph.nodes]
    names = {box.key: f"{box.title} ({box.subtitle})" for box in boxes}
    edges = [(edge.source, edge.target) for edge in found.graph.edges]
    description = f"{len(boxes)} steps, in {len({node.database for node in found.graph.nodes})} databases"
    return {
        "chart": graph(boxes, edges, title="What caused it, and what it caused", description=description),
        "list": [(names[edge.source], edge.kind, names[edge.target]) for edge in found.graph.edges],
        "boxes": boxes,
        "walk": found,
    }


def _box(context: Context, node: Node, id: UUID) -> Box:
    this = "this" if node.kind == "message" and node.id == str(id) else ""
    where = node.database or "not in these databases"
    href = None
    if node.database is not None and node.kind == "message":
        href = context.root(f"{quote(node.database)}/message/{node.id}")
    elif node.database is not None and node.outcome == "dead":
        href = context.root(f"{quote(node.database)}/inbox")
    if node.kind == "handled":
        title = f"{node.consumer} gave it up" if node.outcome == "dead" else f"{node.consumer} handled it"
        return Box(node.key, title, where, href, f"handled {node.outcome} {this}")
    title = node.type or f"\u2026{node.id[-8:]}"
    elsewhere = "" if node.database is not None else "elsewhere"
    return Box(node.key, title, f"{where}, \u2026{node.id[-8:]}", href, f"{this} {elsewhere}")


def answer_view(answer: Answer) -> AnswerView:
    last = answer
    while last.because is not None:
        last = last.because
    remedy = answer.remedy or last.remedy
    if remedy is None:
        return AnswerView(answer, None, None)
    return AnswerView(answer, button_of(remedy), command_of(remedy))


def _steps(message: MessageHistory, there: MessageAtSink) -> Iterator[Step]:
    yield Step(message.created_at, "added", "added")
    for failure in there.failures:
        yield Step(failure.failed_at, f"attempt {failure.attempt} failed: {failure.error}", "failed")
    row = there.row
    if row.published_at is not None:
        yield Step(row.published_at, "published", "published")
    elif row.state is not State.PUBLISHED:
        yield Step(row.next_attempt_at, f"now {row.state}", "now")


_GOALS: Final = {"retry": State.RETRYING, "drop": State.DROPPED, "skip": State.SKIPPED, "poison": State.DEAD}


def _possible(row: MessageRow) -> list[str]:
    """The changes that the lifecycle allows, by name."""
    if row.state is State.DROPPED:
        return ["restore"]
    return [name for name, goal in _GOALS.items() if may_move(row.state, goal, Mover.OPERATOR)]


def _payload(context: Context, message: MessageHistory) -> dict[str, Any]:
    if message.payload_size is None:
        return {"why_not": "the database role of this console may not read payloads"}
    if message.is_tombstone:
        return {"why_not": "there is none: it is a tombstone"}
    if codecs := by_codecs(message.headers):
        return {"why_not": f"it is {codecs}, and the console has no key and no store"}
    return shown_payload(context, message.payload, message.content_type, message.payload_size)


def shown_payload(context: Context, body: bytes, content_type: str, size: int) -> dict[str, Any]:
    """A payload, with the fields hidden that are to be hidden."""
    body = body[:PAYLOAD_BYTES]
    hidden = context.shared.redaction.payload(body)
    whole = size == len(body)
    view = payload_view(hidden, content_type, size=len(hidden) if whole else size, most=4 * LARGEST_SHOWN)
    return {"why_not": "", "view": view, "redacted": hidden != body}


def _id(context: Context) -> UUID:
    try:
        return UUID(context.request.path_params["id"])
    except ValueError:
        raise HTTPException(404, "a message's id has 32 hexadecimal digits") from None
