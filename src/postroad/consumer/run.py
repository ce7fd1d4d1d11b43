"""A consumer at work: receive, hand out by keys, wait between attempts, bury, ack; until it is stopped.

The rules:

- A message is acked only after its transaction was committed, or after it is durably among the dead letters.
- A message that failed keeps its key busy until it is dealt with; other keys go on.
- An attempt counts when the handler failed. That a database or a broker is out counts for nobody.
- When a session has ended, what was not begun is forgotten: it comes again.
- A run until the queue is empty gives up when a database or a broker is out for longer than its limit.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from postroad import events
from postroad.brokers.cloudevents import unwrap
from postroad.consumer.attempt import CONSUMER, FIRST_PAUSE, LONGEST_PAUSE, Attempt, Summary, Work, is_failure
from postroad.consumer.attempts import cut
from postroad.consumer.keys import Keys
from postroad.consumer.outages import Outages
from postroad.consumer.transactions import StoreOut
from postroad.errors import BrokerUnavailable, LoginRefused
from postroad.heap import keep_large_blocks
from postroad.listeners import tell
from postroad.received import Unreadable
from postroad.waiting import cancelled

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Sequence

    from postroad.brokers.base import Delivery, Subscriber
    from postroad.consumer.attempt import ConsumerOptions
    from postroad.consumer.attempts import Attempts
    from postroad.consumer.registry import HandlerRegistry
    from postroad.consumer.transaction import HandlerTransaction

__all__ = ["Run"]

LAST_SECONDS: Final = 1.0
"""How long a consumer that ends waits, beyond its grace, for what it has cancelled; and then for the broker."""
LEAST_SECONDS: Final = 0.1


class Run:
    """One run of a consumer. A subscriber is opened and closed here."""

    def __init__(
        self,
        plan: ConsumerOptions,
        subscriber: Subscriber,
        handlers: HandlerRegistry,
        handling: HandlerTransaction,
        attempts: Attempts,
        *,
        limit: float | None,
    ) -> None:
        """`limit` is how many seconds a database or a broker that is out is waited for, None for any number."""
        self.summary = Summary()
        self._plan = plan
        self._subscriber = subscriber
        self._handlers = handlers
        self._handling = handling
        self._keys: Keys[Work] = Keys()
        self._tasks: dict[asyncio.Task[None], Sequence[Work]] = {}
        self._batch: asyncio.Task[None] | None = None
        self._parked: dict[Work, asyncio.TimerHandle] = {}
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._context = copy_context()
        self._outages = Outages(limit, self._stopping.set)
        self._treatment = Attempt(plan, subscriber, handling, attempts, self.summary, stopping=self._stopping)

    async def run(self, *, until_empty: bool) -> Summary:
        """Receive until stopped, or until there is nothing left.

        Raises BrokerUnavailable or StoreUnavailable when one of them is out for longer than the limit.
        """
        keep_large_blocks()
        began = time.monotonic()
        receiving = asyncio.create_task(self._receive(), name=f"postroad consumer {self._plan.consumer}")
        ending: list[asyncio.Task[Any]] = [asyncio.create_task(self._stopping.wait())]
        if until_empty:
            ending.append(asyncio.create_task(self._until_empty()))
        try:
            await asyncio.wait((receiving, *ending), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()  # it ends only by an error, or when it has given up
            self._stopping.set()
        finally:
            await cancelled(receiving, *ending, seconds=LAST_SECONDS)
            await self._finish()
            self.summary.seconds = time.monotonic() - began
        if self._outages.given_up is not None:
            raise self._outages.given_up
        return self.summary

    @property
    def stopping(self) -> asyncio.Event:
        """Set when it is being stopped."""
        return self._stopping

    def stop(self) -> None:
        """Begin nothing more, let handlers end, ack, and give back the rest."""
        self._stopping.set()

    async def _finish(self) -> None:
        """Wait for what was begun, as long as the grace allows; closing gives back the rest, each to its place.

        Where no order is to be kept, others may have it at once. Otherwise they would begin with what comes after the
        messages that are being handled here.
        """
        self._stopping.set()
        waiting = [*self._keys.clear(), *self._parked]
        for timer in self._parked.values():
            timer.cancel()
        self._parked.clear()
        if not self._plan.keep_order:
            with suppress(BrokerUnavailable):
                await self._subscriber.pause()
            self._subscriber.give_back(sorted((work.delivery for work in waiting), key=lambda each: each.tag))
        late: set[asyncio.Task[None]] = set()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._plan.grace)
        await self._break_off(late)
        closing = asyncio.create_task(self._subscriber.close())
        await asyncio.wait((closing,), timeout=LAST_SECONDS)
        if closing.done():
            closing.result()

    async def _break_off(self, late: Collection[asyncio.Task[None]]) -> None:
        """Cancel what has not ended within the grace. A database that has gone silent is waited for a second, all in
        all; what was asked of it is left to itself, and its messages come again.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + LAST_SECONDS
        left = await cancelled(*late, seconds=LAST_SECONDS)
        undoing = asyncio.create_task(self._treatment.break_off())
        await asyncio.wait((undoing,), timeout=max(LEAST_SECONDS, deadline - now()))
        left |= await cancelled(undoing, seconds=0)
        self.summary.abandoned = len(left) + self._handling.unfinished
        if self.summary.abandoned:
            tell(
                events.HandlersAbandoned(self._plan.consumer, handlers=self.summary.abandoned, grace_s=self._plan.grace)
            )

    async def _until_empty(self) -> None:
        while True:
            self._idle.clear()
            if not self._tasks and not self._parked and not self._keys.ready:
                with suppress(BrokerUnavailable):
                    if not await self._subscriber.waiting() and not self._tasks and not self._parked:
                        return
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_PAUSE):
                    await self._idle.wait()

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        pause, outages, starting = FIRST_PAUSE, 0, True
        while True:
            try:
                await self._subscriber.open()
                tell(events.Receiving(self._plan.consumer, source=self._subscriber.name, attempts=outages + 1))
                pause, outages, starting = FIRST_PAUSE, 0, False
                self._outages.back("broker")
                while True:
                    for delivery in await self._subscriber.receive():
                        work = self._work(delivery)
                        self._keys.add(work.key, work)
                    self._hand_out()
            except BrokerUnavailable as outage:
                if starting and isinstance(outage, LoginRefused):
                    raise
                self._forget()
                outages += 1
                wait = self._outages.out("broker", str(outage), pause)
                if self._outages.given_up is not None:
                    return
                tell(events.SubscriberUnavailable(self._plan.consumer, reason=str(outage), retry_ms=wait * 1000))
                await self._pause(wait)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _work(self, delivery: Delivery) -> Work:
        try:
            message = unwrap(delivery)
        except Unreadable as error:
            return Work(delivery, None, None, burial=str(error))
        except Exception as error:  # whatever others may send, it ends among the dead letters, and not the consumer
            return Work(delivery, None, None, burial=f"it can't be read: {type(error).__name__}: {error}")
        # Without a key, and where no order is wanted, copies of one message still wait for each other: only one of them
        # could go on anyway.
        key = f"key {message.key}" if self._plan.keep_order and message.key is not None else f"id {message.identity}"
        suspect = delivery.redelivered or delivery.headers.get(CONSUMER) == self._plan.consumer
        return Work(delivery, message, key, suspect=suspect, alone=suspect)

    def _forget(self) -> None:
        """The session has ended: what was not begun comes again."""
        self._keys.clear()
        for work in list(self._parked):
            self._parked.pop(work).cancel()
            self._keys.finish(work.key)

    # -- handing out -------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Begin what can be begun."""
        while self._keys.ready and len(self._tasks) < self._plan.concurrency and not self._stopping.is_set():
            if self._handlers.batch is None:
                self._begin_one(self._keys.take())
            elif self._batch is None or self._batch.done():
                self._take_batch()
            else:
                return

    def _take_batch(self) -> None:
        """One batch at a time: that keeps the order, and the next one grows meanwhile."""
        works: list[Work] = []
        while self._keys.ready and len(works) < self._handlers.batch_size:
            work = self._keys.take()
            if work.alone or work.message is None:
                if len(self._tasks) + bool(works) >= self._plan.concurrency:
                    self._keys.restore(work.key, [work])
                    break
                self._begin_one(work)
                continue
            works.append(work)
            works += self._keys.follow(work.key, self._handlers.batch_size - len(works))
        if works:
            works.sort(key=lambda work: work.delivery.tag)
            self._batch = self._begin(self._many(works), works)

    def _begin_one(self, work: Work) -> None:
        self._begin(self._one(work), (work,))

    def _begin(self, doing: Coroutine[Any, Any, None], works: Sequence[Work]) -> asyncio.Task[None]:
        # What a handler sets in its context is not for the next message.
        task = asyncio.create_task(doing, context=self._context.copy())
        self._tasks[task] = works
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        works = self._tasks.pop(task)
        broken = asyncio.CancelledError() if task.cancelled() else task.exception()
        if broken is not None and not self._stopping.is_set():
            reason = cut(f"{type(broken).__name__}: {broken}")
            tell(events.ConsumerError(self._plan.consumer, reason=reason, retry_ms=LONGEST_PAUSE * 1000))
            if len(works) > 1:
                self._one_by_one(works)
            else:
                self._park(works[0], LONGEST_PAUSE)
        self._hand_out()
        if not self._tasks:
            self._idle.set()

    # -- one message -------------------------------------------------------------------------------------------------

    async def _one(self, work: Work) -> None:
        """Deal with a message, or park it; its key stays busy until it is dealt with."""
        pause = FIRST_PAUSE
        while True:
            try:
                again_in = await self._treatment.attempt(work)
            except StoreOut as out:
                await self._wait_for_store(str(out), pause)
                if self._stopping.is_set():
                    return None
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if work.waits_for is not None and again_in is not None:
                    return self._park(work, self._outages.out(work.waits_for, work.reason, again_in))
                self._outages.back("database")
                if again_in is not None:
                    return self._park(work, again_in)
                if work.burial is not None:
                    self._outages.back("dead letters")
                self._subscriber.ack((work.delivery,))
                return self._keys.finish(work.key)

    def _park(self, work: Work, seconds: float) -> None:
        if self._stopping.is_set():
            return  # closing gives it back
        self._parked[work] = asyncio.get_running_loop().call_later(seconds, self._unpark, work)

    def _unpark(self, work: Work) -> None:
        del self._parked[work]
        self._keys.restore(work.key, [work])
        self._hand_out()

    # -- a batch -----------------------------------------------------------------------------------------------------

    async def _many(self, works: Sequence[Work]) -> None:
        """Deal with all of them in one transaction; if that can't be done, with each of them alone."""
        messages = [work.message for work in works if work.message is not None]
        pause = FIRST_PAUSE
        while True:
            try:
                handled = await self._handling.many(messages)
            except StoreOut as out:
                await self._wait_for_store(str(out), pause)
                if self._stopping.is_set():
                    return None
                pause = min(2 * pause, LONGEST_PAUSE)
            except BaseException as error:
                if not is_failure(error):
                    raise
                reason = cut(f"{type(error).__name__}: {error}")
                tell(events.BatchFailed(self._plan.consumer, size=len(works), reason=reason))
                return self._one_by_one(works)
            else:
                self._outages.back("database")
                self.summary.handled += handled
                self.summary.duplicates += len(works) - handled
                self._subscriber.ack([work.delivery for work in works])
                for key in dict.fromkeys(work.key for work in works):
                    self._keys.finish(key)
                return None

    def _one_by_one(self, works: Sequence[Work]) -> None:
        by_key: dict[str | None, list[Work]] = {}
        for work in works:
            work.alone = True
            by_key.setdefault(work.key, []).append(work)
        if self._stopping.is_set():
            return  # closing gives them back
        for key, of_key in reversed(by_key.items()):
            self._keys.restore(key, of_key)

    async def _wait_for_store(self, reason: str, pause: float) -> None:
        wait = self._outages.out("database", reason, pause)
        if self._outages.given_up is None:
            tell(events.ConsumerWaiting(self._plan.consumer, reason=reason, retry_ms=wait * 1000))
            await self._pause(wait)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when the consumer is being stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
