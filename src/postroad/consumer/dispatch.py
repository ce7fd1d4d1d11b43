"""Starts the processing of received messages: in order per key, at most `concurrency` at once; acks them when done.

- A message is acked only after its transaction was committed, or after it is durably in the dead-letter queue.
- A message that failed keeps its key busy until it is done; other keys go on.
- While the inbox is unavailable, messages wait; no attempt is counted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from postroad import events
from postroad.brokers.cloudevents import unwrap
from postroad.consumer.attempts import cut
from postroad.consumer.delivery import CONSUMER_HEADER, is_failure
from postroad.consumer.errors import InboxUnavailable
from postroad.consumer.keys import Keys
from postroad.consumer.model import OpenDelivery
from postroad.consumer.pauses import FIRST_PAUSE, LONGEST_PAUSE, longer
from postroad.received import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from postroad.brokers.base import Delivery, Subscriber
    from postroad.consumer.delivery import DeliveryProcessor
    from postroad.consumer.model import ConsumerOptions
    from postroad.consumer.outages import Outages
    from postroad.consumer.registry import HandlerRegistry
    from postroad.listeners import Listeners

__all__ = ["Dispatcher"]

T = TypeVar("T")


class Dispatcher:
    """The unacked deliveries of one run: those that wait for their key, are being processed, or wait for a retry."""

    def __init__(
        self,
        options: ConsumerOptions,
        subscriber: Subscriber,
        handlers: HandlerRegistry,
        processor: DeliveryProcessor,
        *,
        outages: Outages,
        listeners: Listeners,
        stopping: asyncio.Event,
    ) -> None:
        self._options = options
        self._subscriber = subscriber
        self._handlers = handlers
        self._processor = processor
        self._outages = outages
        self._listeners = listeners
        self._stopping = stopping
        self._keys: Keys[OpenDelivery] = Keys()
        self._batch: asyncio.Task[None] | None = None
        self._context = copy_context()
        self.tasks: dict[asyncio.Task[None], Sequence[OpenDelivery]] = {}
        """What is being processed."""
        self.parked: dict[OpenDelivery, asyncio.TimerHandle] = {}
        """What waits for its next attempt; its key is busy."""
        self.idle = asyncio.Event()
        """Set whenever the last task has ended."""

    @property
    def empty(self) -> bool:
        """No message is being processed, waits to be processed, or waits for a retry."""
        return not (self.tasks or self.parked or self._keys.ready)

    def add(self, delivery: Delivery) -> None:
        """Read a delivery, and queue it behind the others of its key."""
        try:
            message = unwrap(delivery)
        except Unreadable as error:
            item = OpenDelivery(delivery, None, None, dead_letter_reason=str(error))
        except Exception as error:  # a message that can't be read becomes a dead letter, and never ends the consumer
            reason = f"it can't be read: {type(error).__name__}: {error}"
            item = OpenDelivery(delivery, None, None, dead_letter_reason=reason)
        else:
            # Without a key, and where no order is wanted, copies of one message still wait for each other: the inbox
            # would let only one of them go on anyway.
            by_key = self._options.keep_order and message.key is not None
            key = f"key {message.key}" if by_key else f"id {message.identity}"
            suspect = delivery.redelivered or delivery.headers.get(CONSUMER_HEADER) == self._options.consumer
            item = OpenDelivery(delivery, message, key, suspect=suspect, no_batch=suspect)
        self._keys.add(item.key, item)

    def hand_out(self) -> None:
        """Start what can be started."""
        while self._keys.ready and len(self.tasks) < self._options.concurrency and not self._stopping.is_set():
            if self._handlers.batch is None:
                item = self._keys.take()
                self._start(self._process(item), (item,))
            elif self._batch is None or self._batch.done():
                self._take_batch()
            else:
                return

    def forget(self) -> None:
        """The session has ended: the broker delivers again what was not started."""
        self._keys.clear()
        for item in list(self.parked):
            self.parked.pop(item).cancel()
            self._keys.finish(item.key)

    def take_unstarted(self) -> list[OpenDelivery]:
        """Remove what was not started, or waits for a retry."""
        unstarted = [*self._keys.clear(), *self.parked]
        for timer in self.parked.values():
            timer.cancel()
        self.parked.clear()
        return unstarted

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None], items: Sequence[OpenDelivery]) -> asyncio.Task[None]:
        # In a copy of the context: what a handler sets there must not reach the next message.
        task = asyncio.create_task(work, context=self._context.copy())
        self.tasks[task] = items
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        items = self.tasks.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not self._stopping.is_set():
            reason = cut(f"{type(error).__name__}: {error}")
            self._listeners.emit(
                events.ConsumerError(self._options.consumer, reason=reason, retry_ms=LONGEST_PAUSE * 1000)
            )
            if len(items) > 1:
                self._split(items)
            else:
                self._park(items[0], LONGEST_PAUSE)
        self.hand_out()
        if not self.tasks:
            self.idle.set()

    async def _process(self, item: OpenDelivery) -> None:
        """Process a message and ack it, or park it until its next attempt."""
        dead_lettered_before = item.dead_letter_id is not None
        try:
            retry_in = await self._through_outages(lambda: self._processor.attempt(item))
        except _Stopped:
            return  # closing the subscriber gives the message back
        if item.waits_for is not None and retry_in is not None:
            self._park(item, self._outages.begin(item.waits_for, item.waits_because, retry_in))
            return
        self._outages.end("database")
        if item.dead_letter_id is not None and not dead_lettered_before:
            self._outages.end("dead letters")
        if retry_in is not None:
            self._park(item, retry_in)
            return
        self._subscriber.ack((item.delivery,))
        self._keys.finish(item.key)

    async def _through_outages(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work; repeat it while the inbox is unavailable. Raises _Stopped when the consumer is stopped."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await work()
            except InboxUnavailable as error:
                wait = self._outages.begin("database", str(error), pause)
                if self._outages.given_up is None:
                    waiting = events.ConsumerWaiting(self._options.consumer, reason=str(error), retry_ms=wait * 1000)
                    self._listeners.emit(waiting)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._stopping.wait()
                if self._stopping.is_set():
                    raise _Stopped from error
                pause = longer(pause)

    def _park(self, item: OpenDelivery, seconds: float) -> None:
        if self._stopping.is_set():
            return  # closing the subscriber gives it back
        self.parked[item] = asyncio.get_running_loop().call_later(seconds, self._unpark, item)

    def _unpark(self, item: OpenDelivery) -> None:
        del self.parked[item]
        self._keys.restore(item.key, [item])
        self.hand_out()

    # -- batches -----------------------------------------------------------------------------------------------------

    def _take_batch(self) -> None:
        """Start one batch at a time: that keeps the order, and the next batch grows meanwhile."""
        items: list[OpenDelivery] = []
        while self._keys.ready and len(items) < self._handlers.batch_size:
            item = self._keys.take()
            if item.no_batch or item.message is None:
                if len(self.tasks) + bool(items) >= self._options.concurrency:
                    self._keys.restore(item.key, [item])
                    break
                self._start(self._process(item), (item,))
                continue
            items.append(item)
            items += self._keys.follow(item.key, self._handlers.batch_size - len(items))
        if items:
            items.sort(key=lambda item: item.delivery.tag)
            self._batch = self._start(self._process_batch(items), items)

    async def _process_batch(self, items: Sequence[OpenDelivery]) -> None:
        """Process all of them in one transaction; if that fails, each of them alone."""
        try:
            await self._through_outages(lambda: self._processor.attempt_batch(items))
        except _Stopped:
            return
        except BaseException as error:
            if not is_failure(error):
                raise
            reason = cut(f"{type(error).__name__}: {error}")
            self._listeners.emit(events.BatchFailed(self._options.consumer, size=len(items), reason=reason))
            self._split(items)
            return
        self._outages.end("database")
        self._subscriber.ack([item.delivery for item in items])
        for key in dict.fromkeys(item.key for item in items):
            self._keys.finish(key)

    def _split(self, items: Sequence[OpenDelivery]) -> None:
        """Queue the messages of a failed batch again, to be processed one by one."""
        by_key: dict[str | None, list[OpenDelivery]] = {}
        for item in items:
            item.no_batch = True
            by_key.setdefault(item.key, []).append(item)
        if self._stopping.is_set():
            return  # closing the subscriber gives them back
        for key, of_key in reversed(by_key.items()):
            self._keys.restore(key, of_key)


class _Stopped(Exception):
    """The consumer was stopped while the inbox was unavailable."""
