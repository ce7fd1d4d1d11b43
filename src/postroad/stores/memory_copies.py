"""Copies of dead messages in memory; see `Copies` for the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from postroad.message import new_id
from postroad.stores.copies import Copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from postroad.message import StoredMessage
    from postroad.stores.base import Deferred
    from postroad.stores.copies import Postponed

__all__ = ["MemoryCopies"]


class _Row(msgspec.Struct):
    """A row of `copies`, and when it may be published."""

    copy: Copy
    due_at: float


class MemoryCopies:
    """The copies that wait, by sink, the sink in which the message died, and position."""

    def __init__(self, clock: Callable[[], float], is_sink: Callable[[str], bool]) -> None:
        self._clock = clock
        self._is_sink = is_sink
        self._rows: dict[tuple[str, str, int], _Row] = {}

    @property
    def positions(self) -> set[int]:
        """The messages of which copies wait: they must stay in the log."""
        return {position for _, _, position in self._rows}

    def add(self, message: StoredMessage, dead_in: str, death: Deferred) -> None:
        """Write a copy; it replaces that of an earlier death."""
        now = self._clock()
        copy = Copy(message, new_id(), dead_in, death.attempts, death.error_kept or "", int(now * 1e6), 0)
        self._rows[death.copy_to or "", dead_in, message.position] = _Row(copy, now)

    def waits(self, sink: str) -> bool:
        """Whether a copy for this sink may be published now."""
        return bool(self._due(sink))

    async def due(self, sink: str, limit: int) -> Sequence[Copy]:
        return self._due(sink)[:limit]

    def _due(self, sink: str) -> list[Copy]:
        now = self._clock()
        rows = [row.copy for (its, _, _), row in self._rows.items() if its == sink and row.due_at <= now]
        return sorted(rows, key=lambda copy: (copy.died_at_us, copy.message.position))

    async def settle(self, sink: str, *, done: Sequence[UUID], postponed: Sequence[Postponed]) -> None:
        later = {each.id: each for each in postponed}
        for place, row in list(self._rows.items()):
            if place[0] != sink:
                continue
            if row.copy.id in done:
                del self._rows[place]
            elif (asked := later.get(row.copy.id)) is not None:
                row.due_at = self._clock() + asked.due_in
                row.copy = msgspec.structs.replace(row.copy, tries=row.copy.tries + asked.counted)

    async def is_sink(self, sink: str) -> bool:
        return self._is_sink(sink)
