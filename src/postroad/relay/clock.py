"""The relay's clock: what time it is, and waiting. Tests have one whose hours pass at once."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol

__all__ = ["Clock", "Monotonic"]


class Clock(Protocol):
    """Seconds that only grow, and waiting for them."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return when the event is set, or after so many seconds. No wait in the relay is uninterruptible."""


class Monotonic:
    """Real time."""

    def now(self) -> float:
        """Seconds since some moment before the process started."""
        return time.monotonic()

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait in real time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
