"""Events: what happens in a relay, a consumer or a command, as values. `listeners.py` hands them to listeners.

An event's fields are what programs read (`extra` of a log record, keys of a JSON line); its text is what people read,
and is safe whatever formatter shows it: one line, without passwords or control characters. Fields keep what they were
given, without passwords. docs/logging.md lists every event and field.

Every public class here is an event, so there is no `__all__`.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from postroad.safe_text import harmless, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class Event(msgspec.Struct, frozen=True, dict=True):
    """Something that happened."""

    level: ClassVar[int] = logging.INFO
    logger: ClassVar[logging.Logger] = logging.getLogger("postroad.relay")
    subject: ClassVar[str] = ""
    """The beginning of the text: what the event is about."""
    text: ClassVar[str]
    """What people read; `{e}` is the event."""

    def __str__(self) -> str:
        return harmless(without_passwords((self.subject + self.text).format(e=self)))

    def caused_by(self, error: BaseException | None) -> Self:
        """The same event, about this exception."""
        if error is not None:
            self.__dict__["_exception"] = error
        return self

    @property
    def exception(self) -> BaseException | None:
        """The exception that the event is about, with its traceback. It is no field: it is neither compared nor written
        as one.
        """
        return self.__dict__.get("_exception")

    @classmethod
    def name(cls) -> str:
        """What programs call this event: the class's name in small letters."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


class _OfSink(Event, frozen=True):
    subject = "relay {e.sink}: "
    sink: str


class _OfLane(_OfSink, frozen=True):
    subject = "lane {e.sink}/{e.lane}: "
    lane: int


# -- the relay -------------------------------------------------------------------------------------------------------


class RelayStarted(_OfSink, frozen=True, kw_only=True):
    """A relay has connected to its database, and connects to the broker next."""

    text = "started, to {e.to}"
    to: str


class BrokerUnavailableAtStart(_OfSink, frozen=True, kw_only=True):
    """The broker could not be reached at the start; messages wait."""

    level = logging.WARNING
    text = "{e.reason}; messages wait until the broker can be reached"
    reason: str


class StoreUnavailableAtStart(_OfSink, frozen=True, kw_only=True):
    """The database can't be reached at the start, and the relay waits for it. Emitted less and less often."""

    level = logging.WARNING
    text = "{e.reason}; waiting for the database, {e.waited_s:.0f} s so far"
    reason: str
    waited_s: float


class BrokerUnavailable(_OfSink, frozen=True, kw_only=True):
    """The broker is unavailable: all lanes wait, no attempt is counted. Emitted at once, then less and less often."""

    level = logging.WARNING
    text = (
        "broker unavailable: {e.reason}; messages wait, {e.waited_s:.0f} s and {e.retries:,} retries so far, "
        "retrying in {e.retry_ms:,.0f} ms"
    )
    reason: str
    retry_ms: float
    waited_s: float
    retries: int


class BrokerRecovered(_OfSink, frozen=True, kw_only=True):
    """After an outage the broker has answered a call."""

    text = "broker available again, after {e.waited_s:.0f} s and {e.probes:,} probes"
    probes: int
    waited_s: float


class StoreUnavailable(_OfSink, frozen=True, kw_only=True):
    """The database, or what a part of the relay needs of it, is unavailable. Emitted at once, then less often."""

    level = logging.WARNING
    text = (
        "{e.what} unavailable: {e.reason}; {e.waited_s:.0f} s and {e.retries:,} retries so far, retrying in "
        "{e.retry_ms:,.0f} ms"
    )
    what: str
    reason: str
    retry_ms: float
    waited_s: float
    retries: int


class StoreRecovered(_OfSink, frozen=True, kw_only=True):
    """What was unavailable is available again."""

    text = "{e.what} available again, after {e.waited_s:.0f} s and {e.retries:,} retries"
    what: str
    waited_s: float
    retries: int


class DurabilityKnown(_OfSink, frozen=True, kw_only=True):
    """What a confirm means at the destination, as its publisher has found. Emitted when that is known or changes."""

    text = "a confirmed message is {e.meaning}"
    meaning: str


