"""A bell wakes a task that waits. It passes on what is heard, but not without limit.

Any role of a PostgreSQL database can notify on our channels, as often as it likes, and each time a lane looks in vain.
So a bell passes some of what is heard in vain on at once, and after that so much per second. Nothing is dropped: what
is heard in between is passed on with the next one. What led to work does not count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from postroad.relay.clock import Clock

__all__ = ["Bell"]

WAKES_AT_ONCE: Final = 10
WAKES_PER_SECOND: Final = 25


class Bell:
    """For one task."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._signal = asyncio.Event()
        self._heard = False
        self._paid_until = float("-inf")
        """Each wake in vain costs a part of a second, and this is when all of them are paid for."""

    def ring(self) -> None:
        """Wake, now."""
        self._signal.set()

    def hear(self) -> None:
        """Wake, unless there were too many in vain: then as soon as may be."""
        self._heard = True
        if self._quiet() <= 0:
            self._signal.set()

    def was_worth_it(self) -> None:
        """There was something to do."""
        self._paid_until = float("-inf")

    async def wait(self, seconds: float) -> None:
        """Wait until woken, or for so long. What is heard from now on counts for the next time."""
        quiet = self._quiet()
        if self._heard and quiet <= 0:
            self._signal.set()  # it was heard while there were too many, and that is over
        if 0 < quiet < seconds:
            await self._clock.wait(self._signal, quiet)
            seconds -= quiet
            if self._heard:
                self._signal.set()
        await self._clock.wait(self._signal, seconds)
        if self._heard:
            self._paid_until = max(self._paid_until, self._clock.now()) + 1 / WAKES_PER_SECOND
        self._heard = False
        self._signal.clear()

    def _quiet(self) -> float:
        """Seconds for which nothing that is heard goes through."""
        return self._paid_until - WAKES_AT_ONCE / WAKES_PER_SECOND - self._clock.now()
