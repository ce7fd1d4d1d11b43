"""One message: call its handler, count a failure, decide when to retry, or send it to the dead-letter queue.

- An attempt counts when the handler failed. An outage of the database or the broker counts no attempt.
- A message is in the dead-letter queue, durably, before it is acked.
- What has happened to a message is remembered until it is written to the database: an outage repeats no step.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from postroad import events
from postroad.consumer.attempts import CRASHED, cut
from postroad.consumer.errors import InboxUnavailable, MessageBusy, TransactionLost
from postroad.consumer.outages import BACKOFF, is_outage
from postroad.dead_letters import CONSUMER_HEADER, IDENTITY_HEADER, REASON_HEADER
from postroad.errors import BrokerUnavailable, Refusal
from postroad.message import new_id
from postroad.received import Unreadable
from postroad.stores.connections.errors import is_lock_timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from postroad.brokers.base import Subscriber
    from postroad.consumer.attempts import Attempts, PriorAttempts
    from postroad.consumer.handler_transaction import HandlerTransaction
    from postroad.consumer.model import ConsumerOptions, OpenDelivery, Summary
    from postroad.listeners import Listeners
    from postroad.otel import Tracing
    from postroad.received import Received

__all__ = ["DeliveryProcessor", "handle_group_traced", "is_failure"]

MOST_LOSSES: Final = 5
"""How often a message's transaction may be lost before that counts: its handler may be what breaks the connection."""