class DurabilityWeak(_OfSink, frozen=True, kw_only=True):
    """Something at the destination weakens what a confirm means: confirmed messages may be lost there."""

    level = logging.WARNING
    text = "{e.reason}"
    reason: str


class LanesDiffer(_OfSink, frozen=True, kw_only=True):
    """The sink was created with another number of lanes than the setting `lanes`, and keeps it."""

    text = "the setting lanes is {e.wanted}; the sink was created with {e.lanes} lanes and keeps them"
    wanted: int
    lanes: int


class LanesTaken(_OfSink, frozen=True, kw_only=True):
    """The relay has taken free lanes, or reclaimed its own. That raises a lane's epoch."""

    text = "took {e.lanes} lanes"
    owner: UUID
    lanes: int
    numbers: Sequence[int]
    """Which ones."""
    epochs: Sequence[int]


class RelayFailed(_OfSink, frozen=True, kw_only=True):
    """A relay that runs in the background of an application has ended with an error; messages wait."""

    level = logging.ERROR
    text = "ended with an error: {e.reason}"
    reason: str


class RelayRestarting(_OfSink, frozen=True, kw_only=True):
    """The relay of one of several sinks of a process has failed; the others go on."""

    level = logging.ERROR
    text = "failed: {e.reason}; it starts again in {e.retry_ms:,.0f} ms"
    reason: str
    retry_ms: float


class LanesLeftToOthers(_OfSink, frozen=True, kw_only=True):
    """A relay that runs until empty leaves some lanes to the live relays that own them."""

    level = logging.WARNING
    text = "leaving {e.lanes} lanes to the relays that own them: {e.numbers}"
    lanes: int
    numbers: Sequence[int]


class RelayStandby(_OfSink, frozen=True, kw_only=True):
    """This relay owns no lane: others own them, or hold the lock. It takes over when one of them ends."""

    text = "standing by, as one of {e.relays} relays"
    relays: int


class RelayEvicted(_OfSink, frozen=True, kw_only=True):
    """Another relay has died without releasing its lanes; this relay has freed them."""

    level = logging.WARNING
    text = "evicted the relay {e.owner}, which is dead (see postroad relays); its lanes are free"
    owner: UUID


class LockTaken(_OfSink, frozen=True, kw_only=True):
    """With `lock_id`: this relay holds the lock, and owns all lanes."""

    text = "acquired the lock {e.lock_id}; taking all lanes"
    lock_id: int


class LockHeldByOther(_OfSink, frozen=True, kw_only=True):
    """With `lock_id`: another session holds the lock. It may belong to a relay of another sink, or to no relay."""

    text = "the lock {e.lock_id} is held by {e.holder}"
    lock_id: int
    holder: str


class LockReleased(_OfSink, frozen=True, kw_only=True):
    """With `lock_id`: this relay does not hold the lock any more."""

    text = "released the lock {e.lock_id}"
    lock_id: int


class ActingWithoutLock(_OfSink, frozen=True, kw_only=True):
    """With `lock_id`: no live relay of the sink holds the lock, so this one works without it, by its lease alone."""

    level = logging.WARNING
    text = "no live relay holds the lock {e.lock_id}; acting without it"
    lock_id: int


class LivenessSessionLost(_OfSink, frozen=True, kw_only=True):
    """The relay's liveness session was lost: it begins no wave before it has reclaimed its lanes."""

    level = logging.WARNING
    text = "liveness session lost; reclaiming {e.lanes} lanes"
    lanes: int


class Progress(_OfSink, frozen=True, kw_only=True):
    """Messages were published since the last report."""

    text = "{e.published:,} published since the last report, in {e.pages:,} pages ({e.per_second:,.0f}/s)"
    published: int
    pages: int
    per_second: float
    duration_ms: float


class ListenLost(_OfSink, frozen=True, kw_only=True):
    """LISTEN does not work: the relay polls until it does. Messages arrive a little later; none is lost."""

    level = logging.WARNING
    text = "LISTEN unavailable: {e.reason}; polling at least every {e.poll_ms:,.0f} ms until it works"
    reason: str
    poll_ms: float


class ListenRestored(_OfSink, frozen=True, kw_only=True):
    """LISTEN works again: the relay stops polling."""

    text = "LISTEN connection restored; polling ended"


