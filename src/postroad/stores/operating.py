"""The contract of operating: what people look at and change while the relay runs.

Looking never scans the log: what would need it is answered up to a bound, and says so. Every call that changes
something locks the lanes concerned, obeys `lifecycle.TRANSITIONS`, notes in `audit` who did what, when and why, in the
very transaction that does it, and raises the lanes' versions, so that whoever owns them loads them again.
tests/contracts/test_operating.py holds every database to these words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType
    from uuid import UUID

    from postroad.lifecycle import State
    from postroad.stores.base import Blocker
    from postroad.stores.leases import RelayStatus

__all__ = [
    "LOOK",
    "MINUTES",
    "AuditEntry",
    "By",
    "Count",
    "Done",
    "FailedAttempt",
    "Filter",
    "Found",
    "HeldKey",
    "KeyCount",
    "LaneReport",
    "MessageAtSink",
    "MessageHistory",
    "MessageRow",
    "Operating",
    "Progressed",
    "Rewind",
    "SinkReport",
    "StatusReport",
]

LOOK: Final = 10_000
"""So many rows of the log are looked at, at most, by a question that no index answers."""

MINUTES: Final = 60

Progressed = Callable[[int], None]
"""Called after each batch with how many messages have been dealt with so far."""


# -- what is asked ---------------------------------------------------------------------------------------------------


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages. Every field that is given narrows the choice."""

    sink: str | None = None
    state: State | None = None
    ids: Sequence[UUID] = ()
    key: str | None = None
    type: str | None = None
    topic: str | None = None
    error: str | None = None
    """Its last error has this in it; capitals don't matter."""
    since: datetime | None = None
    """Added then or later."""
    before: datetime | None = None
    """Added before then."""
    all: bool = False
    """Every message is meant. Without this, a filter without any other field is refused by what changes something."""

    @property
    def is_empty(self) -> bool:
        """Nothing narrows the choice. A sink alone is no choice of messages."""
        return not (
            self.state or self.ids or self.key or self.type or self.topic or self.error or self.since or self.before
        )


class By(msgspec.Struct, frozen=True):
    """Who changes something, and why."""

    who: str
    reason: str | None = None


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be published again: what a sink has had, from a moment or a position on."""

    sink: str
    to: datetime | int
    """A time: what was added then or later. A number: this position and later ones."""
    key: str | None = None
    type: str | None = None
    new_ids: bool = False
    """Let consumers take them for new messages. Otherwise ids are kept, and inboxes ignore what they know."""


# -- what is answered ------------------------------------------------------------------------------------------------


class Count(msgspec.Struct, frozen=True):
    """How many."""

    number: int
    exact: bool = True
    """False: counting would have been slow, and this is an estimate."""


class KeyCount(msgspec.Struct, frozen=True):
    """How many messages of a key there are."""

    delivered: int
    """Every sink has had them."""
    undelivered: int
    """In the log, and at some sink waiting or in trouble."""
    scheduled: int
    """Not in the log yet."""


class Done(msgspec.Struct, frozen=True):
    """What a command did."""

    changed: int
    unmoved: Mapping[State, int] = {}
    """How many messages were meant, but are in a state that this command does not move on from."""


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message at one sink, as the view outbox_status has it. The payload is not read."""

    sink: str
    lane: int
    position: int
    id: UUID
    type: str
    topic: str
    key: str | None
    state: State
    attempts: int
    """Failed ones, since it was last retried by hand."""
    error: str | None
    """The last one."""
    route: str | None
    """The way to its consumers that is out, for which it waits."""
    created_at: datetime
    next_attempt_at: datetime | None
    published_at: datetime | None
    """To the second; None also when that is too long ago to be known."""


class Found(msgspec.Struct, frozen=True):
    """Messages, the newest first."""

    messages: Sequence[MessageRow]
    looked_back_to: int | None = None
    """Only what lies above this position was looked at: there may be more below. None: there is nothing more to see,
    or there would be more than the limit.
    """


