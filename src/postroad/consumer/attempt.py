"""What is done with one message: handle it, count what fails, say when to try again, or bury it.

The rules:

- An attempt counts when the handler failed. That a database or a broker is out counts for nobody.
- A message is among the dead letters, durably, before it is acked.
- What has happened to a message is remembered until it is written down: an outage in between repeats nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from postroad import events
from postroad.consumer.attempts import CRASHED, cut
from postroad.consumer.transactions import Busy, Lost, StoreOut
from postroad.errors import BrokerUnavailable, Refusal
from postroad.listeners import LogListener, tell
from postroad.message import new_id
from postroad.received import Unreadable

if TYPE_CHECKING:
    from postroad.brokers.base import Delivery, Subscriber
    from postroad.consumer.attempts import Attempts, Begun
    from postroad.consumer.transaction import HandlerTransaction
    from postroad.received import Received
    from postroad.retry import RetryPolicy

__all__ = ["CONSUMER", "FIRST_PAUSE", "LONGEST_PAUSE", "Attempt", "ConsumerOptions", "Summary", "Work", "is_failure"]

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0
MOST_LOSSES: Final = 5
"""How often a message's transaction may be lost before that counts: its handler may be what breaks the connection."""
CONSUMER: Final = "postroad-consumer"
"""The header of a dead letter that says whose it is."""


class Summary(msgspec.Struct):
    """What a consumer did."""

    handled: int = 0
    duplicates: int = 0
    """Messages that had been processed before."""
    failed: int = 0
    """Attempts that failed."""
    dead: int = 0
    """Messages that went to the dead letters."""
    abandoned: int = 0
    """Handlers that had not ended when the consumer did."""
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f" ({self.handled / self.seconds:,.0f}/s)" if self.seconds > 0 and self.handled else ""
        text = f"{self.handled:,} handled"
        text += f", {self.dead:,} dead-lettered" if self.dead else ""
        text += f", {self.duplicates:,} processed before" if self.duplicates else ""
        text += f", {self.failed:,} {'attempt' if self.failed == 1 else 'attempts'} failed" if self.failed else ""
        return f"{text} in {self.seconds:.2f} s{rate}"


class ConsumerOptions(msgspec.Struct, frozen=True):
    """How a consumer works."""

    consumer: str
    concurrency: int
    keep_order: bool
    retry: RetryPolicy
    grace: float


class Work(msgspec.Struct, eq=False):
    """A delivery, and what is known of it."""

    delivery: Delivery
    message: Received | None
    """None when it can't be read."""
    key: str | None
    burial: str | None = None
    """Why it is to be buried, once that is decided."""
    suspect: bool = False
    """It was delivered before, or was a dead letter: its attempts are marked."""
    failure: str | None = None
    """Why its handler failed, until that is counted."""
    buried_as: str | None = None
    """It is among the dead letters, under this identity."""
    alone: bool = False
    """Not to be handled in a batch."""
    losses: int = 0
    """How often its transaction was lost."""
    pause: float = FIRST_PAUSE
    """How long to wait when nothing can be done with it now."""