class RelayEnded(_OfSink, frozen=True, kw_only=True):
    """The summary of a relay that has ended."""

    text = (
        "ended; {e.published:,} published, {e.refused:,} attempts failed, {e.died:,} dead, {e.skipped:,} skipped, "
        "{e.lanes_lost} lanes lost"
    )
    published: int
    pages: int
    refused: int
    """Attempts that failed."""
    died: int
    skipped: int
    """Not published, because an operator had skipped or poisoned them."""
    dropped: int
    """No consumer has subscribed to them, and unroutable = "drop"."""
    lanes_lost: int
    duration_ms: float


# -- a lane ----------------------------------------------------------------------------------------------------------


class PageTaken(_OfLane, frozen=True, kw_only=True):
    """A page was read and is about to be published."""

    level = logging.DEBUG
    text = "read a page of {e.size} messages"
    size: int
    position: int


class PagePublished(_OfLane, frozen=True, kw_only=True):
    """Every message of a page was published, deferred or held; or the relay was stopped in the middle."""

    level = logging.DEBUG
    text = "published {e.published}, refused {e.refused}, held {e.held}, in {e.duration_ms:.1f} ms"
    published: int
    refused: int
    held: int
    """They wait for an earlier message of their key."""
    duration_ms: float
    position: int


class MessageRefused(_OfLane, frozen=True, kw_only=True):
    """The broker refused a message, or the publisher failed on it; it is retried."""

    level = logging.WARNING
    text = (
        "message {e.id} was refused, attempt {e.attempts} of {e.max_attempts}: {e.reason}; retrying in "
        "{e.retry_ms:,.0f} ms; later messages of its key wait if their order is kept, others go on"
    )
    id: UUID
    position: int
    attempts: int
    max_attempts: int | str
    """A text when the retry policy has no such number."""
    reason: str
    retry_ms: float


class MessageDead(_OfLane, frozen=True, kw_only=True):
    """A message was refused permanently, or at its last attempt: an operator must decide about it."""

    level = logging.ERROR
    text = (
        "message {e.id} is dead after {e.attempts} attempts: {e.reason}; it stays in the log until an operator "
        "retries, drops or skips it"
    )
    id: UUID
    position: int
    attempts: int
    reason: str
    permanent: bool


class MessagesSuspected(_OfLane, frozen=True, kw_only=True):
    """The publisher failed, or the connection broke several times, and one of these messages may be the cause."""

    level = logging.WARNING
    text = "one of {e.messages} messages may be the cause, publishing them in parts: {e.reason}"
    messages: int
    reason: str


class DeadLetterRefused(_OfLane, frozen=True, kw_only=True):
    """The broker refused the copy of a dead message for the dead-letter topic; the message itself is in the log."""

    level = logging.WARNING
    text = (
        "the copy of dead message {e.id} for topic {e.topic} was refused: {e.reason}; the message itself stays in "
        "the log"
    )
    id: UUID
    topic: str
    reason: str


class RouteBlocked(_OfLane, frozen=True, kw_only=True):
    """A route is blocked: its messages wait, no attempt is counted, other messages go on."""

    level = logging.WARNING
    text = "the route {e.route} is blocked: {e.reason}; its messages wait, and one of them is retried from time to time"
    route: str
    reason: str


class RouteUnblocked(_OfLane, frozen=True, kw_only=True):
    """A message of a blocked route was confirmed; those that wait for the route follow."""

    text = "the route {e.route} works again; its messages are published"
    route: str


class RoutesBlocked(_OfLane, frozen=True, kw_only=True):
    """Many routes are blocked at once: their messages wait, no attempt is counted, other messages go on."""

    level = logging.WARNING
    text = (
        "{e.routes:,} routes are blocked, {e.some} among them: {e.reason}; their messages wait, and one of each is "
        "retried from time to time"
    )
    routes: int
    some: Sequence[str]
    reason: str


class RoutesUnblocked(_OfLane, frozen=True, kw_only=True):
    """Messages of many blocked routes were confirmed; those that wait for the routes follow."""

    text = "{e.routes:,} routes work again, {e.some} among them; their messages are published"
    routes: int
    some: Sequence[str]


