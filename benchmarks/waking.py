"""What a process does whose waking is measured: on each word it adds one message, and says how long it took to arrive.

Only the standard library is used here: peers run in an environment without postroad. The one who adds has a connection
of its own in the same process, for all contestants alike, so that one clock tells both times.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Arrival:
    """The moment at which the publisher or handler was called."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._at = 0.0

    def now(self) -> None:
        """It is being called."""
        self._at = time.perf_counter()
        self._called.set()

    async def each(self, add: Callable[[], Awaitable[object]]) -> None:
        """For each word: add and commit, and say how many milliseconds later it arrived."""
        print(json.dumps({"ready": True}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            self._called.clear()
            await add()
            committed = time.perf_counter()
            await self._called.wait()
            print(json.dumps({"milliseconds": max(0.0, (self._at - committed) * 1000)}), flush=True)
