"""Sessions that end one by one, as when the broker gives some partitions to another consumer.

- Of a session that ends, nothing more is begun; what was not begun is dropped, and delivered elsewhere.
- What is being processed may end within the grace, and its acks count. Then it is cancelled.
- `released` is called in any case, once, and other sessions go on meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.base import Revoked
    from postroad.consumer.delivery import DeliveryProcessor
    from postroad.consumer.dispatch import Dispatcher
    from postroad.consumer.model import ConsumerOptions, OpenDelivery
    from postroad.listeners import Listeners

__all__ = ["Revocations"]

LAST_SECONDS: Final = 1.0
"""How long to wait, beyond the grace, for what was cancelled, and for the marks of attempts to be removed."""


class Revocations:
    """The revocations of one run."""

    def __init__(
        self, options: ConsumerOptions, dispatcher: Dispatcher, processor: DeliveryProcessor, listeners: Listeners
    ) -> None:
        self._options = options
        self._dispatcher = dispatcher
        self._processor = processor
        self._listeners = listeners
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, revoked: Revoked) -> None:
        """Drop what was not begun; wait for the rest in the background, and then release the sessions."""
        dropped, in_progress = self._dispatcher.revoke(revoked.sessions)
        self._listeners.emit(
            events.SessionsRevoked(
                self._options.consumer,
                sessions=len(revoked.sessions),
                dropped=len(dropped),
                in_progress=len(in_progress),
            )
        )
        task = asyncio.create_task(self._drain(revoked, dropped, in_progress))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def end(self) -> None:
        """Release at once all that is still to be released."""
        await cancel_and_wait(*self._under_way, seconds=LAST_SECONDS)

    async def _drain(
        self, revoked: Revoked, dropped: Sequence[OpenDelivery], in_progress: Sequence[OpenDelivery]
    ) -> None:
        tasks = [task for task, items in self._dispatcher.tasks.items() if not set(items).isdisjoint(in_progress)]
        try:
            late: set[asyncio.Task[None]] = set()
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=self._options.grace)
            if late:
                number, grace = len(late), self._options.grace
                self._listeners.emit(
                    events.RevokedHandlersCancelled(self._options.consumer, handlers=number, grace_s=grace)
                )
                await cancel_and_wait(*late, seconds=LAST_SECONDS)
            unmarking = asyncio.create_task(self._processor.unmark([*dropped, *in_progress]))
            await asyncio.wait((unmarking,), timeout=LAST_SECONDS)
            await cancel_and_wait(unmarking, seconds=0)
        finally:
            revoked.released()
