"""Whatever keeps a statement waiting for longer than a moment is named in the log."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from postroad import events
from postroad.errors import PostroadError
from postroad.listeners import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from postroad.stores.base import Blocker

__all__ = ["Watch"]

MOMENT: Final = 1.0
AGAIN: Final = 30.0
"""While the same session keeps us waiting, it is named so often."""


class Watch:
    """Around the use of a connection. Costs a timer, which nearly always is cancelled before it is due."""

    def __init__(self, blockers: Callable[..., Coroutine[Any, Any, Sequence[Blocker]]]) -> None:
        self._blockers = blockers
        self._looking: asyncio.Task[None] | None = None
        self._told: dict[int, float] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For as long as the block lasts."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(MOMENT, lambda: look())  # noqa: PLW0108 - it is defined below

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(MOMENT, look)
            self._begin_looking(self._blockers())

        try:
            yield
        finally:
            timer.cancel()

    def passed_over(self, table: str) -> None:
        """Rows of a table were locked, and were not waited for: name those that have had some locked for a moment."""
        self._begin_looking(self._blockers(longer_than=timedelta(seconds=MOMENT), tables=(table,)))

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    def _begin_looking(self, blockers: Coroutine[Any, Any, Sequence[Blocker]]) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._name(blockers))
        else:
            blockers.close()

    async def _name(self, blockers: Coroutine[Any, Any, Sequence[Blocker]]) -> None:
        try:
            found = await blockers
        except PostroadError:
            return  # the statement that waits says itself what is wrong with the database
        now = asyncio.get_running_loop().time()
        for blocker in found:
            if now - self._told.get(blocker.pid, float("-inf")) >= AGAIN:
                self._told[blocker.pid] = now
                tell(events.StoreBlocked(by=str(blocker), pid=blocker.pid, role=blocker.role))
