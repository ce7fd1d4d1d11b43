"""One call of `deliveries`: which message comes next, an attempt at it in a savepoint, and what became of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from postroad.brokers.cloudevents import CannotEncode, unwrap
from postroad.brokers.memory import delivery_of
from postroad.codecs.chain import Undone
from postroad.consumer.attempts import cut
from postroad.consumer.errors import MessageBusy, TransactionEnded, TransactionLost
from postroad.errors import Refusal
from postroad.message import CODEC_HEADERS
from postroad.received import Received, Unreadable, received
from postroad.testing.delivery import DeadLetter
from postroad.testing.messages import Messages
from postroad.testing.outbox import contents
from postroad.testing.running import run_in_thread
from postroad.testing.savepoint import in_savepoint
from postroad.testing.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.consumer import Consumer
    from postroad.consumer.transactions import Steps
    from postroad.message import StoredMessage
    from postroad.stores.connections.adapter import ConnectionAdapter
    from postroad.testing.outbox import Contents
    from postroad.testing.timeline import Item

__all__ = ["EPOCH", "MICROSECOND", "Deliveries", "HandledMessage", "Run"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class HandledMessage(msgspec.Struct, frozen=True):
    """A message whose handler returned."""

    consumer: str
    event: Any
    """What the handler was given."""
    message: Received
    at: datetime
    """When it was handled, on the clock that jumps to retries and scheduled messages."""


class Deliveries(msgspec.Struct, frozen=True):
    """The outcome of one `deliveries`."""

    handled: list[HandledMessage]
    """In the order in which handlers returned."""
    dead: list[DeadLetter]
    """Messages that would be in a dead-letter queue now."""
    again: list[Received]
    """Deliveries of messages that had been handled before: no handler was called."""
    failed: int
    """Attempts that failed."""
    added: Messages
    """What handlers have added, scheduled messages as well."""
    unhandled: Messages
    """Messages of types that none of these consumers takes."""
    waiting: Messages
    """Scheduled messages, and those to be retried, that are due only after `until`."""

    @property
    def events(self) -> list[Any]:
        """The events of `handled`."""
        return [each.event for each in self.handled]


class _For(NamedTuple):
    """A message for a consumer, by its number among the consumers."""

    consumer: int
    stored: StoredMessage
    message: Received


class Run:
    """One call. `steps` is written once for sync and async connections, as a consumer's are."""

    def __init__(
        self,
        adapter: ConnectionAdapter,
        connection: Any,
        consumers: Sequence[Consumer[Any]],
        *,
        started: int,
        until: int | None,
        most: int,
    ) -> None:
        """Times are microseconds since 1970."""
        self.connection = connection
        self.adapter = adapter
        self._consumers = consumers
        self._handlers = [consumer.in_transactions_of_a_test() for consumer in consumers]
        self._started = started
        self._until = until
        self._left = self._most = most
        self._timeline: Timeline[_For] = Timeline(started)
        self._seen: set[UUID] = set()
        self._shifts: dict[UUID, int] = {}
        """How far time had jumped when a message was scheduled: the handler counted from the real time."""
        self._decoders = [transaction.decoder for transaction in self._handlers]
        self._found = Deliveries([], [], [], 0, Messages(), Messages(decoders=self._decoders), Messages())
        self._failed = 0

    def steps(self) -> Steps:
        """Deliver what is due, then what has been added meanwhile, until nothing is left."""
        there: Contents = yield self._read()
        before = {each.id for each in there.log} | {each.message.id for each in there.scheduled}
        while True:
            self._take_new(there)
            if (moved := self._due_first(there)) is not None:
                yield self._move(moved)
            elif self._timeline.next_due is None or self._is_late(self._timeline.next_due):
                break
            else:
                yield from self._attempt(self._next())
            there = yield self._read()
        late = [each.message for each in there.scheduled]
        everything = [*there.log, *late]
        return msgspec.structs.replace(
            self._found,
            failed=self._failed,
            added=Messages((each for each in everything if each.id not in before), decoders=self._decoders),
            waiting=Messages(
                {each.id: each for each in (*(item.stored for item in self._timeline.waiting), *late)}.values(),
                decoders=self._decoders,
            ),
        )

    # -- what is there -----------------------------------------------------------------------------------------------

    def _read(self) -> Any:
        return contents(self.connection, self._consumers[0].schema)

    def _take_new(self, there: Contents) -> None:
        """Queue what was not there before, for each consumer that takes it."""
        for stored in there.log:
            if stored.id in self._seen:
                continue
            self._seen.add(stored.id)
            takers = [at for at, each in enumerate(self._consumers) if stored.type in each.types]
            if not takers:
                self._found.unhandled.append(stored)
                continue
            try:
                message = unwrap(delivery_of(stored))
            except (CannotEncode, Unreadable) as error:
                self._found.dead.append(DeadLetter(received(stored), f"it can't be published: {error}", error=error))
                continue
            for at in takers:
                in_order = self._consumers[at].keeps_order and message.key is not None
                chain = (at, message.key) if in_order else (at, None, stored.id)
                self._timeline.add(_For(at, stored, message), chain)
        for each in there.scheduled:
            self._shifts.setdefault(each.message.id, self._timeline.now - self._started)

    def _due_first(self, there: Contents) -> UUID | None:
        """The scheduled message that comes before anything else; time goes there."""
        waiting = ((each.due + self._shifts[each.message.id], each.message.id) for each in there.scheduled)
        first, id = min(waiting, key=lambda each: each[0], default=(None, None))
        if first is None or self._is_late(first):
            return None
        following = self._timeline.next_due
        if following is not None and following < max(first, self._timeline.now):
            return None
        self._timeline.travel(first)
        return id

    def _is_late(self, moment: int) -> bool:
        return self._until is not None and moment > self._until

    def _move(self, id: UUID) -> Any:
        return contents(self.connection, self._consumers[0].schema, move=id)

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _next(self) -> list[Item[_For]]:
        """What is due next: one message, or several that a consumer handles in one transaction."""
        items = [self._timeline.take()]
        consumer = items[0].what.consumer
        size = self._handlers[consumer].handlers.group_size
        while len(items) < size and not items[0].alone:
            more = self._timeline.take_if(lambda item: item.what.consumer == consumer and not item.alone)
            if more is None:
                break
            items.append(more)
        return items

    def _attempt(self, items: list[Item[_For]]) -> Steps:
        self._left -= 1
        if self._left < 0:
            raise AssertionError(
                f"handlers were called {self._most} times, and messages are still waiting: do they add messages for "
                "each other, or for later, without end? Give a time limit, deliveries(..., until='1d'), or raise most="
            )
        at = items[0].what.consumer
        messages = [msgspec.structs.replace(each.what.message, attempt=each.failures + 1) for each in items]
        try:
            new = yield from in_savepoint(self.adapter, self.connection, self._handle(at, messages))
        except (TransactionEnded, TransactionLost) as error:
            raise AssertionError(
                f"{self._named(at, messages)} has ended the test's transaction, so what the test has done is committed "
                f"or lost: {error}. A handler leaves that to the consumer: remove its commit() or rollback()"
            ) from error
        except MessageBusy as error:
            raise (error.__cause__ or error) from None
        except Exception as error:  # of the handler
            self._fail(items, messages, error)
        else:
            self._finish(items, messages, new)

    def _handle(self, at: int, messages: list[Received]) -> Steps:
        transaction = self._handlers[at]
        undone = Undone(messages, {})
        if not all(CODEC_HEADERS.isdisjoint(message.headers) for message in messages):
            work = transaction.decoder.undo(messages)
            undone = yield (work if self.adapter.is_async else run_in_thread(work))
        messages[:] = undone.messages
        return (yield from transaction.steps(undone, False, self.connection))

    def _finish(self, items: list[Item[_For]], messages: list[Received], new: list[bool]) -> None:
        at = items[0].what.consumer
        for item, message, first in zip(items, messages, new, strict=True):
            if first:
                event, _ = self._handlers[at].handlers.decode(message)
                self._found.handled.append(HandledMessage(self._consumers[at].name, event, message, self._now()))
            else:
                self._found.again.append(message)
            self._timeline.end(item)

    def _fail(self, items: list[Item[_For]], messages: list[Received], error: Exception) -> None:
        if len(items) > 1:  # each is tried alone, so that only the one at fault fails
            for item in items:
                item.alone = True
                self._timeline.retry(item, 0)
            return
        [item], [message] = items, messages
        item.failures += 1
        unreadable = isinstance(error, Unreadable)
        reason = cut(str(error) if unreadable else f"{type(error).__name__}: {error}")
        self._failed += not unreadable
        consumer = self._consumers[item.what.consumer]
        pause = None if unreadable else consumer.retry.retry_in(item.failures, Refusal(0, reason))
        if pause is None:
            self._found.dead.append(DeadLetter(message, reason, consumer.name, error))
            self._timeline.end(item)
        else:
            self._timeline.retry(item, pause // MICROSECOND)

    def _named(self, at: int, messages: Sequence[Received]) -> str:
        return f"the handler of consumer {self._consumers[at].name!r} for {messages[0].type!r}"

    def _now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self._timeline.now)
