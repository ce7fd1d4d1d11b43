"""The values that `Admin` takes and returns. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from postroad.sink_filter import EVERYTHING, SinkFilter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from postroad.lifecycle import State

__all__ = [
    "MINUTES",
    "AuditEntry",
    "AuditFilter",
    "BlockedRoutes",
    "By",
    "ConsumerReport",
    "ConsumerStatus",
    "Count",
    "DatabaseNumbers",
    "DeadLetterFilter",
    "DeadLetterPage",
    "DeadLetterRow",
    "Done",
    "FailedAttempt",
    "Filter",
    "FilterPreview",
    "FollowedSlot",
    "HeldKey",
    "KeyCount",
    "KeyPreview",
    "LaneNumbers",
    "LaneReport",
    "LatencyMatrix",
    "MessageAtSink",
    "MessageHistory",
    "MessagePage",
    "MessageRow",
    "OnProgress",
    "Pause",
    "Rewind",
    "RewindPreview",
    "SinkNumbers",
    "SinkReport",
    "StatusReport",
    "Totals",
    "TroubleGroup",
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
    error_pattern: str | None = None
    """The last error has this pattern, as `TroubleGroup.pattern` has it. It is compared message by message: a list
    reads a bounded number of messages and says where it stopped, a count is a lower bound beyond that, and a change
    reads all.
    """
    since: datetime | None = None
    """Added at this time or later."""
    before: datetime | None = None
    """Added before this time."""
    all: bool = False
    """Selects every message. Without it, a change with an otherwise empty filter is refused."""

    @property
    def is_empty(self) -> bool:
        """Whether no field selects messages. A sink alone does not."""
        texts = self.key or self.type or self.topic or self.error or self.error_pattern
        return not (self.state or self.ids or texts or self.since or self.before)


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters of consumers. A letter must match every field that is given."""

    consumer: str | None = None
    ids: Sequence[str] = ()
    """Identities, as `DeadLetterRow.id` has them."""
    type: str | None = None
    error: str | None = None
    """The error contains this text, ignoring case."""
    since: datetime | None = None
    """Dead since this time or later."""
    before: datetime | None = None
    """Dead since before this time."""
    all: bool = False
    """Selects every dead letter. Without it, a change with an otherwise empty filter is refused."""

    @property
    def is_empty(self) -> bool:
        """Whether no field selects letters. A consumer alone does not."""
        return not (self.ids or self.type or self.error or self.since or self.before)


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects lines of the audit. A line must match every field that is given."""

    who: str | None = None
    command: str | None = None
    text: str | None = None
    """The name, the command, the arguments or the reason contain this text, ignoring case."""
    since: datetime | None = None
    before: datetime | None = None
    below: int | None = None
    """Lines with a lower number: what comes after a page of the audit."""


class By(msgspec.Struct, frozen=True):
    """Who makes a change and why, for the audit."""

    who: str
    reason: str | None = None


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """Selects delivered messages of a sink that are to be published again."""

    sink: str
    to: datetime | int
    """A time: messages added then or later. A number: messages at this position or later."""
    until: int | None = None
    """Messages at this position or before, such as `Admin.end_of_log` when a preview was shown. None: to the end."""
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


class RewindPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What `rewind` would publish again now. All but `count` is of the first messages that match."""

    count: Count
    sampled: int
    """How many of the first messages the rest is drawn from."""
    types: Sequence[tuple[str, int]]
    """The most frequent types, and how many messages of the sample have each."""
    number_of_keys: int
    """How many keys the sample has."""
    keys: Sequence[tuple[str, int]]
    """The most frequent keys."""
    ignored: Sequence[tuple[str, Count]]
    """Each consumer of this database's inbox that has processed some of them, and how many it would ignore, because it
    knows their ids; with new ids, none.
    """

    @property
    def exact(self) -> bool:
        """Whether the sample has all messages that match."""
        return self.count.exact and self.sampled == self.count.number


class LatencyMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """How long messages of a sink were on their way, from being added to the confirm of the first attempt, by time."""

    bounds: Sequence[float]
    """The upper bounds of the buckets in seconds; one more bucket without a bound follows."""
    step: timedelta
    times: Sequence[tuple[datetime, Sequence[int]]]
    """The beginnings of steps in which messages were published, and how many of them are in each bucket: the ages of a
    few messages of each page stand for all of it.
    """


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

    @property
    def is_tombstone(self) -> bool:
        """It has no content; see `Tombstone`."""
        return not self.content_type and not self.payload_size


class TroubleGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Deferred messages of a sink whose errors have one pattern. `Filter(sink=…, error_pattern=…)` selects them."""

    sink: str
    pattern: str
    """The error, with placeholders for ids, numbers, addresses and quoted values."""
    example: str
    """The newest error."""
    count: Count
    """Not exact: at least so many, because the sink has more deferred messages than were read."""
    states: Mapping[State, int]
    """How many of them are retrying, sending, held or dead."""
    types: Sequence[str]
    """The types of the newest of them."""
    first_at: datetime
    """When the first of them was first refused."""
    last_at: datetime
    """When one of them was last refused."""
    ids: Sequence[UUID]
    """A few of the newest."""


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
    lease_seconds: float | None = None
    """How long the owner keeps the lane without another heartbeat; negative: the lease has expired."""
    epoch: int = 0
    """How often the lane's owner has changed."""
    nap_seconds: float | None = None
    """Its owner has nothing to do, and waits so long at most until it looks again; a new message wakes it. None: it
    does not nap, or the database has no naps.
    """
    gap: int = 0
    """Positions between the lane's and the end of the log, of all lanes' messages."""
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