class MessagesDropped(_OfLane, frozen=True, kw_only=True):
    """No consumer has subscribed to these messages, and unroutable = "drop": they are not published."""

    level = logging.WARNING
    text = "dropped {e.messages:,} messages, because no consumer has subscribed to {e.some}: {e.reason}"
    messages: int
    some: Sequence[str]
    reason: str


class LaneStopped(_OfLane, frozen=True, kw_only=True):
    """A lane was stopped in the middle of a page."""

    text = "{e.reason}"
    reason: str


class LanePaused(_OfLane, frozen=True):
    """An operator has paused the sink: nothing is published until it is resumed."""

    text = "paused; nothing is published until the sink is resumed (postroad resume {e.sink})"


class SlotLost(_OfLane, frozen=True, kw_only=True):
    """The replication slot that the sink follows is not the one that it followed before: the sink is paused."""

    level = logging.ERROR
    text = (
        "{e.reason}. Messages may not have been carried: the sink is paused, and its messages stay in the log, until "
        "an operator has seen to them (postroad sink adopt-slot {e.sink})"
    )
    slot: str
    reason: str


class StoreBlocked(Event, frozen=True, kw_only=True):
    """Another session of the database has held a lock that the relay needs for longer than a second."""

    level = logging.WARNING
    text = "the relay is blocked by locks of another session: {e.by}"
    by: str
    pid: int
    role: str | None


class BlockersUnknown(Event, frozen=True, kw_only=True):
    """The relay waits for locks, and could not find out which session holds them."""

    level = logging.WARNING
    text = (
        "the relay waits for locks, and could not find out which session holds them: {e.reason}; "
        "retrying in {e.retry_ms:,.0f} ms"
    )
    reason: str
    retry_ms: float


class LaneReloaded(_OfLane, frozen=True, kw_only=True):
    """The lane was changed since it was loaded, or its lease was in doubt, so it is loaded again."""

    level = logging.DEBUG
    text = "{e.reason}; loading it again"
    reason: str


class LaneReleased(_OfLane, frozen=True, kw_only=True):
    """The relay has released the lane: the lane has ended, or another relay is to own it."""

    level = logging.DEBUG
    text = "released"


class LanePublisherNotClosed(_OfLane, frozen=True, kw_only=True):
    """What the lane published through could not be closed in good order; the lane is released all the same."""

    level = logging.WARNING
    text = "its publisher could not be closed: {e.reason}"
    reason: str


class LaneLost(_OfLane, frozen=True, kw_only=True):
    """Another relay has taken the lane."""

    level = logging.WARNING
    text = "lost: {e.reason}"
    reason: str


# -- a consumer ------------------------------------------------------------------------------------------------------


class _OfConsumer(Event, frozen=True):
    logger = logging.getLogger("postroad.consumer")
    subject = "consumer {e.consumer}: "
    consumer: str


class _OfReceived(_OfConsumer, frozen=True):
    id: str
    message_type: str


class ConsumerStarted(_OfConsumer, frozen=True, kw_only=True):
    """A consumer has checked its database and connects to the broker next."""

    text = "started"
    types: Sequence[str]


class ConsumerEnded(_OfConsumer, frozen=True, kw_only=True):
    """The summary of a consumer that has ended."""

    text = (
        "ended; {e.handled:,} handled, {e.dead:,} dead-lettered, {e.duplicates:,} processed before, {e.failed:,} "
        "attempts failed"
    )
    handled: int
    duplicates: int
    failed: int
    dead: int
    duration_ms: float


class ConsumerProgress(_OfConsumer, frozen=True, kw_only=True):
    """Messages were handled, were duplicates, or failed since the last report."""

    text = (
        "{e.handled:,} handled since the last report ({e.per_second:,.0f}/s), {e.duplicates:,} processed before, "
        "{e.failed:,} attempts failed, {e.dead:,} dead-lettered"
    )
    handled: int
    duplicates: int
    failed: int
    dead: int
    per_second: float
    duration_ms: float


class MessageHandled(_OfReceived, frozen=True, kw_only=True):
    """A handler's transaction was committed."""

    level = logging.DEBUG
    text = "handled {e.message_type} {e.id} in {e.duration_ms:.1f} ms"
    duration_ms: float


