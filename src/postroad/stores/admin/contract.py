"""The values that `Admin` takes and returns. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from postroad.lifecycle import State

__all__ = [
    "MINUTES",
    "AuditEntry",
    "By",
    "Count",
    "Done",
    "FailedAttempt",
    "Filter",
    "HeldKey",
    "KeyCount",
    "KeyPreview",
    "LaneReport",
    "MessageAtSink",
    "MessageHistory",
    "MessagePage",
    "MessageRow",
    "OnProgress",
    "Rewind",
    "SinkReport",
    "StatusReport",
    "Totals",
    "totals",
]

MINUTES: Final = 60
"""How many minutes of throughput a status report covers."""

OnProgress = Callable[[int], None]
"""Called after each batch with the number of messages changed so far."""


# -- arguments -------------------------------------------------------------------------------------------------------


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects messages. A message must match every field that is given."""

    sink: str | None = None
    state: State | None = None
    ids: Sequence[UUID] = ()
    key: str | None = None
    type: str | None = None
    topic: str | None = None
    error: str | None = None
    """The last error contains this text, ignoring case."""
    since: datetime | None = None
    """Added at this time or later."""
    before: datetime | None = None
    """Added before this time."""
    all: bool = False
    """Selects every message. Without it, a change with an otherwise empty filter is refused."""

    @property
    def is_empty(self) -> bool:
        """Whether no field selects messages. A sink alone does not."""
        return not (
            self.state or self.ids or self.key or self.type or self.topic or self.error or self.since or self.before
        )


class By(msgspec.Struct, frozen=True):
    """Who makes a change and why, for the audit."""

    who: str
    reason: str | None = None


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """Selects delivered messages of a sink that are to be published again."""

    sink: str
    to: datetime | int
    """A time: messages added then or later. A number: messages at this position or later."""
    key: str | None = None
    type: str | None = None
    new_ids: bool = False
    """Publish them with new ids, so that inboxes process them again. Otherwise inboxes ignore the ids they know."""


# -- results ---------------------------------------------------------------------------------------------------------


class Count(msgspec.Struct, frozen=True):
    """A number of messages."""

    number: int
    exact: bool = True
    """False: an estimate, because an exact count would have to scan the log."""


class KeyCount(msgspec.Struct, frozen=True):
    """The messages of a key, by how far they have come."""

    delivered: int
    """Delivered to every sink."""
    undelivered: int
    """In the log, and at some sink waiting, retrying, held or dead."""
    scheduled: int
    """Not in the log yet."""


class KeyPreview(msgspec.Struct, frozen=True):
    """What `hold` would hold back."""

    waiting: int
    """Messages of the key that are not published yet, among the newest."""
    known: bool
    """Whether the log contains a message of this key, as far as it was searched."""
    similar: str | None
    """The most similar key of recent messages, if the key is unknown."""


class Done(msgspec.Struct, frozen=True):
    """The result of a change."""

    changed: int
    unchanged: Mapping[State, int] = {}
    """Messages that were selected by id but are in a state from which this change is not possible."""


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message at one sink, as in the view outbox_status, without its payload."""

    sink: str
    lane: int
    position: int
    id: UUID
    type: str
    topic: str
    key: str | None
    state: State
    attempts: int
    """Failed attempts since the message was added or last retried by an operator."""
    error: str | None
    """The last error."""
    route: str | None
    """The blocked route that the message waits for."""
    created_at: datetime
    next_attempt_at: datetime | None
    published_at: datetime | None
    """Accurate to the second. None also for messages published longer ago than progress is kept."""


class MessagePage(msgspec.Struct, frozen=True):
    """Messages, newest first."""

    messages: Sequence[MessageRow]
    looked_back_to: int | None = None
    """The search stopped at this position: there may be more matches below it. None: the search was complete, or it
    stopped because the page is full.
    """


class FailedAttempt(msgspec.Struct, frozen=True):
    """A failed attempt to publish a message."""

    attempt: int
    failed_at: datetime
    error: str


class MessageAtSink(msgspec.Struct, frozen=True):
    """A message at one sink, with its failed attempts."""

    row: MessageRow
    failures: Sequence[FailedAttempt]
    """In order, including those before an operator retried the message."""


class MessageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the database knows about a message."""

    id: UUID
    position: int | None
    """None while the message is scheduled."""
    type: str
    topic: str
    key: str | None
    content_type: str
    headers: Mapping[str, str]
    """All headers, including postroad's own. Empty if the stored text is not a JSON object of strings."""
    payload: bytes
    """The first `payload_bytes` bytes that were asked for."""
    payload_size: int | None
    """None: this database role may not read payloads."""
    created_at: datetime
    deliver_at: datetime | None
    """When a scheduled message moves into the log."""
    sinks: Sequence[MessageAtSink]
    """Empty while the message is scheduled, or no sink exists."""
    caused: Sequence[tuple[UUID, str]]
    """Ids and types of messages whose causation id is this message, among the SCAN_LIMIT rows after it."""


class LaneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a lane."""

    lane: int
    position: int
    pending: Count
    """Messages in the log that the lane has not processed."""
    lag_seconds: float
    """The age of the oldest pending message; 0 if there is none."""
    oldest_unsent_seconds: float
    """The age of the oldest message that is not sent, pending or deferred; 0 if there is none."""
    failing: int
    """Messages that are retrying or being sent after a failed attempt."""
    held: int
    dead: int
    unroutable: int
    """Messages dropped because no consumer had subscribed to them, as long as they are in the log."""
    paused: bool
    owner: UUID | None
    published_last_hour: int
    refused_last_hour: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of several lanes. A message that two sinks still have to send counts twice."""

    sinks: int
    lanes: int
    pending: int
    exact: bool
    """False: `pending` is an estimate."""
    lag_seconds: float
    """The longest lag of all lanes."""
    oldest_unsent_seconds: float
    """The age of the oldest unsent message of all lanes."""
    failing: int
    held: int
    dead: int
    unroutable: int
    published_last_hour: int

    @property
    def undelivered(self) -> Count:
        """Messages that are pending, failing, held or dead."""
        return Count(self.pending + self.failing + self.held + self.dead, exact=self.exact)


class HeldKey(msgspec.Struct, frozen=True):
    """A key that an operator holds."""

    sink: str
    key: str
    since: datetime
    who: str
    reason: str | None


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sink and its lanes."""

    sink: str
    destination: str | None
    """Where its relays deliver to. None until a relay that records its destination has served the sink."""
    served_at: datetime
    """When a relay last served it; about now while one does."""
    relays: int
    """How many relays serve it now."""
    lanes: Sequence[LaneReport]
    published_per_minute: Sequence[int]
    """MINUTES numbers, oldest first. The last one is the current minute of the clock."""
    held_keys: Sequence[HeldKey]

    @property
    def paused(self) -> bool:
        """Whether the sink is paused."""
        return any(lane.paused for lane in self.lanes)


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all sinks."""

    at: datetime
    """By the database's clock."""
    sinks: Sequence[SinkReport]
    scheduled: Count
    """Scheduled messages, which are not in the log yet."""
    next_scheduled_at: datetime | None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that an operator made."""

    number: int
    at: datetime
    who: str
    """The name that was given, or the user of the process."""
    role: str | None
    """The database role that made the change. None: unknown, or the database has no roles."""
    command: str
    arguments: Mapping[str, object]
    reason: str | None
    changed: int


def totals(sinks: Sequence[SinkReport]) -> Totals:
    """Add up the lanes of some sinks."""
    lanes = [lane for sink in sinks for lane in sink.lanes]
    return Totals(
        sinks=len(sinks),
        lanes=len(lanes),
        pending=sum(lane.pending.number for lane in lanes),
        exact=all(lane.pending.exact for lane in lanes),
        lag_seconds=max((lane.lag_seconds for lane in lanes), default=0.0),
        oldest_unsent_seconds=max((lane.oldest_unsent_seconds for lane in lanes), default=0.0),
        failing=sum(lane.failing for lane in lanes),
        held=sum(lane.held for lane in lanes),
        dead=sum(lane.dead for lane in lanes),
        unroutable=sum(lane.unroutable for lane in lanes),
        published_last_hour=sum(lane.published_last_hour for lane in lanes),
    )
