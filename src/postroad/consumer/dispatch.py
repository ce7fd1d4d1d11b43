"""Starts the processing of received messages: in order per key, at most `concurrency` at once; acks them when done.

- A message is acked only after its transaction was committed, or after it is durably in the dead-letter queue.
- A message that failed keeps its key busy until it is done; other keys go on.
- While the inbox is unavailable, messages wait; no attempt is counted.
- Messages whose inbox rows another transaction has locked take at most half of the places, because each waits there for
  its lock. A process that is frozen in a transaction would otherwise stop the consumers that take over from it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.brokers.cloudevents import unwrap
from postroad.consumer.attempts import cut
from postroad.consumer.delivery import is_failure
from postroad.consumer.errors import InboxUnavailable
from postroad.consumer.keys import Keys
from postroad.consumer.model import OpenDelivery
from postroad.consumer.outages import BACKOFF
from postroad.dead_letters import CONSUMER_HEADER
from postroad.received import Unreadable
from postroad.trace_context import context_without_span

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroad.brokers.base import Delivery, Subscriber
    from postroad.consumer.delivery import DeliveryProcessor
    from postroad.consumer.model import ConsumerOptions
    from postroad.consumer.outages import Outages
    from postroad.consumer.registry import HandlerRegistry
    from postroad.listeners import Listeners

__all__ = ["Dispatcher"]

LOCKED_SECONDS: Final = 1.0
"""How long a locked message waits for a place."""


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
        self._group: asyncio.Task[None] | None = None
        self._locked: set[OpenDelivery] = set()
        """What was locked at its last try, and is ready or being processed."""
        self._context = context_without_span()
        self.tasks: dict[asyncio.Task[None], Sequence[OpenDelivery]] = {}
        """What is being processed."""
        self.parked: dict[OpenDelivery, asyncio.TimerHandle] = {}
        """What waits for its next attempt; its key is busy."""
        self._loop = asyncio.get_running_loop()
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
            item = OpenDelivery(delivery, None, None, dead_letter_reason=str(error), alone=True)
        except Exception as error:  # a message that can't be read becomes a dead letter, and never ends the consumer
            reason = f"it can't be read: {type(error).__name__}: {error}"
            item = OpenDelivery(delivery, None, None, dead_letter_reason=reason, alone=True)
        else:
            # Without a key, and where no order is wanted, copies of one message still wait for each other: the inbox
            # would let only one of them go on anyway.
            by_key = self._options.keep_order and message.key is not None
            key = f"key {message.key}" if by_key else f"id {message.identity}"
            suspect = (
                delivery.redelivered is not False or delivery.headers.get(CONSUMER_HEADER) == self._options.consumer
            )
            item = OpenDelivery(delivery, message, key, suspect=suspect, alone=suspect)
        self._keys.add(item.key, item)

    def hand_out(self) -> None:
        """Start what can be started. Groups go one after the other: the next one grows meanwhile."""
        while self._keys.ready and len(self.tasks) < self._options.concurrency and not self._stopping.is_set():
            alone = self._handlers.group_size == 1 or self._keys.ready[0][1].alone
            if not alone and self._group in self.tasks:
                return
            items = self._keys.take(1 if alone else self._handlers.group_size, _joins)
            if len(items) > 1:
                items.sort(key=attrgetter("delivery.tag"))
            # In a copy of the context: what a handler sets there must not reach the next message.
            task = self._loop.create_task(self._process(items), context=self._context.copy())
            task.add_done_callback(self._ended)
            self.tasks[task] = items
            if not alone:
                self._group = task

    def forget(self) -> None:
        """The session has ended: the broker delivers again what was not started."""
        self._keys.clear()
        self._locked.clear()
        for item in list(self.parked):
            self.parked.pop(item).cancel()
            self._keys.finish(item.key)

    def revoke(self, sessions: Collection[object]) -> tuple[list[OpenDelivery], list[OpenDelivery]]:
        """These sessions end: begin nothing more of them. Returns what was dropped, and what is being processed."""

        def ends(item: OpenDelivery) -> bool:
            return item.delivery.session in sessions

        dropped = self._keys.discard(ends)
        self._locked.difference_update(dropped)
        for item in [each for each in self.parked if ends(each)]:
            self.parked.pop(item).cancel()
            self._keys.finish(item.key)
            dropped.append(item)
        in_progress = [item for items in self.tasks.values() for item in items if ends(item)]
        for item in in_progress:
            item.revoked = True
        self.hand_out()
        return dropped, in_progress

    def take_unstarted(self) -> list[OpenDelivery]:
        """Remove what was not started, or waits for a retry."""
        unstarted = [*self._keys.clear(), *self.parked]
        for timer in self.parked.values():
            timer.cancel()
        self.parked.clear()
        return unstarted

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def _process(self, items: Sequence[OpenDelivery]) -> None:
        """Process a message, or a group in one transaction, and ack; or park the message until its next attempt, or
        split the group. While the inbox is unavailable, wait and repeat.
        """
        item, outages, retry_in = items[0], 0, None
        dead_lettered_before = item.dead_letter_id is not None
        while True:
            began = time.monotonic()
            try:
                if len(items) > 1:
                    await self._processor.attempt_group(items)
                else:
                    retry_in = await self._processor.attempt(item)
                break
            except InboxUnavailable as error:
                outages += 1
                await self._wait_for_database(str(error), outages)
                if self._stopping.is_set() or any(item.revoked for item in items):
                    self._split(items)
                    return
            except BaseException as error:
                if len(items) == 1 or not is_failure(error):
                    raise
                reason = cut(f"{type(error).__name__}: {error}")
                event = events.GroupFailed(self._options.consumer, size=len(items), reason=reason)
                self._listeners.emit(event.caused_by(error))
                self._split(items)
                return
        if item.waits_for is not None and retry_in is not None:
            self._park(item, self._outages.begin(item.waits_for, item.waits_because, retry_in))
            return
        if self._outages.known:
            self._outages.end("database", began=began)
        if item.dead_letter_id is not None and not dead_lettered_before:
            self._outages.end("dead letters")
        if retry_in is not None:
            self._park(item, retry_in)
            return
        self._subscriber.ack([item.delivery for item in items])
        for key in {item.key: None for item in items}:
            self._keys.finish(key)

    async def _wait_for_database(self, reason: str, outages: int) -> None:
        wait = self._outages.begin("database", reason, BACKOFF.after(outages))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._stopping.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        items = self.tasks.pop(task)
        self._locked.difference_update(items)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not self._stopping.is_set():
            if not (task.cancelled() and any(item.revoked for item in items)):
                reason = cut(f"{type(error).__name__}: {error}")
                event = events.ConsumerError(self._options.consumer, reason=reason, retry_ms=BACKOFF.longest * 1000)
                self._listeners.emit(event.caused_by(error))
            if len(items) > 1:
                self._split(items)
            else:
                self._park(items[0], BACKOFF.longest)
        self.hand_out()
        if not self.tasks:
            self.idle.set()

    def _park(self, item: OpenDelivery, seconds: float) -> None:
        if self._stopping.is_set():
            return  # closing the subscriber gives it back
        if item.revoked:
            self._keys.finish(item.key)
            return
        item.alone = True  # a group knows nothing of what was decided about it
        self.parked[item] = self._loop.call_later(seconds, self._unpark, item)

    def _unpark(self, item: OpenDelivery) -> None:
        if item.locked:
            if len(self._locked) >= max(1, self._options.concurrency // 2):
                self.parked[item] = self._loop.call_later(LOCKED_SECONDS, self._unpark, item)
                return
            self._locked.add(item)
        del self.parked[item]
        self._keys.restore(item.key, [item])
        self.hand_out()

    def _split(self, items: Sequence[OpenDelivery]) -> None:
        """Queue the messages of a failed group again, to be processed one by one. Revoked ones are dropped."""
        by_key: dict[str | None, list[OpenDelivery]] = {}
        for item in items:
            item.alone = True
            by_key.setdefault(item.key, []).append(item)
        if self._stopping.is_set():
            return  # closing the subscriber gives them back
        for key, of_key in reversed(by_key.items()):
            if left := [item for item in of_key if not item.revoked]:
                self._keys.restore(key, left)
            else:
                self._keys.finish(key)


def _joins(item: OpenDelivery) -> bool:
    return not item.alone