class DuplicateIgnored(_OfReceived, frozen=True, kw_only=True):
    """A message was delivered that had been processed before; it was acked."""

    level = logging.DEBUG
    text = "{e.message_type} {e.id} was processed before"


class HandlerFailed(_OfReceived, frozen=True, kw_only=True):
    """A handler failed; nothing was committed, and the message will be retried."""

    level = logging.WARNING
    text = "{e.message_type} {e.id} failed, attempt {e.attempt}: {e.reason}; retrying in {e.retry_ms:,.0f} ms"
    attempt: int
    reason: str
    retry_ms: float


class MessageBusy(_OfReceived, frozen=True, kw_only=True):
    """A message can't be processed now, usually because another transaction is processing it; it will be retried."""

    text = "{e.message_type} {e.id} can't be processed now: {e.reason}; retrying in {e.retry_ms:,.0f} ms"
    reason: str
    retry_ms: float


class HandlersAbandoned(_OfConsumer, frozen=True, kw_only=True):
    """A consumer has ended while handlers or statements were still running although they had been cancelled."""

    level = logging.WARNING
    text = (
        "{e.handlers} handlers or statements did not end within grace ({e.grace_s:g} s) and a second; ending without "
        "them: their messages are not acked, and will be delivered again"
    )
    handlers: int
    grace_s: float


class LocalHandlersAbandoned(_OfConsumer, frozen=True, kw_only=True):
    """The relay ends, and handlers in its process have not ended after they were cancelled."""

    level = logging.WARNING
    text = (
        "{e.handlers} handlers or statements did not end within grace and a second; the relay ends without them: "
        "their messages are not confirmed, and will be handled again"
    )
    handlers: int


class RequestFailed(_OfReceived, frozen=True, kw_only=True):
    """A handler failed for a message that came in a request; the sender was answered so, and may send it again."""

    level = logging.WARNING
    text = "{e.message_type} {e.id} failed: {e.reason}; the request was answered with {e.status}"
    status: int
    reason: str


class RequestRefused(_OfConsumer, frozen=True, kw_only=True):
    """Requests with messages were refused: not signed, too large. Emitted at once, then every 10 s at most."""

    level = logging.WARNING
    text = "{e.requests:,} requests refused, the last one with {e.status}: {e.reason}"
    requests: int
    status: int
    reason: str


class GroupFailed(_OfConsumer, frozen=True, kw_only=True):
    """A group of messages could not be handled in one transaction; they are handled one by one."""

    level = logging.WARNING
    text = "a group of {e.size} failed: {e.reason}; handling its messages one by one"
    size: int
    reason: str


class MessageDeadLettered(_OfReceived, frozen=True, kw_only=True):
    """A message is in the dead-letter queue: its handler failed too often, or it can't be read."""

    level = logging.ERROR
    text = "{e.message_type} {e.id} is a dead letter: {e.reason}"
    reason: str


class SubscriberUnavailable(_OfConsumer, frozen=True, kw_only=True):
    """The broker is unavailable: what was not acked is delivered again. Emitted at once, then less and less often."""

    level = logging.WARNING
    text = (
        "broker unavailable: {e.reason}; {e.waited_s:.0f} s and {e.retries:,} retries so far, retrying in "
        "{e.retry_ms:,.0f} ms"
    )
    reason: str
    retry_ms: float
    waited_s: float
    retries: int


class Receiving(_OfConsumer, frozen=True, kw_only=True):
    """The consumer is connected to the broker and receives messages."""

    text = "receiving from {e.source}"
    source: str
    attempts: int


class PartitionsAssigned(_OfConsumer, frozen=True, kw_only=True):
    """This process receives partitions, or streams, from now on (Kafka, Redis)."""

    text = "assigned: {e.partitions}"
    partitions: str


class PositionReset(_OfConsumer, frozen=True, kw_only=True):
    """Kafka has deleted records of a partition that the consumer had not received, or the whole topic."""

    level = logging.WARNING
    text = "{e.topic}[{e.partition}]: {e.reason}; reading on from the first record that is there"
    topic: str
    partition: int
    reason: str


class EntriesDeleted(_OfConsumer, frozen=True, kw_only=True):
    """Entries of a Redis stream were deleted, as by trimming, after they were delivered and before they were acked."""

    level = logging.WARNING
    text = "{e.stream}: {e.entries} messages were deleted from the stream before they were acked, and are lost"
    stream: str
    entries: int


