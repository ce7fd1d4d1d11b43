"""Notices when statements of a store wait for longer than a second, and when they skip rows that are locked."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["LONG_SECONDS", "LockWaits"]

LONG_SECONDS: Final = 1.0


class LockWaits:
    """Costs a timer per use of a connection, which is nearly always cancelled before it is due."""

    def __init__(self) -> None:
        self._noticed = asyncio.Event()
        self._skipped: set[str] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice it if the block lasts longer than a second, and again each second."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LONG_SECONDS, lambda: is_long())  # noqa: PLW0108 - it is defined below

        def is_long() -> None:
            nonlocal timer
            self._noticed.set()
            timer = loop.call_later(LONG_SECONDS, is_long)

        try:
            yield
        finally:
            timer.cancel()

    def skipped(self, table: str) -> None:
        """A statement has skipped rows of this table, because they are locked."""
        self._skipped.add(table)
        self._noticed.set()

    async def wait(self) -> Collection[str]:
        """Return when something was noticed since the last call: the tables of which rows were skipped, if any."""
        await self._noticed.wait()
        self._noticed.clear()
        skipped, self._skipped = self._skipped, set()
        return skipped
