"""A lock that any number of calls share, or that one call has alone.

All lanes share the broker's connection. When a message breaks it, every call in progress fails, so none of them is
known to be the cause. A call with a suspected message therefore takes the lock alone.
"""

from __future__ import annotations

import asyncio

__all__ = ["SharedExclusiveLock"]


class SharedExclusiveLock:
    """For all lanes of a sink. Every `begin` that returned must be followed by one `end`."""

    def __init__(self) -> None:
        self._calls = 0
        self._none_left = asyncio.Event()
        self._alone = asyncio.Lock()

    async def begin(self, *, alone: bool) -> None:
        """Wait until no call has the lock alone; with `alone`, until no call has it at all, and then none begins."""
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
        """Release the lock."""
        self._calls -= 1
        if not self._calls:
            self._none_left.set()
        if alone:
            self._alone.release()
