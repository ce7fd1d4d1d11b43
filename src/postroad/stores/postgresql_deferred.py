"""Deferred messages in PostgreSQL: what a lane's transaction does after the fence has held.

Every step is one statement, however many messages it is about. "Now" is when the transaction began, in all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.message import StoredMessage, new_id
from postroad.stores.base import FOLLOWERS, PROBES_PER_SECOND, Claimed, key_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from postroad.stores.base import Deferred, Held, Lease, Tally

__all__ = ["PostgreSQLDeferred", "tally_values"]

_NONE_CHANGED: Final = "UPDATE 0"
_MESSAGE = slice(0, len(StoredMessage.__struct_fields__))


class PostgreSQLDeferred:
    """The deferred messages of one lane, within one transaction."""

    def __init__(self, connection: Any, sql: Mapping[str, str], lease: Lease) -> None:
        self._connection = connection
        self._sql = sql
        self._sink = lease.sink
        self._lane = (lease.sink, lease.lane)
        self._slots = (lease.first_slot, lease.last_slot)
        self._epoch = lease.epoch
        self.locked = False
        """An application that is canceling has locked a row that would be due: it was left out."""

    # -- loading -----------------------------------------------------------------------------------------------------

    async def make_ready(self, *, by_source: bool) -> tuple[dict[str, int], dict[str, int]]:
        """Make due what was being sent, and what waits for nothing else; the blocked keys, and the blocked routes."""
        await self._connection.execute(self._sql["notice"], *self._lane)
        keys, positions, ready = await self._connection.fetchrow(self._sql["heads"], *self._lane)
        scoped = _NONE_CHANGED
        if any((key_of(key) != key) is not by_source for key in keys):
            scoped = await self._connection.execute(self._sql["scope_keys"], *self._lane, by_source)
        put_back = await self._connection.execute(self._sql["put_back"], *self._lane)
        if {scoped, put_back} != {_NONE_CHANGED}:
            keys, positions, ready = await self._connection.fetchrow(self._sql["heads"], *self._lane)
        blocked_keys: dict[str, int] = dict(zip(keys, positions, strict=True))
        routes = dict(await self._connection.fetch(self._sql["routes"], *self._lane))
        held = {key for (key,) in await self._connection.fetch(self._sql["holds"], self._sink, *self._slots)}
        if held:
            ready = set(ready).difference(blocked_keys[key] for key in blocked_keys if held & {key, key_of(key)})
        await self._make_due(ready)
        await self._make_due(sorted(routes.values()), routed=True, per_second=PROBES_PER_SECOND)
        blocked_keys.update(dict.fromkeys(held, 0))
        return blocked_keys, routes

    async def skipped(self) -> frozenset[int]:
        """Messages that the lane has not read yet, and that an operator has skipped or poisoned."""
        return frozenset(position for (position,) in await self._connection.fetch(self._sql["ahead"], *self._lane))

    async def due_in(self, *, later_than_now: bool = False) -> float | None:
        """Seconds until a message is due; 0 when one is due already, unless those are left out (`later_than_now`)."""
        seconds = await self._connection.fetchval(self._sql["due_in"], *self._lane, not later_than_now)
        return None if seconds is None else max(0.0, seconds)

    async def _make_due(
        self, positions: Iterable[int], *, routed: bool = False, per_second: float = float("inf")
    ) -> None:
        if positions := list(positions):
            after = [float(number // per_second) for number in range(len(positions))]
            values = (self._sink, positions, routed, after)
            locked = await self._connection.fetchval(self._sql["make_due"], *values)
            self.locked = self.locked or locked

    # -- recording ---------------------------------------------------------------------------------------------------

    async def defer(self, deferred: Sequence[Deferred]) -> None:
        """Write the rows of deferred messages, the attempts that failed, and copies of the dead."""
        if not deferred:
            return
        rows = [
            (each.position, each.key, each.state.value, each.attempts, each.due_in, each.route, each.error_kept,
             each.blocks, each.unsure, each.counted)
            for each in deferred
        ]  # fmt: skip
        await self._connection.execute(self._sql["defer"], *self._lane, *_columns(rows))
        failed = [(each.position, each.attempts, each.error_kept or "") for each in deferred if each.counted]
        if failed:
            await self._connection.execute(self._sql["note_attempts"], self._sink, *_columns(failed))
        copies = [
            (each.copy_to, each.position, new_id(), each.attempts, each.error_kept or "")
            for each in deferred
            if each.copy_to
        ]
        if copies:
            await self._connection.execute(self._sql["add_copies"], self._sink, *_columns(copies))

    async def hold(self, held: Sequence[Held], unsure_through: int) -> None:
        """Write the rows of messages that wait for an earlier one of their key: they may be very many."""
        if held:
            await self._connection.execute(self._sql["hold_behind"], *self._lane, *_columns(held), unsure_through)

    async def forget(self, published: Sequence[int]) -> None:
        """Delete the rows of published messages: without a row, a message that the cursor has passed is published."""
        if published:
            await self._connection.execute(self._sql["forget_published"], self._sink, list(published))

    async def note(self, tally: Tally | None) -> None:
        """Save how far the lane has come by now, and what it did since its last tally."""
        if tally is not None:
            await self._connection.execute(self._sql["note_progress"], *self._lane, *tally_values(tally))

    async def free(self, keys: Collection[str]) -> dict[str, int]:
        """Make due the first deferred message of each of these keys, if there is one; their positions."""
        if not keys:
            return {}
        blocked_keys = dict(await self._connection.fetch(self._sql["heads_of"], *self._lane, list(keys)))
        await self._make_due(blocked_keys.values(), routed=True)
        return blocked_keys

    # -- claiming ----------------------------------------------------------------------------------------------------

    async def claim(self, limit: int, payload_bytes: int, routes: Collection[str]) -> tuple[list[Claimed] | None, bool]:
        """Mark and return what may be published, and whether more was left; None when the log has not all of it."""
        rows = await self._connection.fetch(
            self._sql["claim"], *self._lane, self._epoch, limit, list(routes), FOLLOWERS, payload_bytes
        )
        self.locked = self.locked or rows[0]["locked"]
        rows = [row for row in rows if row["claimed"] is not None]
        if any(row["position"] is None for row in rows):
            return None, True
        claimed = [
            Claimed(
                StoredMessage(*row[_MESSAGE]),
                row["attempts"],
                row["route"],
                row["rewind"],
                row["new_id"],
                row["waited"],
            )
            for row in rows
        ]
        return claimed, bool(rows) and rows[0]["more"]

    async def forget_gone(self) -> int:
        """Delete the rows of messages that are no longer in the log; how many there were."""
        deleted: str = await self._connection.execute(self._sql["forget_gone"], *self._lane)
        return int(deleted.split()[1])


def tally_values(tally: Tally) -> tuple[object, ...]:
    """A tally as parameters."""
    return (tally.published, tally.refused, None if tally.latencies is None else list(tally.latencies))


def _columns(rows: Sequence[tuple[object, ...]]) -> Iterable[list[object]]:
    return (list(column) for column in zip(*rows, strict=True))
