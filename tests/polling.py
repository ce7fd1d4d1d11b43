"""Waiting for what happens elsewhere: in another process, on a server, or in a task that gives no signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 120


async def until(reached: Callable[[], bool]) -> None:
    """Wait until this is true."""
    async with asyncio.timeout(SECONDS):
        while not reached():  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.01)