class Attempt:
    """Deals with messages one by one. `summary` is kept up to date."""

    def __init__(
        self,
        plan: ConsumerOptions,
        subscriber: Subscriber,
        handling: HandlerTransaction,
        attempts: Attempts,
        summary: Summary,
        *,
        stopping: asyncio.Event,
    ) -> None:
        self._plan = plan
        self._subscriber = subscriber
        self._handling = handling
        self._attempts = attempts
        self._summary = summary
        self._stopping = stopping
        self._one_suspect = asyncio.Lock()
        self._marks: dict[str, Begun] = {}
        """The messages, by their identities, whose beginning was noted by this run, and whose end was not."""

    async def attempt(self, work: Work) -> float | None:
        """None when the message is dealt with and can be acked; otherwise in how many seconds to try again.

        Raises StoreOut when nothing can be done with any message now.
        """
        try:
            return await self._attempt(work)
        except Busy as busy:
            work.pause = min(2 * work.pause, LONGEST_PAUSE)
            tell(events.MessageBusy(*self._names(work), reason=cut(str(busy)), retry_ms=work.pause * 1000))
        except BrokerUnavailable as out:  # the dead letters can't be reached, and those that are none go on
            work.pause = min(2 * work.pause, LONGEST_PAUSE)
            tell(events.ConsumerWaiting(self._plan.consumer, reason=str(out), retry_ms=work.pause * 1000))
        return work.pause

    async def _attempt(self, work: Work) -> float | None:
        message = work.message
        if work.burial is not None or message is None:
            return await self._bury(work)
        await self._handling.undo([message])
        if work.failure is not None:
            return await self._failed(work, message, work.failure)
        if work.suspect:
            return await self._handle_suspect(work, message)
        return await self._handle(work, message)

    async def _handle_suspect(self, work: Work, message: Received) -> float | None:
        """What ran while a process ended is tried one at a time, and the others wait before they make their mark, so
        that none of them is blamed for the one that ends it.
        """
        async with self._one_suspect:
            if self._stopping.is_set():
                return 0.0
            # What has met an outage since, or has come again in another session, has a mark that is no death's.
            begun = self._marks.get(message.identity) or await self._attempts.begin(message)
            if begun is None:
                return self._was_processed(work)
            self._marks[message.identity] = begun
            work.message = message = msgspec.structs.replace(message, attempt=begun.attempts + 1)
            if begun.attempts and self._again_in(begun.attempts, begun.error or "") is None:
                work.burial = f"{CRASHED}, {begun.crashes} times" if begun.crashes else begun.error or ""
            elif begun.crashes:
                return await self._handle(work, message)
        return await (self._handle(work, message) if work.burial is None else self._bury(work))

    async def _handle(self, work: Work, message: Received) -> float | None:
        began = time.monotonic()
        try:
            first = await self._handling.one(message, marked=message.identity in self._marks)
        except (StoreOut, Busy):
            raise
        except Unreadable as error:
            work.burial = str(error)
            return await self._bury(work)
        except BaseException as error:
            if not is_failure(error):
                raise
            work.losses += isinstance(error, Lost)
            if isinstance(error, Lost) and work.losses <= MOST_LOSSES:
                raise Busy(str(error)) from error
            work.failure = cut(str(error) if isinstance(error, Lost) else f"{type(error).__name__}: {error}")
            return await self._failed(work, message, work.failure)
        self._marks.pop(message.identity, None)
        if not first:
            return self._was_processed(work)
        self._summary.handled += 1
        if LogListener().wants(events.MessageHandled):
            tell(events.MessageHandled(*self._names(work), duration_ms=(time.monotonic() - began) * 1000))
        return None

    async def break_off(self) -> None:
        """The consumer was stopped: what has begun and not ended is no death. If this fails, it looks like one."""
        await asyncio.gather(
            self._handling.undo_all(), *map(self._attempts.broken_off, self._marks), return_exceptions=True
        )

    async def _failed(self, work: Work, message: Received, reason: str) -> float | None:
        await self._handling.undo([message])
        attempts = await self._attempts.failed(message, reason)
        work.failure = None
        self._marks.pop(message.identity, None)
        if attempts is None:
            return self._was_processed(work)
        self._summary.failed += 1
        work.message = msgspec.structs.replace(message, attempt=attempts + 1)
        again_in = self._again_in(attempts, reason)
        if again_in is None:
            work.burial = reason
            return await self._bury(work)
        retry_ms = again_in * 1000
        tell(events.HandlerFailed(*self._names(work), attempt=attempts, reason=reason, retry_ms=retry_ms))
        return again_in

    def _again_in(self, attempts: int, reason: str) -> float | None:
        pause = self._plan.retry.retry_in(attempts, Refusal(0, reason))
        return None if pause is None else pause.total_seconds()

    def _was_processed(self, work: Work) -> float | None:
        self._summary.duplicates += 1
        if LogListener().wants(events.DuplicateIgnored):
            tell(events.DuplicateIgnored(*self._names(work)))
        return None

    async def _bury(self, work: Work) -> float | None:
        """Among the dead letters first, durably; then noted; the ack comes last."""
        message, reason = work.message, work.burial or ""
        identity = str(new_id()) if message is None else message.identity
        type = "" if message is None else message.type
        if work.buried_as is None:
            notes = {CONSUMER: self._plan.consumer, "postroad-reason": cut(reason), "postroad-identity": identity}
            await self._subscriber.bury(work.delivery, notes)
            work.buried_as = identity
        await self._attempts.dead(work.buried_as, type, reason)
        self._marks.pop(work.buried_as, None)
        self._summary.dead += 1
        tell(events.MessageDeadLettered(self._plan.consumer, id=work.buried_as, message_type=type, reason=cut(reason)))
        return None

    def _names(self, work: Work) -> tuple[str, str, str]:
        message = work.message
        return (self._plan.consumer, message.id, message.type) if message else (self._plan.consumer, "", "")


def is_failure(error: BaseException) -> bool:
    """A handler failed: also when it raises CancelledError, unless somebody has cancelled the task that runs it."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return isinstance(error, Exception)
