"""What a lane publishes through: the sink's publisher; or, where the destination can fence earlier owners
(`Publisher.for_lane`), one that is made for each epoch in which this relay owns the lane.

Closing it takes a moment at most: the lane must be released, for the next owner waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.brokers.base import LaneEpoch
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher
    from postroad.listeners import Listeners
    from postroad.stores.base import Lease

__all__ = ["EpochPublisher"]

CLOSE_SECONDS: Final = 1.0


class EpochPublisher:
    """The publisher of one lane."""

    def __init__(self, publisher: Publisher, lease: Lease, listeners: Listeners) -> None:
        """`publisher` is the sink's."""
        self.publisher = self._shared = publisher
        """What messages are published through now."""
        self._for_lane = getattr(publisher, "for_lane", None)
        self._where = lease.sink, lease.lane
        self._epoch: int | None = None
        self._listeners = listeners

    async def begin(self, epoch: int) -> None:
        """The lane was loaded in this epoch."""
        if self._for_lane is None or epoch == self._epoch:
            return
        await self.end()
        self.publisher, self._epoch = self._for_lane(LaneEpoch(*self._where, epoch)), epoch

    async def end(self) -> None:
        """Close what was made for the last epoch."""
        if self._epoch is None:
            return
        closing, self.publisher, self._epoch = asyncio.create_task(self.publisher.close()), self._shared, None
        await asyncio.wait((closing,), timeout=CLOSE_SECONDS)
        reason = None
        if not closing.done():
            reason = f"it did not end within {CLOSE_SECONDS:g} s"
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self._listeners.emit(events.LanePublisherNotClosed(*self._where, reason=reason))
        await cancel_and_wait(closing, seconds=0)
