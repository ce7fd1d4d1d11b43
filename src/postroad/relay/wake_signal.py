"""A signal that wakes a waiting task, with a limit on wake-ups that find no work.

Any role of a PostgreSQL database can NOTIFY on our channels any number of times, and each time a lane reads the log
for nothing. So a signal lets some wake-ups without work pass at once, and after that so many per second. No
notification is dropped: those in between are passed on together. Wake-ups that found work do not count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from postroad.relay.clock import Clock

__all__ = ["WakeSignal"]

WAKES_AT_ONCE: Final = 10
WAKES_PER_SECOND: Final = 25


class WakeSignal:
    """Wakes one task."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._signal = asyncio.Event()
        self._notified = False
        self._paid_until = float("-inf")
        """Each wake-up without work costs a fraction of a second; this is when all of them are paid for."""

    def wake(self) -> None:
        """Wake the task now."""
        self._signal.set()

    def on_notify(self) -> None:
        """Wake the task now, or if too many wake-ups found no work, as soon as the limit allows."""
        self._notified = True
        if self._blocked_for() <= 0:
            self._signal.set()

    def found_work(self) -> None:
        """The task has found work: earlier wake-ups do not count against the limit."""
        self._paid_until = float("-inf")

    async def wait(self, seconds: float) -> None:
        """Wait until woken, or for so long. A notification that comes after this returns counts for the next call."""
        blocked = self._blocked_for()
        if self._notified and blocked <= 0:
            self._signal.set()  # it came while the limit was reached, and is not any more
        if 0 < blocked < seconds:
            await self._clock.wait(self._signal, blocked)
            seconds -= blocked
            if self._notified:
                self._signal.set()
        await self._clock.wait(self._signal, seconds)
        if self._notified:
            self._paid_until = max(self._paid_until, self._clock.now()) + 1 / WAKES_PER_SECOND
        self._notified = False
        self._signal.clear()

    def _blocked_for(self) -> float:
        """Seconds for which no notification wakes the task."""
        return self._paid_until - WAKES_AT_ONCE / WAKES_PER_SECOND - self._clock.now()
