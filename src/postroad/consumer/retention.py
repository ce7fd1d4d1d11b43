"""How long the inbox remembers: at least as long as a message may come again. Deleting is a chore of every consumer."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.consumer.transactions import StoreOut
from postroad.listeners import tell

if TYPE_CHECKING:
    from postroad.config import RelaySettings
    from postroad.consumer.attempts import Attempts

__all__ = ["UNACKED", "InboxRetention", "may_come_again_for"]

UNACKED: Final = timedelta(minutes=30)
"""How long RabbitMQ waits for an ack before it delivers again, unless it is told otherwise (consumer_timeout)."""


def may_come_again_for(relay: RelaySettings, message_ttl: timedelta | None) -> timedelta:
    """How long after its first delivery the same message may be delivered again.

    The relay sends what is in its log again when it is rewound, or a person retries it; it tries so often and pauses so
    long; and the broker delivers again what was not acked, or keeps it in the queue until its time to live has passed.
    """
    retries = timedelta(seconds=relay.seconds("max_backoff")) * relay.max_attempts
    return timedelta(seconds=relay.seconds("retain")) + retries + max(message_ttl or UNACKED, UNACKED)


class InboxRetention:
    """Deletes in small batches what a consumer has processed longer ago than it may come again."""

    def __init__(self, consumer: str, attempts: Attempts, *, retain: timedelta) -> None:
        self._consumer = consumer
        self._attempts = attempts
        self._retain = retain

    def check(self, needed: timedelta) -> bool:
        """Say so if the inbox forgets too soon."""
        if self._retain >= needed:
            return True
        tell(
            events.InboxTooShort(self._consumer, retain_s=self._retain.total_seconds(), needed_s=needed.total_seconds())
        )
        return False

    async def run_once(self) -> int:
        """Delete what is old enough; how many were deleted."""
        deleted = await self._attempts.forget(self._retain)
        tell(events.InboxCleaned(self._consumer, deleted=deleted, retain_s=self._retain.total_seconds()))
        return deleted

    async def run(self, every: float) -> None:
        """Delete every so often. Not at once: what was open when the consumer went away comes first when it is back."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.run_once()
            except StoreOut as out:
                tell(events.ConsumerWaiting(self._consumer, reason=str(out), retry_ms=every * 1000))