class FailedAttempt(msgspec.Struct, frozen=True):
    """An attempt that failed."""

    attempt: int
    failed_at: datetime
    error: str


class MessageAtSink(msgspec.Struct, frozen=True):
    """What became of a message at one sink."""

    row: MessageRow
    failures: Sequence[FailedAttempt]
    """As they happened, also those before a retry by hand."""


class MessageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a message."""

    id: UUID
    position: int | None
    """None while it is to be sent later."""
    type: str
    topic: str
    key: str | None
    content_type: str
    headers: Mapping[str, str]
    """All of them, postroad's own too. Empty when somebody wrote what is no JSON object of strings."""
    payload: bytes
    """At most the first `payload_bytes` asked for."""
    payload_size: int | None
    """None: this role may not read payloads."""
    created_at: datetime
    deliver_at: datetime | None
    """When it moves into the log, if it is to be sent later."""
    sinks: Sequence[MessageAtSink]
    """Empty while no sink reads its slot, or it is to be sent later."""
    caused: Sequence[tuple[UUID, str]]
    """Ids and types of messages that name this one as their cause, among the LOOK rows behind it."""


class LaneReport(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a sink."""

    lane: int
    position: int
    pending: Count
    """Messages in the log that it has not dealt with."""
    lag_seconds: float
    """The age of the first of those; 0 when there are none."""
    oldest_unsent_seconds: float
    """The age of the oldest message that is still to be sent, also among those in trouble; 0 when there is none."""
    failing: int
    """Retrying, or being sent after trouble."""
    held: int
    dead: int
    unroutable: int
    """Dropped, because no consumer had subscribed to them; as long as they are in the log."""
    paused: bool
    owner: UUID | None
    published_last_hour: int
    refused_last_hour: int


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """A sink, and its lanes."""

    sink: str
    destination: str | None
    """Where its relays deliver to; None while no relay of a version that keeps it has served the sink."""
    served_at: datetime
    """When a relay last served it; about now while one does."""
    relays: int
    """How many serve it now."""
    lanes: Sequence[LaneReport]
    published_per_minute: Sequence[int]
    """MINUTES numbers, the oldest first; the last one is of the minute under way, whole minutes of the clock."""
    held_keys: Sequence[HeldKey]


class HeldKey(msgspec.Struct, frozen=True):
    """A key that a person holds."""

    sink: str
    key: str
    since: datetime
    who: str
    reason: str | None


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at a glance."""

    at: datetime
    """By the database's clock."""
    sinks: Sequence[SinkReport]
    scheduled: Count
    """Messages that are to be sent later and are not in the log yet."""
    next_scheduled_at: datetime | None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person changed."""

    number: int
    at: datetime
    who: str
    """The name that was given, or that of the login."""
    role: str | None
    """The database role that did it; None: not known, or the database has no roles."""
    command: str
    arguments: Mapping[str, object]
    reason: str | None
    changed: int


# -- the calls -------------------------------------------------------------------------------------------------------


class Operating(Protocol):
    """A database, as an operator works with it. Use it with `async with`.

    Raises StoreUnavailable, NotMigrated, ClientTooOld or LogNotReadable like a store, and InvalidSetting for a sink
    that is not there or a filter that means everything without saying so; nothing has been changed then.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    # looking

    async def sinks(self) -> Sequence[str]:
        """The names of all sinks, in order."""
        ...

    async def status(self) -> StatusReport:
        """Everything at a glance."""
        ...

    async def messages(self, which: Filter, limit: int = 100, *, below: int | None = None) -> Found:
        """The newest messages that match, one row per sink; `below` goes on below a position."""
        ...

    async def count(self, which: Filter) -> Count:
        """How many rows `messages` would give without a limit; an estimate if counting would mean much looking."""
        ...

    async def message(self, id: UUID, *, payload_bytes: int = 65_536) -> MessageHistory | None:
        """All that is known of a message; None when there is no such message (any more)."""
        ...

    async def find_ids(self, digits: str, limit: int) -> Sequence[UUID]:
        """Ids that begin with these hexadecimal digits, or end with them; the latter among the newest messages only."""
        ...

    async def held_keys(self, sink: str | None = None) -> Sequence[HeldKey]:
        """The keys that people hold."""
        ...

    async def relays(self) -> Sequence[RelayStatus]:
        """Every relay of every sink; of those that died, those of the last day."""
        ...

    async def blockers(self, *, longer_than: timedelta | None = None) -> Sequence[Blocker]:
        """Sessions that have locked what relays need; see `Store`."""
        ...

    async def audit(self, limit: int = 100) -> Sequence[AuditEntry]:
        """What people changed, the last first."""
        ...

    # messages

    async def retry(self, which: Filter, by: By, *, progress: Progressed | None = None) -> Done:
        """Let dead messages be tried again, at once and with all their attempts; behind others of their key if
        those block it.
        """
        ...

    async def drop(self, which: Filter, by: By, *, progress: Progressed | None = None) -> Done:
        """Give dead messages up."""
        ...

    async def poison(
        self, which: Filter, by: By, *, holds_key: bool = False, progress: Progressed | None = None
    ) -> Done:
        """Let messages be dead that wait, are retried or are held. `by.reason` becomes their error.

        Messages that are still waiting in the log must be named by their ids. `holds_key`: later messages of their keys
        wait, as with the setting on_dead = "hold".
        """
        ...

    async def skip(self, which: Filter, by: By, *, progress: Progressed | None = None) -> Done:
        """These were published by other means: don't publish those that wait, are retried, held or dead.

        Messages that are still waiting in the log must be named by their ids.
        """
        ...

    # keys and sinks

    async def hold(self, sink: str, key: str, by: By) -> Done:
        """From now on nothing of this key is published to the sink. `changed` is 0 when it was held already."""
        ...

    async def release(self, sink: str, key: str, by: By) -> Done:
        """Let a held key's messages go on, in order. `changed` is 0 when it was not held."""
        ...

    async def skip_key(self, sink: str, key: str, by: By) -> Done:
        """Skip what is retried, held or dead of a key. A hold on the key stays."""
        ...

    async def pause(self, sink: str, by: By) -> Done:
        """Let all lanes of a sink stand still. `changed` is how many were not paused."""
        ...

    async def resume(self, sink: str, by: By) -> Done:
        """Let the lanes go on. `changed` is how many were paused."""
        ...

    async def retarget(self, sink: str, destination: str, by: By) -> Done:
        """Let the sink deliver to another destination: what it has not delivered goes there. `changed` is 0 when it
        delivers there already.

        Raises NothingMatches while a relay serves the sink, and InvalidSetting for NOWHERE, unless it is there already.
        """
        ...

    async def remove_sink(self, sink: str, by: By) -> Done:
        """Forget the sink and all that is known of it: what it has not delivered is not delivered there, and retention
        does not wait for it. `changed` is how many lanes it had. Raises NothingMatches while a relay serves the sink.
        """
        ...

    # the log

    async def would_clean_up(self, older_than: timedelta) -> Count:
        """How many messages `cleanup` would delete now."""
        ...

    async def cleanup(self, older_than: timedelta, by: By, *, progress: Progressed | None = None) -> Done:
        """Delete what every sink has had and is older than that, by the rules of retention, in small batches."""
        ...

    async def count_of_key(self, key: str) -> KeyCount:
        """How many messages of a key there are. It walks through the whole log, in batches."""
        ...

    async def forget(self, key: str, by: By, *, progress: Progressed | None = None) -> Done:
        """Delete a key's messages that every sink has had, by the rules of retention but whatever their age, with the
        history of their failures. The audit keeps what was done to the key, and no longer the key.
        """
        ...

    async def would_rewind(self, rewind: Rewind) -> Count:
        """How many messages `rewind` would publish again now."""
        ...

    async def rewind(self, rewind: Rewind, by: By, *, progress: Progressed | None = None) -> Done:
        """Have messages published again that the sink has had: in order per key, with a header that says so.

        What was canceled, dropped or skipped is not published; what is in trouble stays as it is.
        """
        ...