class CollectingTakesLong(_OfConsumer, frozen=True, kw_only=True):
    """For twice `takeover_after`, NATS has not delivered all that another process has left; none is handled before."""

    level = logging.WARNING
    text = (
        "{e.stream}: for {e.waited_s:.0f} s waiting for {e.missing:,} messages that another process has received and "
        "not acked; until they come, none is handled"
    )
    stream: str
    missing: int
    waited_s: float


class TypeSkipped(_OfConsumer, frozen=True, kw_only=True):
    """Messages of a type that no handler takes are skipped (Kafka, NATS, Redis). Emitted once for each type."""

    text = "{e.source}: skipping messages of type {e.message_type}, which no handler takes"
    message_type: str
    source: str


class SessionsRevoked(_OfConsumer, frozen=True, kw_only=True):
    """The broker gives partitions to another process of the consumer: no handler is called for them here any more."""

    text = (
        "the broker revokes {e.sessions} sessions: {e.dropped} messages are left to other consumers, {e.in_progress} "
        "are being processed"
    )
    sessions: int
    dropped: int
    in_progress: int


class RevokedHandlersCancelled(_OfConsumer, frozen=True, kw_only=True):
    """Handlers of a revoked session did not end within the grace, and were cancelled."""

    level = logging.WARNING
    text = (
        "{e.handlers} handlers of revoked sessions did not end within grace ({e.grace_s:g} s) and were cancelled: "
        "their messages are not acked, and are delivered to another consumer"
    )
    handlers: int
    grace_s: float


class ConsumerWaiting(_OfConsumer, frozen=True, kw_only=True):
    """The database or the dead-letter queue is unavailable; messages wait. Emitted at once, then less often."""

    level = logging.WARNING
    text = (
        "{e.what} unavailable: {e.reason}; {e.waited_s:.0f} s and {e.retries:,} retries so far, retrying in "
        "{e.retry_ms:,.0f} ms"
    )
    what: str
    reason: str
    retry_ms: float
    waited_s: float
    retries: int


class ConsumerRecovered(_OfConsumer, frozen=True, kw_only=True):
    """The database or the dead-letter queue is available again."""

    text = "{e.what} available again, after {e.waited_s:.0f} s and {e.retries:,} retries"
    what: str
    waited_s: float
    retries: int


class ConsumerStoreUnavailable(_OfConsumer, frozen=True, kw_only=True):
    """The database is unavailable at the start; the consumer waits. Emitted at the first try, then less often."""

    level = logging.WARNING
    text = "{e.reason}; waiting for the database, {e.waited_s:.0f} s so far"
    reason: str
    waited_s: float


class HeartbeatFailed(_OfConsumer, frozen=True, kw_only=True):
    """A consumer could not record that it is alive; it handles messages all the same. Emitted once, not for each."""

    level = logging.WARNING
    text = "the heartbeat could not be recorded, so operators may see no live consumer: {e.reason}"
    reason: str


class ConsumerError(_OfConsumer, frozen=True, kw_only=True):
    """An unexpected error in the consumer itself; the message will be retried."""

    level = logging.ERROR
    text = "{e.reason}; retrying in {e.retry_ms:,.0f} ms"
    reason: str
    retry_ms: float


class InboxTooShort(_OfConsumer, frozen=True, kw_only=True):
    """The inbox keeps its rows too short: a message that is delivered again later would be handled twice."""

    level = logging.WARNING
    text = (
        "the inbox keeps rows for {e.retain_s:g} s, but a message may be delivered again for {e.needed_s:g} s; make "
        "the consumer's retain longer"
    )
    retain_s: float
    needed_s: float


class InboxNotCleaned(_OfConsumer, frozen=True, kw_only=True):
    """The database is unavailable for the deletion of old inbox rows: they are deleted later."""

    level = logging.WARNING
    text = "old inbox rows: {e.reason}; retrying in {e.retry_ms:,.0f} ms"
    reason: str
    retry_ms: float


