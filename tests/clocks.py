"""A clock for tests that jumps ahead as soon as every task waits for it."""

from __future__ import annotations

import asyncio

__all__ = ["FastClock"]


class FastClock:
    """Time jumps to the moment that is waited for first. After `limit` seconds it stands still."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.time = 1_000_000.0
        self.limit = self.time + limit
        self.over = asyncio.Event()
        """Set when the limit was reached."""
        self._moments: list[float] = []

    def now(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        moment = self.time + seconds
        self._moments.append(moment)
        try:
            while self.time < moment and not event.is_set():
                for _ in range(50):  # the others come to their turn
                    await asyncio.sleep(0)
                if event.is_set():
                    return
                if self.time >= self.limit:
                    self.over.set()
                    await event.wait()
                elif moment == min(self._moments):
                    self.time = max(self.time, moment)
        finally:
            self._moments.remove(moment)
