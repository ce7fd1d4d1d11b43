"""Causation across databases: what one database knows about a message, and how several of these make one graph. Pure.

A message is caused by the message that was being handled when it was added. Ids are those of the messages' producers,
so what an outbox has sent is found again in the inbox of another database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

__all__ = ["Causation", "CausationGraph", "Edge", "Handled", "KnownMessage", "Node", "join"]


class KnownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the outbox of a database."""

    id: str
    type: str
    created_at: datetime


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer of a database made of a message."""

    consumer: str
    identity: str
    """The message's identity in the inbox: its source, a space, and its id."""
    type: str
    outcome: Literal["processed", "dead"]
    at: datetime
    error: str | None = None


class Causation(msgspec.Struct, frozen=True, kw_only=True):
    """The neighbourhood of a message in one database."""

    id: str
    identity: str | None
    """Its identity in inboxes, with which other databases can look it up by index. None: its source is not known."""
    message: KnownMessage | None
    """None: it is not in the outbox of this database, or not any more."""
    cause: str | None
    """The id of the message that caused it, which may be in another database."""
    caused: Sequence[KnownMessage]
    """What it caused here."""
    searched_all: bool
    """False: it may have caused more, because only a part of the log was searched."""
    handled: Sequence[Handled]
    """By which consumers of this database."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or what a consumer made of it."""

    key: str
    """Unique in the graph."""
    kind: Literal["message", "handled"]
    id: str
    """Of the message."""
    database: str | None
    """Which outbox or inbox it is in. None: in none of those that were asked."""
    type: str | None = None
    at: datetime | None = None
    consumer: str | None = None
    outcome: Literal["processed", "dead"] | None = None
    error: str | None = None


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """From a message to a consumer that got it ("delivered"), or to what it caused ("caused"): from the consumer, if
    only one can have caused it, or else from the message itself.
    """

    source: str
    target: str
    kind: Literal["delivered", "caused"]


class CausationGraph(msgspec.Struct, frozen=True):
    """Nodes and edges, each once, in the order of time as far as it is known."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]


def join(known: Iterable[tuple[str, Causation]]) -> CausationGraph:
    """One graph of what several databases know, of one message or of several that are related. Each answer comes with
    the name of its database.
    """
    answers = list(known)
    nodes: dict[str, Node] = {}
    for database, answer in answers:
        for node in _nodes(database, answer):
            before = nodes.get(node.key)
            if before is None or before.database is None:
                nodes[node.key] = node
    edges = dict.fromkeys(edge for database, answer in answers for edge in _edges(database, answer, nodes))
    return CausationGraph(sorted(nodes.values(), key=_order), list(edges))


def _nodes(database: str, answer: Causation) -> Iterable[Node]:
    yield _unknown(answer.id)
    if answer.cause is not None:
        yield _unknown(answer.cause)
    for message in [*([answer.message] if answer.message else []), *answer.caused]:
        yield Node(
            key=_message_key(message.id),
            kind="message",
            id=message.id,
            database=database,
            type=message.type,
            at=message.created_at,
        )
    for handled in answer.handled:
        yield Node(
            key=_handled_key(database, handled, answer.id),
            kind="handled",
            id=answer.id,
            database=database,
            type=handled.type,
            at=handled.at,
            consumer=handled.consumer,
            outcome=handled.outcome,
            error=handled.error,
        )


def _edges(database: str, answer: Causation, nodes: dict[str, Node]) -> Iterable[Edge]:
    for handled in answer.handled:
        key = _handled_key(database, handled, answer.id)
        yield Edge(source=_message_key(answer.id), target=key, kind="delivered")
    pairs = [(answer.id, message.id) for message in answer.caused]
    if answer.cause is not None:
        pairs.append((answer.cause, answer.id))
    for cause, id in pairs:
        yield Edge(source=_causing(cause, id, nodes), target=_message_key(id), kind="caused")


def _causing(cause: str, id: str, nodes: dict[str, Node]) -> str:
    """The node that caused a message: the only consumer of its database that has processed the cause, or the cause."""
    database = nodes[_message_key(id)].database
    consumers = [
        node.key
        for node in nodes.values()
        if node.kind == "handled" and node.id == cause and node.database == database and node.outcome == "processed"
    ]
    return consumers[0] if len(consumers) == 1 and database is not None else _message_key(cause)


def _unknown(id: str) -> Node:
    return Node(key=_message_key(id), kind="message", id=id, database=None)


def _message_key(id: str) -> str:
    return f"message {id}"


def _handled_key(database: str, handled: Handled, id: str) -> str:
    return f"handled {database} {handled.consumer} {id}"


def _order(node: Node) -> tuple[bool, float, str]:
    return node.at is not None, 0.0 if node.at is None else node.at.timestamp(), node.key
