"""Several relay processes of one sink, and how far their lanes have come."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from benchmarks.process import REPOSITORY, Broken

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

TIMEOUT_SECONDS = 60


class Team:
    """Relays that run until they are told to end. Leaving the `async with` block ends them, whatever they are doing."""

    def __init__(self, url: str, sink: str, to: str, relays: int) -> None:
        self._url = url
        self._sink = sink
        command = [sys.executable, "-m", "benchmarks.team_process", url, sink, to]
        self._processes = [subprocess.Popen(command, cwd=REPOSITORY) for _ in range(relays)]
        self._database: Any = None

    async def __aenter__(self) -> Self:
        """Return when every relay has its share."""
        self._database = await asyncpg.connect(self._url)
        await self._until("count(distinct owner) = $2 and bool_and(owner is not null)", len(self._processes))
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        await self._database.close()

    def end_one(self, number: signal.Signals) -> float:
        """Send a signal to one of them; when."""
        process = self._processes.pop()
        at = time.perf_counter()
        process.send_signal(number)
        return at

    async def until_passed(self, position: int) -> float:
        """Wait until every lane has come so far; when."""
        await self._until("min(position) >= $2", position)
        return time.perf_counter()

    async def fill(self, statements: Sequence[str]) -> tuple[float, int]:
        """Add messages in one transaction; when it was committed, and the last one's position."""
        async with self._database.transaction():
            for statement in statements:
                await self._database.execute(statement)
            last: int = await self._database.fetchval("select max(position) from postroad.outbox")
        return time.perf_counter(), last

    async def _until(self, condition: str, value: int) -> None:
        began = time.perf_counter()
        asked = f"select {condition} from postroad.lanes where sink = $1"  # the condition is ours
        while not await self._database.fetchval(asked, self._sink, value):
            if time.perf_counter() - began > TIMEOUT_SECONDS:
                raise Broken(f"the relays of sink {self._sink!r} did not come to: {condition}, {value}")
