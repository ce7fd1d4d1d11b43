"""Whose turn it is to ask the broker. Calls go side by side, and one that is under suspicion goes alone.

All lanes share the broker's connection. When a message breaks it, every call under way fails, and only the one that
fails alone is known to be at fault.
"""

from __future__ import annotations

import asyncio

__all__ = ["SharedExclusiveLock"]


class SharedExclusiveLock:
    """For all lanes of a sink. Whoever has begun ends, whatever happens in between."""

    def __init__(self) -> None:
        self._calls = 0
        self._none_left = asyncio.Event()
        self._alone = asyncio.Lock()

    async def begin(self, *, alone: bool) -> None:
        """Wait for one's turn: alone, when all others have ended, and then none begins."""
        if alone:
            await self._alone.acquire()
            try:
                while self._calls:
                    self._none_left.clear()
                    await self._none_left.wait()
            except asyncio.CancelledError:
                self._alone.release()
                raise
        else:
            while self._alone.locked():
                async with self._alone:
                    pass
        self._calls += 1

    def end(self, *, alone: bool) -> None:
        """Let the others have theirs."""
        self._calls -= 1
        if not self._calls:
            self._none_left.set()
        if alone:
            self._alone.release()
