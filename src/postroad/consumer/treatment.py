"""What is done with one message: handle it, count what fails, say when to try again, or bury it.

The rules:

- An attempt counts when the handler failed. That a database or a broker is out counts for nobody.
- A message is among the dead letters, durably, before it is acked.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from postroad import events
from postroad.consumer.attempts import CRASHED, cut
from postroad.consumer.transactions import Busy, StoreOut
from postroad.errors import Refusal
from postroad.events import tell
from postroad.message import new_id
from postroad.received import Unreadable

if TYPE_CHECKING:
    from postroad.brokers.base import Delivery, Subscriber
    from postroad.consumer.attempts import Attempts
    from postroad.consumer.handling import Handling
    from postroad.received import Received
    from postroad.retry import RetryPolicy

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "Plan", "Summary", "Treatment", "Work"]

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0


class Summary(msgspec.Struct):
    """What a consumer did."""

    handled: int = 0
    duplicates: int = 0
    """Messages that had been processed before."""
    failed: int = 0
    """Attempts that failed."""
    dead: int = 0
    """Messages that went to the dead letters."""
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f" ({self.handled / self.seconds:,.0f}/s)" if self.seconds > 0 and self.handled else ""
        text = f"handled {self.handled:,} messages in {self.seconds:.2f} s{rate}"
        text += f"; {self.duplicates:,} had been processed before" if self.duplicates else ""
        text += f"; {self.failed:,} attempts failed" if self.failed else ""
        return text + (f"; {self.dead:,} are dead letters" if self.dead else "")


class Plan(msgspec.Struct, frozen=True):
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
    unreadable: str | None
    key: str | None
    marked: bool = False
    """The beginning of its attempt was noted."""
    alone: bool = False
    """Not to be handled in a batch."""
    busy: float = FIRST_PAUSE
    """How long to wait when somebody else is about to process it."""


class Treatment:
    """Deals with messages one by one. `summary` is kept up to date."""

    def __init__(
        self, plan: Plan, subscriber: Subscriber, handling: Handling, attempts: Attempts, summary: Summary
    ) -> None:
        self._plan = plan
        self._subscriber = subscriber
        self._handling = handling
        self._attempts = attempts
        self._summary = summary
        self._one_suspect = asyncio.Lock()

    async def attempt(self, work: Work) -> float | None:
        """None when the message is dealt with and can be acked; otherwise in how many seconds to try again.

        Raises StoreOut or BrokerUnavailable when nothing can be done now.
        """
        if work.message is None:
            await self._bury(work, work.unreadable or "")
            return None
        if not work.delivery.redelivered:
            return await self._handle(work, work.message)
        # What ran while a process ended is tried one at a time, and the others wait before they make their mark, so
        # that none of them is blamed for the one that ends it.
        async with self._one_suspect:
            begun = await self._attempts.begin(work.message)
            if begun is None:
                self._was_processed(work.message)
                return None
            work.marked = True
            work.message = msgspec.structs.replace(work.message, attempt=begun.attempts + 1)
            if begun.attempts and self._again_in(begun.attempts, CRASHED) is None:
                await self._bury(work, f"{CRASHED}, {begun.crashes} times")
                return None
            if begun.crashes:
                return await self._handle(work, work.message)
        return await self._handle(work, work.message)

    async def _handle(self, work: Work, message: Received) -> float | None:
        began = time.monotonic()
        try:
            first = await self._handling.one(message, marked=work.marked)
        except StoreOut:
            raise
        except Busy as busy:
            work.busy = min(2 * work.busy, LONGEST_PAUSE)
            tell(events.MessageBusy(*self._names(message), reason=cut(str(busy)), retry_ms=work.busy * 1000))
            return work.busy
        except Unreadable as error:
            await self._bury(work, str(error))
            return None
        except Exception as error:
            return await self._failed(work, message, cut(f"{type(error).__name__}: {error}"))
        if not first:
            self._was_processed(message)
            return None
        self._summary.handled += 1
        if events.is_wanted(events.MessageHandled):
            tell(events.MessageHandled(*self._names(message), duration_ms=(time.monotonic() - began) * 1000))
        return None

    async def _failed(self, work: Work, message: Received, reason: str) -> float | None:
        attempts = await self._attempts.failed(message, reason)
        self._summary.failed += 1
        work.message = msgspec.structs.replace(message, attempt=attempts + 1)
        again_in = self._again_in(attempts, reason)
        if again_in is None:
            await self._bury(work, reason)
            return None
        retry_ms = again_in * 1000
        tell(events.HandlerFailed(*self._names(message), attempt=attempts, reason=reason, retry_ms=retry_ms))
        return again_in

    def _again_in(self, attempts: int, reason: str) -> float | None:
        pause = self._plan.retry.again_in(attempts, Refusal(0, reason))
        return None if pause is None else pause.total_seconds()

    def _was_processed(self, message: Received) -> None:
        self._summary.duplicates += 1
        if events.is_wanted(events.DuplicateIgnored):
            tell(events.DuplicateIgnored(*self._names(message)))

    async def _bury(self, work: Work, reason: str) -> None:
        """Among the dead letters first, durably; then noted; the ack comes last."""
        message = work.message
        identity = str(new_id()) if message is None else message.identity
        type = "" if message is None else message.type
        notes = {
            "postroad-consumer": self._plan.consumer,
            "postroad-reason": cut(reason),
            "postroad-identity": identity,
        }
        await self._subscriber.bury(work.delivery, notes)
        await self._attempts.dead(identity, type, reason)
        self._summary.dead += 1
        tell(events.MessageBuried(self._plan.consumer, id=identity, message_type=type, reason=cut(reason)))

    def _names(self, message: Received) -> tuple[str, str, str]:
        return self._plan.consumer, message.id, message.type