class Pause(msgspec.Struct, frozen=True):
    """Who paused a sink."""

    since: datetime
    who: str
    reason: str | None


class FollowedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """The replication slot that a sink follows: another program carries its messages."""

    name: str
    lost: str | None = None
    """Why it is not the slot that the sink followed. The sink is paused until an operator adopts the slot."""
    active: bool | None = None
    """Whether a program reads it; None: there is no slot of this name."""
    wal_status: str | None = None
    behind_bytes: int | None = None
    """How much of the write-ahead log its reader has not confirmed."""


class BlockedRoutes(msgspec.Struct, frozen=True):
    """Messages of a sink that wait for a blocked route."""

    messages: int
    route: str
    """One of the routes."""
    since: datetime
    """When the first of these messages was deferred."""


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
    pause: Pause | None = None
    slot: FollowedSlot | None = None
    blocked: BlockedRoutes | None = None
    failing_since: datetime | None = None
    """When the first of the messages that are failing was first refused."""
    dead_since: datetime | None = None
    """When the first of the dead messages was first refused."""
    copies: int = 0
    """Copies of messages that died in other sinks, and that wait for this one; see the setting `dead_letter_sink`."""
    copies_since: datetime | None = None
    """When the first of those messages died."""
    filter: SinkFilter = EVERYTHING
    """Which messages it takes: all numbers are of those."""

    @property
    def paused(self) -> bool:
        """Whether the sink is paused."""
        return any(lane.paused for lane in self.lanes)


class FilterPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What another filter would change for a sink, among the newest messages of the log."""

    sink: str
    before: SinkFilter
    after: SinkFilter
    searched: int
    """How many of the newest messages were compared."""
    all_searched: bool
    """That was the whole log."""
    passed: int
    """Messages that the sink did not take, would take now, and has passed: they are not sent by themselves."""
    first_passed: int | None
    """The position of the first of those."""
    dropped: int
    """Messages that wait for the sink, and that it would not take any more."""


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A running consumer, or one that died. The numbers are those since its start."""

    consumer: str
    instance: UUID
    """Random, new for each start."""
    state: Literal["alive", "dead"]
    source: str
    """What it receives from."""
    host: str
    pid: int
    version: str
    started_at: datetime
    heartbeat_seconds: float
    """How long ago its last heartbeat was."""
    handled: int
    duplicates: int
    failed: int
    """Attempts that failed."""
    dead: int
    """Messages that went to the dead-letter queue."""


class ConsumerReport(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of one consumer."""

    consumer: str
    alive: int
    died: int
    """Processes whose heartbeats have stopped, without having ended in order, within a week."""
    last_heartbeat_at: datetime | None
    """None: no process has a row."""
    dead_letters: Count
    """Of the last day."""
    dead_letters_since: datetime | None


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all sinks."""

    at: datetime
    """By the database's clock."""
    sinks: Sequence[SinkReport]
    scheduled: Count
    """Scheduled messages, which are not in the log yet."""
    next_scheduled_at: datetime | None
    consumers: Sequence[ConsumerReport] = ()
    """Consumers that run, or died within a week, or had dead letters within a day."""


class LaneNumbers(msgspec.Struct, frozen=True):
    """A lane, for metrics."""

    lane: int
    pending: int
    """An estimate where there are many."""
    lag_seconds: float


class SinkNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A sink, for metrics."""

    sink: str
    lanes: Sequence[LaneNumbers]
    oldest_unsent_seconds: float
    paused: bool
    held_keys: int
    deferred: Mapping[State, int]
    """By state: retrying, sending, held, dead."""
    relays: Mapping[str, int]
    """By state: active, standby, dead."""


class DatabaseNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The database, for metrics: each number takes a bounded number of index look-ups."""

    sinks: Sequence[SinkNumbers]
    log_position: int
    """The highest position of the log, also when its rows have been deleted."""
    oldest_row_seconds: float
    scheduled: int
    """Counted up to a bound."""
    overdue_seconds: float
    table_bytes: Mapping[str, int]


class DeadLetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a consumer has given up, as its database has recorded it. Its broker has the letter itself."""

    consumer: str
    id: str
    """The message's identity in the inbox: its source, a space, and its id."""
    type: str
    """Empty for a message that could not be read."""
    attempts: int
    crashes: int
    """How many of these attempts ended with their process."""
    error: str | None
    dead_at: datetime

    @property
    def message_id(self) -> str:
        """The producer's id of the message, without the source."""
        return self.id.rpartition(" ")[2]


class DeadLetterPage(msgspec.Struct, frozen=True):
    """The newest dead letters that match."""

    letters: Sequence[DeadLetterRow]
    total: Count
    """How many match."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that an operator made; or a payload that one has looked at."""

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
