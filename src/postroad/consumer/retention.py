"""How long the inbox keeps its rows: at least as long as a message may be delivered again. Every consumer deletes its
own old rows.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.consumer.errors import InboxUnavailable

if TYPE_CHECKING:
    from postroad.config import RelaySettings
    from postroad.consumer.attempts import Attempts
    from postroad.listeners import Listeners

__all__ = ["UNACKED", "InboxRetention", "may_come_again_for"]

UNACKED: Final = timedelta(minutes=30)
"""How long RabbitMQ waits for an ack before it delivers again, by default (consumer_timeout)."""


def may_come_again_for(relay: RelaySettings, message_ttl: timedelta | None) -> timedelta:
    """How long after its first delivery the same message may be delivered again.

    The sum of three: the relay keeps messages in its log for `retain`, and an operator may replay them; it retries
    `max_attempts` times, at most `max_backoff` apart; and the broker delivers again what was not acked, or keeps it in
    the queue until its time to live has passed.
    """
    retries = timedelta(seconds=relay.seconds("max_backoff")) * relay.max_attempts
    return timedelta(seconds=relay.seconds("retain")) + retries + max(message_ttl or UNACKED, UNACKED)


class InboxRetention:
    """Deletes a consumer's inbox rows that are older than `retain`, in small batches."""

    def __init__(self, consumer: str, attempts: Attempts, listeners: Listeners, *, retain: timedelta) -> None:
        self._consumer = consumer
        self._attempts = attempts
        self._listeners = listeners
        self._retain = retain

    def check(self, needed: timedelta) -> bool:
        """Warn if rows are deleted sooner than a message may be delivered again; False then."""
        if self._retain >= needed:
            return True
        self._listeners.emit(
            events.InboxTooShort(self._consumer, retain_s=self._retain.total_seconds(), needed_s=needed.total_seconds())
        )
        return False

    async def run_once(self) -> int:
        """Delete what is old enough; how many rows that were."""
        deleted = await self._attempts.delete_processed(self._retain)
        cleaned = events.InboxCleaned(self._consumer, deleted=deleted, retain_s=self._retain.total_seconds())
        self._listeners.emit(cleaned)
        return deleted

    async def run(self, every: float) -> None:
        """Delete at this interval, but not at once: what was open when the consumer ended is delivered again first."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.run_once()
            except InboxUnavailable as outage:
                failed = events.InboxNotCleaned(self._consumer, reason=str(outage), retry_ms=every * 1000)
                self._listeners.emit(failed)
