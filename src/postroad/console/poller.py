"""Looks at a database once a second while at least one page is open, and never otherwise; all viewers share a look.

What a look costs does not depend on the number of viewers. A page that is loaded gets the last look if it is not older
than the interval, and else a new one, which it shares with all who ask meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["Poller"]

T = TypeVar("T")
SECONDS: Final = 1.0


class Poller(Generic[T]):
    """Calls `look`, which must not raise, and hands its result to all viewers."""

    def __init__(self, look: Callable[[T | None], Awaitable[T]], *, seconds: float = SECONDS) -> None:
        self._look = look
        self._seconds = seconds
        self._last: T | None = None
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many watch."""
        return self._viewers

    async def latest(self) -> T:
        """The last look, or a new one if that is older than the interval."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if self._last is None or now - self._looked_at >= self._seconds:
                self._last = await self._look(self._last)
                self._looked_at = asyncio.get_running_loop().time()
            return self._last

    async def looks(self) -> AsyncGenerator[T, None]:
        """The last look, and each new one, until the poller is closed. One that comes too late is left out."""
        self._viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll(), name="postroad console poller")
        try:
            seen: T | None = None
            while (look := await self._next(seen)) is not None:
                seen = look
                yield look
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._stop()

    async def _next(self, seen: T | None) -> T | None:
        """The next look after this; None when the poller is closed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._last is not seen)
        return None if self._closed else self._last

    def forget(self) -> None:
        """Have the next page see the database as it is now, such as after a change."""
        self._looked_at = float("-inf")

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._stop()
        async with self._changed:
            self._changed.notify_all()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _poll(self) -> None:
        while True:
            await self.latest()
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(self._seconds)
