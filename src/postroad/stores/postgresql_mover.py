"""Moves scheduled messages that are due into the log, past transactions that hold some of them up.

To learn whether an id is in the log already, an INSERT waits for every open transaction that has written the same id.
An application chooses its ids, so it can make a mover wait for as long as it likes: what it holds up is passed over,
and the messages of other roles are moved.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.stores.base import Moved, not_moved
from postroad.stores.postgresql_pool import in_transaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

__all__ = ["Mover"]

logger = logging.getLogger("postroad.stores.postgresql")

BUSY_SECONDS: Final = 0.1
"""How soon to look again when another relay moves what is due."""
BLOCKED_SECONDS: Final = 1.0
"""How soon to look again for messages that were passed over."""
WAIT_MS: Final = 2_000
"""How long all that is due is waited for: longer than it takes to name in the log what is waited for."""
WAIT_FOR_SOME_MS: Final = 20
AROUND_SECONDS: Final = 30.0
"""For so long after a wait in vain nothing is waited for that long again."""
WAITS_PER_ROLE: Final = 30
"""So many waits in vain for the messages of one role; the rest of them is left for the next time."""


class Mover:
    """What one store does for `move_scheduled`."""

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql
        self._around_until = float("-inf")

    async def move(self, connection: Any, limit: int) -> Moved:
        """Move what is due, at most `limit` messages; of each role, if some have to be passed over."""
        due_in = await connection.fetchval(self._sql["scheduled_due_in"])
        if due_in is None or due_in > 0:  # most of the time, and then one statement is all
            return Moved(0, due_in)
        if time.monotonic() >= self._around_until:
            try:
                async with in_transaction(connection):
                    if not await self._begin(connection, WAIT_MS):
                        return Moved(0, BUSY_SECONDS)
                    moved, due_in, taken = await self._move(connection, limit)
            except asyncpg.LockNotAvailableError:
                self._around_until = time.monotonic() + AROUND_SECONDS
            else:
                _warn(taken)
                return Moved(moved, due_in)
        async with in_transaction(connection):
            if not await self._begin(connection, WAIT_FOR_SOME_MS):
                return Moved(0, BUSY_SECONDS)
            return await self._move_around(connection, limit)

    async def _begin(self, connection: Any, wait_ms: int) -> bool:
        return bool(await connection.fetchval(self._sql["try_to_move"], f"{wait_ms}ms"))

    async def _move(
        self, connection: Any, limit: int, ids: list[UUID] | None = None
    ) -> tuple[int, float | None, Sequence[UUID] | None]:
        moved, due_in, taken = await connection.fetchrow(self._sql["move_scheduled"], limit, ids)
        return moved, due_in, taken

    async def _move_around(self, connection: Any, limit: int) -> Moved:
        """Role by role; what can't be moved is tried in halves, so that all the rest of it is moved."""
        moved, blocked, more = 0, False, False
        for (due,) in await connection.fetch(self._sql["due_by_role"], limit):
            more |= len(due) == limit
            parts, waits = [due], 0
            while parts and waits < WAITS_PER_ROLE:
                part = parts.pop()
                try:
                    async with in_transaction(connection):  # a savepoint
                        count, _, taken = await self._move(connection, len(part), part)
                except asyncpg.LockNotAvailableError:
                    blocked, waits = True, waits + 1
                    if (half := len(part) // 2) > 0:
                        parts += [part[half:], part[:half]]
                else:
                    moved += count
                    _warn(taken)
        if not blocked:
            self._around_until = float("-inf")
        return Moved(moved, 0 if moved and (more or not blocked) else BLOCKED_SECONDS)


def _warn(taken: Sequence[UUID] | None) -> None:
    for id in taken or ():
        logger.warning("%s", not_moved(id))