class DeliveryProcessor:
    """Processes single messages; several calls may run at once. Keeps `summary` up to date."""

    def __init__(
        self,
        options: ConsumerOptions,
        subscriber: Subscriber,
        transaction: HandlerTransaction,
        attempts: Attempts,
        *,
        summary: Summary,
        listeners: Listeners,
        stopping: asyncio.Event,
        tracing: Tracing | None = None,
    ) -> None:
        self._options = options
        self._subscriber = subscriber
        self._transaction = transaction
        self._attempts = attempts
        self._summary = summary
        self._listeners = listeners
        self._stopping = stopping
        self._tracing = tracing
        # `_call_handler`, in a span if the consumer is traced.
        self._handle = self._call_handler if tracing is None else self._call_handler_traced
        self._one_suspect = asyncio.Lock()
        self._marked: dict[str, PriorAttempts] = {}
        """By identity: messages whose attempt this run has marked as begun, and not yet as ended."""

    async def attempt(self, item: OpenDelivery) -> float | None:
        """Attempt the message: returns None when it is done and can be acked, else seconds until the next try.

        Raises InboxUnavailable when no message can be processed now.
        """
        item.waits_for = None
        try:
            message = item.message
            if item.dead_letter_reason is not None or message is None:
                return await self._dead_letter(item)
            if item.failure is not None:
                return await self._count_failure(item, message, item.failure)
            return await (self._handle_suspect if item.suspect else self._handle)(item, message)
        except MessageBusy as busy:
            item.locked = is_lock_timeout(busy)
            if is_outage(busy):
                item.waits_for, item.waits_because = "database", str(busy)
            retry_in = self._pause(item)
            if item.waits_for is None:  # else it is an outage, which is reported once for all messages
                event = events.MessageBusy(*self._names(item), reason=cut(str(busy)), retry_ms=retry_in * 1000)
                self._listeners.emit(event)
        except BrokerUnavailable as outage:  # of the dead-letter queue; other messages go on
            item.waits_for, item.waits_because = "dead letters", str(outage)
            retry_in = self._pause(item)
        return retry_in

    async def attempt_group(self, items: Sequence[OpenDelivery]) -> None:
        """Handle all of them in one transaction. Raises what `HandlerTransaction.handle` raises."""
        began = time.monotonic()
        messages = [item.message for item in items if item.message is not None]
        new: Sequence[bool]
        if self._tracing is None:
            new = await self._transaction.handle(messages)
        else:
            new = await handle_group_traced(
                self._tracing, self._transaction.handle, messages, self._options.consumer, self._subscriber.name
            )
        self._finish(items, new, began)

    async def _call_handler_traced(self, item: OpenDelivery, message: Received) -> float | None:
        assert self._tracing is not None  # noqa: S101 - checked when this was made
        with self._tracing.process([message], self._options.consumer, self._subscriber.name) as span:
            item.span = span
            try:
                return await self._call_handler(item, message)
            finally:
                item.span = None

    async def _call_handler(self, item: OpenDelivery, message: Received) -> float | None:
        began = time.monotonic()
        try:
            new = await self._transaction.handle([message], marked=message.identity in self._marked)
        except (InboxUnavailable, MessageBusy):
            if item.span is not None:
                item.span.end_as("waiting")
            raise
        except Unreadable as error:
            item.dead_letter_reason, item.error = str(error), error
            if item.span is not None:
                item.span.fail(error)
            return await self._dead_letter(item)
        except BaseException as error:
            if not is_failure(error):
                raise
            if item.span is not None:
                item.span.fail(error, "lost" if isinstance(error, TransactionLost) else "failed")
            if self._listeners.measure:
                self._measure([item], [False], began)
            item.losses += isinstance(error, TransactionLost)
            if isinstance(error, TransactionLost) and item.losses <= MOST_LOSSES:
                raise MessageBusy(str(error)) from error
            item.error = error
            item.failure = cut(str(error) if isinstance(error, TransactionLost) else f"{type(error).__name__}: {error}")
            return await self._count_failure(item, message, item.failure)
        self._marked.pop(message.identity, None)
        self._finish([item], new, began)
        return None

    def _measure(self, items: Sequence[OpenDelivery], new: Sequence[bool], began: float) -> None:
        created = [item.message.time for item, first in zip(items, new, strict=True) if first and item.message]
        self._listeners.processed(self._options.consumer, time.monotonic() - began, created)

    def _finish(self, items: Sequence[OpenDelivery], new: Sequence[bool], began: float) -> None:
        """Count and report messages whose transaction was committed."""
        wanted = self._listeners.wants(events.MessageHandled)
        for item, first in zip(items, new, strict=True):
            if not first:
                self._ignore_duplicate(item)
                continue
            self._summary.handled += 1
            if item.span is not None:
                item.span.end_as("handled")
            if wanted:
                duration_ms = (time.monotonic() - began) * 1000
                self._listeners.emit(events.MessageHandled(*self._names(item), duration_ms=duration_ms))
        if self._listeners.measure:
            self._measure(items, new, began)

    async def _handle_suspect(self, item: OpenDelivery, message: Received) -> float | None:
        """Messages that were being handled when a process crashed are tried one at a time. The others wait and are not
        marked yet, so that an attempt counts only for the one that crashes the process again.
        """
        async with self._one_suspect:
            if self._stopping.is_set() or item.revoked:
                return 0.0
            await self._transaction.undo([message])
            # A mark of this run is no crash: the message has met an outage since, or came again in another session.
            prior = self._marked.get(message.identity) or await self._attempts.begin(message)
            if prior is None:
                self._ignore_duplicate(item)
                return None
            self._marked[message.identity] = prior
            item.message = message = msgspec.structs.replace(message, attempt=prior.attempts + 1)
            if prior.attempts and self._retry_in(prior.attempts, prior.error or "") is None:
                crashed = f"{CRASHED}, {prior.crashes} times"
                item.dead_letter_reason = crashed if prior.crashes else prior.error or ""
            elif prior.crashes:
                return await self._handle(item, message)
        return await (self._handle(item, message) if item.dead_letter_reason is None else self._dead_letter(item))

    async def _count_failure(self, item: OpenDelivery, message: Received, reason: str) -> float | None:
        await self._transaction.undo([message])
        attempts = await self._attempts.count_failure(message, reason)
        item.failure = None
        self._marked.pop(message.identity, None)
        if attempts is None:
            self._ignore_duplicate(item)
            return None
        self._summary.failed += 1
        item.message = msgspec.structs.replace(message, attempt=attempts + 1)
        retry_in = self._retry_in(attempts, reason)
        if retry_in is None:
            item.dead_letter_reason = reason
            return await self._dead_letter(item)
        names, retry_ms = self._names(item), retry_in * 1000
        event = events.HandlerFailed(*names, attempt=attempts, reason=reason, retry_ms=retry_ms)
        self._listeners.emit(event.caused_by(item.error))
        item.error = None
        return retry_in

    async def _dead_letter(self, item: OpenDelivery) -> float | None:
        """Into the dead-letter queue first, durably; then recorded in the database; the ack comes last."""
        message, reason = item.message, item.dead_letter_reason or ""
        identity = str(new_id()) if message is None else message.identity
        type = "" if message is None else message.type
        if item.dead_letter_id is None:
            consumer = self._options.consumer
            headers = {CONSUMER_HEADER: consumer, REASON_HEADER: cut(reason), IDENTITY_HEADER: identity}
            await self._subscriber.dead_letter(item.delivery, headers)
            item.dead_letter_id = identity
        await self._attempts.record_dead(item.dead_letter_id, type, reason)
        self._marked.pop(item.dead_letter_id, None)
        self._summary.dead += 1
        event = events.MessageDeadLettered(
            self._options.consumer, id=item.dead_letter_id, message_type=type, reason=cut(reason)
        )
        self._listeners.emit(event.caused_by(item.error))
        item.error = None
        if item.span is not None:
            item.span.end_as("dead")
        return None

    async def unmark(self, items: Collection[OpenDelivery]) -> None:
        """Remove the marks of these, if they have some: another consumer gets them, and would count crashes."""
        identities = {item.message.identity for item in items if item.message is not None} & self._marked.keys()
        await asyncio.gather(*map(self._attempts.unmark, identities), return_exceptions=True)
        for identity in identities:
            self._marked.pop(identity, None)

    async def unmark_all(self) -> None:
        """Remove the marks of attempts that ended because the consumer was stopped. If this fails, they will look like
        crashes.
        """
        await asyncio.gather(
            self._transaction.undo_all(), *map(self._attempts.unmark, self._marked), return_exceptions=True
        )

    def _ignore_duplicate(self, item: OpenDelivery) -> None:
        self._summary.duplicates += 1
        item.error = None
        if item.span is not None:
            item.span.end_as("duplicate")
        if self._listeners.wants(events.DuplicateIgnored):
            self._listeners.emit(events.DuplicateIgnored(*self._names(item)))

    def _retry_in(self, attempts: int, reason: str) -> float | None:
        pause = self._options.retry.retry_in(attempts, Refusal(0, reason))
        return None if pause is None else pause.total_seconds()

    def _pause(self, item: OpenDelivery) -> float:
        item.pauses += 1
        return BACKOFF.after(item.pauses)

    def _names(self, item: OpenDelivery) -> tuple[str, str, str]:
        message, consumer = item.message, self._options.consumer
        return (consumer, message.id, message.type) if message else (consumer, "", "")


async def handle_group_traced(
    tracing: Tracing,
    handle: Callable[[Sequence[Received]], Awaitable[Sequence[bool]]],
    messages: Sequence[Received],
    consumer: str,
    source: str,
) -> Sequence[bool]:
    """Handle a group in one transaction and one span."""
    with tracing.process(messages, consumer, source) as span:
        try:
            new = await handle(messages)
        except BaseException as error:
            if span is not None:
                span.fail(error)
            raise
        if span is not None:
            span.end_group(new)
        return new


def is_failure(error: BaseException) -> bool:
    """Whether the handler failed. A CancelledError counts too, unless the consumer cancelled the handler's task."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, Exception)
