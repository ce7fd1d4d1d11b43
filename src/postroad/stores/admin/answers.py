"""The values of the explainer: what is looked up about a message (`…Facts`), and what `explain` makes of it. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from postroad.lifecycle import State
    from postroad.stores.admin.contract import AuditEntry, FollowedSlot, HeldKey, MessageRow, Pause

__all__ = [
    "Action",
    "Answer",
    "DeferredFacts",
    "Explanation",
    "KeyExplanation",
    "KeyFacts",
    "KeyWindow",
    "LaneFacts",
    "MessageFacts",
    "PublishedFacts",
    "Reason",
    "Remedy",
    "SinkFacts",
    "UnknownFacts",
]


class Reason(StrEnum):
    """Why a message has not been sent to a sink; or what became of it."""

    SCHEDULED = "scheduled"
    """It is not due yet."""
    OVERDUE = "overdue"
    """It was due, and no relay has moved it into the log."""
    NO_SINK = "no sink"
    """No relay has run yet, so there is no sink."""
    NOT_TAKEN = "not taken"
    """The sink's filter does not take it."""
    PAUSED = "paused"
    """An operator has paused the sink."""
    NO_OWNER = "no owner"
    """No relay owns the message's lane."""
    LEASE_EXPIRED = "lease expired"
    """The relay that owned the message's lane has stopped renewing its lease, and no other has taken the lane."""
    NOT_READ = "not read"
    """The message's lane has not come that far."""
    COMMITTED_LATE = "committed late"
    """The message's lane had passed its position before its transaction committed, and reads it next."""
    SLOT_LOST = "slot lost"
    """The replication slot that the sink follows is not the one that it followed."""
    NOT_CONFIRMED = "not confirmed"
    """The reader of the replication slot that the sink follows has not confirmed it."""
    STALLED = "stalled"
    """The lane has a live owner, and has published nothing for a while: the broker may be unavailable."""
    KEY_HELD = "key held"
    """An operator holds its key."""
    BEHIND = "behind"
    """An earlier message of its key must go first."""
    ROUTE_BLOCKED = "route blocked"
    """The broker takes nothing on its route for now."""
    RETRYING = "retrying"
    """It was refused, and is due for another attempt at a known time."""
    SENDING = "sending"
    """Its lane is publishing it now."""
    NEXT = "next"
    """Nothing holds it any more: its lane sends it next."""
    DEAD = "dead"
    """It was refused permanently or too often, or an operator poisoned it."""
    SKIPPED = "skipped"
    """An operator skipped it."""
    DROPPED = "dropped"
    """An operator dropped it."""
    UNROUTABLE = "unroutable"
    """The relay dropped it, because no consumer had subscribed to it."""
    CANCELED = "canceled"
    """The application canceled it."""
    PUBLISHED = "published"
    """The destination has confirmed it."""
    EXPIRED = "expired"
    """No message has this id any more: by the time in the id, retention has deleted it."""
    UNKNOWN = "unknown"
    """No message has this id: its transaction was rolled back or is still open, or the id is wrong."""
    NONE_WAITS = "none waits"
    """Of a key: none of its messages waits at the sink, as far as was searched."""


class Action(StrEnum):
    """What an operator can do about it. The command line has a command for each, and a console a button or a page."""

    RESUME = "resume"
    ADOPT_SLOT = "adopt slot"
    RELEASE = "release"
    RETRY = "retry"
    START_RELAY = "start relay"
    REMOVE_SINK = "remove sink"
    LIST_RELAYS = "list relays"
    LIST_CONSUMERS = "list consumers"
    LIST_DEAD = "list dead"
    LIST_DEAD_LETTERS = "list dead letters"
    LIST_MESSAGES = "list messages"


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """An action and what it is about."""

    action: Action
    sink: str | None = None
    key: str | None = None
    id: UUID | None = None
    state: State | None = None


# -- what is looked up -----------------------------------------------------------------------------------------------


class LaneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A message's lane at one sink."""

    sink: str
    lane: int
    position: int
    """How far the lane has come."""
    reading: Literal["ahead", "late", "passed"]
    """Whether the message is ahead of the cursor; or at or before it, but its transaction committed later; or dealt
    with.
    """
    owner: UUID | None
    lease_until: datetime | None
    host: str | None
    """Of the relay that owns it. None: no such relay is registered."""
    pid: int | None
    heartbeat_at: datetime | None
    served_at: datetime
    """When a relay last served the sink."""
    relays: int
    """How many relays serve the sink now."""
    pause: Pause | None
    progressed_at: datetime | None
    """When the lane's cursor last moved."""
    not_taken_by: str | None = None
    """The sink's filter, in words, if it does not take the message."""
    slot: FollowedSlot | None = None
    """The replication slot that the sink follows."""


class DeferredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a deferred message."""

    id: UUID
    position: int
    state: State
    attempts: int
    due_at: datetime | None
    key: str | None
    """The ordering key."""
    route: str | None
    route_since: datetime | None
    """When the first message that waits for this route was deferred."""
    error: str | None
    deferred_at: datetime
    failed_at: datetime | None
    rewound: bool
    """It is to be published again."""


class PublishedFacts(msgspec.Struct, frozen=True):
    """When a message was published: after one time and at or before another, as far as is known."""

    after: datetime | None
    before: datetime | None


class SinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A message at one sink."""

    lane: LaneFacts
    deferred: DeferredFacts | None = None
    hold: HeldKey | None = None
    head: DeferredFacts | None = None
    """The first message of its key that must go before it."""
    published: PublishedFacts | None = None


class MessageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A message, at all sinks that were asked about."""

    at: datetime
    """Now, by the database's clock."""
    id: UUID
    type: str
    topic: str
    key: str | None
    position: int | None
    """None while it is scheduled."""
    created_at: datetime
    deliver_at: datetime | None = None
    sinks: Sequence[SinkFacts] = ()
    audit: Sequence[AuditEntry] = ()
    """The newest lines of the audit, newest first, if an operator or an application has decided about the message."""


class UnknownFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an id that no message has."""

    at: datetime
    id: UUID
    made_at: datetime | None
    """The time in the id, if it has one (UUIDv7)."""
    oldest_at: datetime | None
    """When the oldest message in the log was added."""
    open_transactions: int
    """How many open transactions have written to the log, so that the message may be in one. 0: none, or not known."""
    audit: Sequence[AuditEntry] = ()


class KeyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A key at one sink."""

    at: datetime
    key: str
    sink: str
    hold: HeldKey | None
    waiting: int
    """Deferred messages of the key that wait; at most `most`."""
    most: int
    first: MessageFacts | None
    """The message that goes next, at this sink alone: the key's head, or else its first message that was not read. None
    if there is none, as far as was searched.
    """
    newest: MessageFacts | None
    """If none waits: the key's newest message."""
    searched: int
    """How many rows of the log were searched at most."""


# -- what comes out --------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The one answer about a message, or a key, at one sink."""

    sink: str | None
    """None: the answer is the same for all sinks."""
    reason: Reason
    text: str
    """The answer in words: one sentence, safe to print."""
    evidence: Mapping[str, Any]
    """The values that the answer is drawn from."""
    advice: str = ""
    """What to do, in words. Empty: nothing needs to be done, or `remedy` says it all."""
    remedy: Remedy | None = None
    """What does it."""
    because: Answer | None = None
    """Of a message behind another one: why that one waits."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message has not been sent, or what became of it."""

    at: datetime
    id: UUID
    position: int | None
    """None: it is scheduled, or unknown."""
    type: str | None
    """None: no message has this id."""
    topic: str | None
    key: str | None
    created_at: datetime | None
    answers: Sequence[Answer]
    """One for each sink; a single one if it is the same for all."""


class KeyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What the messages of a key wait for."""

    at: datetime
    key: str
    answers: Sequence[Answer]
    """One for each sink; none if there is no sink."""


class KeyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a key's messages at a sink, in order: the first that wait, and the newest."""

    sink: str
    key: str
    messages: Sequence[MessageRow]
    """In order. If there are more than were asked for, those between the first that wait and the newest are missing."""
    head: UUID | None
    """The deferred message that blocks the others. None: there is none."""
    waiting: int
    """Deferred messages of the key that wait, the head among them, counted up to a bound."""
    hold: HeldKey | None
    answer: Answer
    """What the key waits for, as `Admin.why_key` says it."""
    looked_back_to: int | None
    """The log was searched down to this position; None: to its beginning, or until the window was full."""
