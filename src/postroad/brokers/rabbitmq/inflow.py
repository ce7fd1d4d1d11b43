"""What has arrived on the channels of a connection and was not received yet, and how much memory open deliveries take.

A subscriber waits here for what comes on any of its channels. Once deliveries with `most_bytes` in all are open,
nothing more is read from the connection until some are acked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from postroad.brokers.rabbitmq.channel import LinkLost, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.brokers.base import Delivery

__all__ = ["Inflow"]

ALIVE_SECONDS: Final = 1.0  # how often aiormq gets a heartbeat while nothing is read


class Inflow:
    """The deliveries of one connection. `new_future` makes futures that fail when the connection ends."""

    def __init__(self, most_bytes: int, new_future: Callable[[], asyncio.Future[None]]) -> None:
        self._most_bytes = most_bytes
        self._new_future = new_future
        self.arrived: list[Delivery] = []
        """What was not received yet, in the order of its arrival."""
        self.held_bytes = 0
        """The bytes of all deliveries that were neither acked nor given back."""
        self.ended: LinkLost | None = None
        """The broker's reason for ending a channel, with its code."""
        self._room = asyncio.Event()
        self._room.set()
        self._always_room = False
        self._waiting: asyncio.Future[None] | None = None

    def add(self, deliveries: Sequence[Delivery], size: int) -> None:
        """These have arrived, and hold so many bytes."""
        self.arrived += deliveries
        self.held_bytes += size
        if self.held_bytes >= self._most_bytes and not self._always_room:
            self._room.clear()
        self.wake()

    def release(self, size: int) -> None:
        """So many bytes are held no more."""
        self.held_bytes -= size
        if self.held_bytes < self._most_bytes:
            self._room.set()

    def keep_reading(self) -> None:
        """Read on from now on, however much is held, so that the broker's answers are not missed."""
        self._always_room = True
        self._room.set()

    def drop(self, session: object) -> None:
        """Forget what has arrived on this channel and was not received."""
        self.arrived = [each for each in self.arrived if each.session is not session]

    def take(self) -> Sequence[Delivery]:
        """All that has arrived."""
        arrived, self.arrived = self.arrived, []
        return arrived

    async def change(self) -> None:
        """Wait until something has arrived, or `wake` was called. Raises LinkLost."""
        if self.ended is not None:
            raise self.ended
        # aiormq fails this future when the connection closes, also when that has closed already.
        self._waiting = self._new_future()
        try:
            with translated():
                await self._waiting
        except LinkLost as lost:
            raise self.reason(lost) from lost

    def reason(self, lost: LinkLost) -> LinkLost:
        """The broker's own reason, if it gave one, or this."""
        return self.ended or lost

    def wake(self) -> None:
        """End the wait for a change."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def end(self, lost: LinkLost) -> None:
        """A channel has ended, and with it the whole connection is of no use."""
        self.ended = self.ended or lost
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(lost)

    async def room(self) -> bool:
        """Whether there is room for more deliveries; waits up to a second for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_SECONDS):
                await self._room.wait()
        return self._room.is_set()
