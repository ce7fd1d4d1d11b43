"""The dead letters of a consumer at RabbitMQ: received from their queue and not acked, until an operator decides.

While the box is open, other programs do not see the letters. When it closes, RabbitMQ puts those that are left back to
their places.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.base import Revoked
from postroad.dead_letters import DeadLetter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroad.brokers.base import Delivery
    from postroad.brokers.rabbitmq.subscriber import RabbitMQSubscriber

__all__ = ["QUEUE_HEADER", "RabbitMQDeadLetters"]

QUEUE_HEADER: Final = "postroad-queue"
"""The header of a dead letter with the queue that its message came from: one of several, if it has partitions."""
MOST_HELD: Final = 10_000
"""So many letters are looked at that are neither retried nor dropped."""
SILENT_SECONDS: Final = 5.0
"""The queue has nothing more for us when nothing comes for so long: other programs may receive from it, too."""


class RabbitMQDeadLetters:
    """See `DeadLetterBox` for the contract."""

    def __init__(self, consumer: RabbitMQSubscriber) -> None:
        self._source = consumer
        self._letters = consumer.of_dead_letters(MOST_HELD)

    @property
    def name(self) -> str:
        return self._letters.name

    async def open(self) -> None:
        await self._letters.open()

    async def letters(self) -> AsyncIterator[DeadLetter]:
        left = await self._letters.waiting()
        while left > 0:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    found = await self._letters.receive()
            except TimeoutError:
                return
            if isinstance(found, Revoked):  # of partitions, which this queue does not have
                continue
            left -= len(found)
            for each in found:
                yield self._letter(each)

    async def retry(self, letter: DeadLetter) -> None:
        queue = letter.headers.get(QUEUE_HEADER) or self._source.queue
        await self._letters.store(queue, letter.original, {})
        self._letters.ack([letter.original])

    async def drop(self, letter: DeadLetter) -> None:
        self._letters.ack([letter.original])

    async def close(self) -> None:
        await self._letters.close()

    def _letter(self, delivery: Delivery) -> DeadLetter:
        return DeadLetter(
            place=f"queue {self._source.dead_letter_queue}",
            body=delivery.body,
            content_type=delivery.content_type or "",
            headers={name: _text(value) for name, value in delivery.headers.items()},
            original=delivery,
        )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
