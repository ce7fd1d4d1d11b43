"""A clock for tests, whose hours pass as soon as somebody waits for them."""

from __future__ import annotations

import asyncio

__all__ = ["Flying"]


class Flying:
    """Nobody waits: time jumps to where it was to be waited for. That ends after `limit` seconds."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.time = 1_000_000.0
        self.limit = self.time + limit
        self.over = asyncio.Event()
        """Set when the limit was reached."""

    def now(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        if self.time >= self.limit:
            self.over.set()
            await event.wait()
            return
        self.time += seconds
        for _ in range(5):  # the others come to their turn
            await asyncio.sleep(0)