class InboxCleaned(_OfConsumer, frozen=True, kw_only=True):
    """The consumer has deleted its old inbox rows."""

    text = "deleted {e.deleted:,} inbox rows older than {e.retain_s:g} s"
    deleted: int
    retain_s: float


# -- metrics ---------------------------------------------------------------------------------------------------------


class _OfMetrics(Event, frozen=True):
    logger = logging.getLogger("postroad.metrics")


class MetricsServed(_OfMetrics, frozen=True, kw_only=True):
    """Metrics and probes are served at this address."""

    text = "metrics: {e.address}"
    address: str


class MetricsFailed(_OfMetrics, frozen=True, kw_only=True):
    """A scrape or a probe could not be answered, because of an unexpected error."""

    level = logging.ERROR
    text = "metrics: {e.path} could not be answered: {e.reason}"
    path: str
    reason: str


class MetricsUnavailable(_OfMetrics, frozen=True, kw_only=True):
    """The database could not be read for metrics. Emitted once, until it could be read again; the last values stay."""

    level = logging.WARNING
    text = "metrics: the database can't be read: {e.reason}; its last values stay"
    reason: str


# -- chores and operations -------------------------------------------------------------------------------------------


class _OfRetention(Event, frozen=True):
    logger = logging.getLogger("postroad.retention")


class _OfCommand(Event, frozen=True):
    logger = logging.getLogger("postroad.ops")


class MessagesDeleted(_OfRetention, frozen=True, kw_only=True):
    """Retention has deleted messages that every sink has passed."""

    text = "deleted {e.deleted:,} delivered messages older than {e.retain_s:g} s"
    deleted: int
    retain_s: float


class SinkUnserved(_OfRetention, frozen=True, kw_only=True):
    """No relay has served a sink for a day or longer: retention keeps every message for it."""

    level = logging.WARNING
    text = (
        "sink {e.sink}: no relay has served it for {e.hours:,.0f} hours, so retention keeps all messages that it has "
        "not passed; start a relay for it, or remove it (postroad sink remove {e.sink})"
    )
    sink: str
    hours: float


class MessagesMoved(Event, frozen=True, kw_only=True):
    """Scheduled messages were due and have been moved into the log."""

    level = logging.DEBUG
    text = "moved {e.moved:,} scheduled messages that are due into the log"
    moved: int


class Stopping(_OfCommand, frozen=True, kw_only=True):
    """The first signal asks the relay, or the consumer, to stop."""

    text = "stopping: {e.signal}; waiting for messages in flight; a second signal ends it at once"
    signal: str


class PasswordInArguments(_OfCommand, frozen=True, kw_only=True):
    """An option contains a password."""

    level = logging.WARNING
    text = "{e.option} contains a password, and every user of this machine can see the command line; use {e.instead}"
    option: str
    instead: str


class FileReadable(_OfCommand, frozen=True, kw_only=True):
    """The settings file contains a password, and every user of the machine may read it."""

    level = logging.WARNING
    text = "{e.file} contains a password, and every user of this machine may read it; run: chmod o-r {e.file}"
    file: str


class PasswordFileReadable(_OfCommand, frozen=True, kw_only=True):
    """A file with a password can be read by every user of the machine."""

    level = logging.WARNING
    text = "{e.setting} is {e.file}, which every user of this machine may read; run: chmod o-r {e.file}"
    setting: str
    file: str


class SecretsNotRead(_OfCommand, frozen=True, kw_only=True):
    """A file with secrets was changed and can't be used; those that it held before are. Emitted once per change."""

    level = logging.WARNING
    text = "{e.reason}; the secrets that were read before are still used, until this process is started again"
    setting: str
    file: str
    reason: str


class CertificateUnverified(_OfCommand, frozen=True, kw_only=True):
    """A connection may be encrypted, but the server's certificate is not verified."""

    level = logging.WARNING
    text = (
        "{e.setting} has {e.option}, so the server's certificate is not verified, and another machine could "
        "impersonate it; use {e.instead}"
    )
    setting: str
    option: str
    instead: str


class CommandFailed(_OfCommand, frozen=True, kw_only=True):
    """A command failed. Only with `log_format` json; otherwise the error is printed as a line of its own."""

    level = logging.ERROR
    text = "{e.reason}"
    reason: str
    exit_code: int
