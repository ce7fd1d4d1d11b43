"""Moves scheduled messages that are due into the log, skipping those that another transaction blocks.

To learn whether an id is in the log already, an INSERT waits for every open transaction that has written the same id.
An application chooses its ids, so it can make a mover wait for any length of time. Its blocked messages are skipped,
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
"""How soon to look again for messages that were skipped."""
WAIT_MS: Final = 2_000
"""How long the statement that moves all due messages waits for a lock: long enough for the blocker to be reported."""
WAIT_FOR_SOME_MS: Final = 20
"""The same for a statement that moves the messages of one role, or some of them."""
AROUND_SECONDS: Final = 30.0
"""After a lock timeout, messages are moved role by role, with the short wait, for this long."""
WAITS_PER_ROLE: Final = 30
"""After this many lock timeouts, the rest of a role's messages is left for the next call."""


class Mover:
    """Implements `Store.move_scheduled` for one store."""

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql
        self._around_until = float("-inf")

    async def move(self, connection: Any, limit: int) -> Moved:
        """Move at most `limit` due messages; if some are blocked, at most `limit` of each role."""
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
        """Move role by role; a part that is blocked is tried in halves, so that the rest of it is moved."""
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
