"""Several lanes of one relay in one statement; see `ManyLanes` for the contract."""

from __future__ import annotations

from itertools import starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from postroad.message import LONGEST_HEADERS, SLOTS, StoredMessage
from postroad.stores.cursor import Sweep, meet, xmax_and_xip
from postroad.stores.dialects.postgresql import LAST_XID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from postroad.stores.base import Lease, Settlement
    from postroad.stores.cursor import Cursor, PageLimit

__all__ = ["PostgreSQLManyLanes", "all_fit", "has_too_large", "messages_of", "reading", "row_limit_bytes"]

_HEADERS: Final = itemgetter(StoredMessage.__struct_fields__.index("headers_json"))
_AS_TUPLE: Final = itemgetter(slice(len(StoredMessage.__struct_fields__)))


def reading(query: str, lease: Lease) -> str:
    """The name of a query that reads the log, for the lane's sink: those with a filter have queries of their own."""
    return query if lease.filter is None else f"{query}_filtered"


def messages_of(rows: Sequence[Any]) -> list[StoredMessage]:
    """The rows as messages."""
    # Unpacking a record would iterate over it, which takes twice as long as a slice.
    return list(starmap(StoredMessage, map(_AS_TUPLE, rows)))


def row_limit_bytes(limit: PageLimit) -> int:
    """How many bytes a row may have in a page that is read with the cheap statement; see {bytes} in the dialect."""
    return min(limit.payload_bytes // limit.rows, LONGEST_HEADERS)


def all_fit(rows: Sequence[Any], row_bytes: int) -> bool:
    """Whether the cheap statement would have returned all of these with their contents."""
    return all(0 < len(row["payload"]) + len(row["headers"].encode()) <= row_bytes for row in rows)


def has_too_large(rows: Sequence[Any]) -> bool:
    """Whether rows came without their contents. By number, a column is found faster than by name."""
    return "" in map(_HEADERS, rows)


class PostgreSQLManyLanes:
    """Reads and settles several lanes of one relay at once.

    `connection` gives a connection, only if it is to the server from which the given lanes were loaded; `pooled` says
    whether a pooler is in between.
    """

    def __init__(
        self,
        sql: Mapping[str, str],
        connection: Callable[..., AbstractAsyncContextManager[Any]],
        pooled: Callable[[], bool],
    ) -> None:
        self._sql = sql
        self._connection = connection
        self._pooled = pooled
        self._large = False
        """In the last sweep, a message was larger than `row_limit_bytes`."""

    async def read(self, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit) -> Sweep:
        leases, cursors = [lease for lease, _ in lanes], [cursor for _, cursor in lanes]
        rows = await self._fetch(leases, cursors, limit)
        end = rows.pop()
        versions = [int(version) if version else None for version in end["key"].split(",")]
        xids = [row["xid"] for row in rows] if "xid" in end else None
        reach = None if end["content_type"] is None else int(end["content_type"])
        return Sweep(messages_of(rows), xids, end["topic"], end["position"], versions, int(end["type"]), reach)

    async def _fetch(self, leases: Sequence[Lease], cursors: Sequence[Cursor], limit: PageLimit) -> list[Any]:
        """The rows of a sweep. The cheap statement has no xids, and returns no rows that are larger than their share of
        the bytes; when there are any, the other one is used until a sweep has none. Each is a transaction of its own,
        as in PostgreSQLStore.
        """
        values, row_bytes = _values(leases, cursors), row_limit_bytes(limit)
        one, apart = (self._sql[reading(name, leases[0])] for name in ("read_many", "read_many_apart"))
        if not self._large and all(cursor == cursors[0] for cursor in cursors):
            async with self._connection(*leases) as connection:
                rows: list[Any] = await connection.fetch(one, *values(limit.rows, row_bytes))
            if not has_too_large(rows):
                return rows
        async with self._connection(*leases) as connection:
            rows = await connection.fetch(apart, *values(limit.rows, limit.payload_bytes))
        self._large = not all_fit(rows[:-1], row_bytes)
        return rows

    async def settle(self, asked: Sequence[Settlement]) -> Sequence[Lease | None]:
        leases = [each.lease for each in asked]
        columns = zip(*map(_settlement, asked), strict=True)
        async with self._connection(*leases) as connection:
            rows = await connection.fetch(
                self._sql["settle_many"], leases[0].sink, leases[0].owner, self._pooled(), *columns
            )
        settled = {row["lane"] for row in rows}
        return [each.lease.settled(each.cursor) if each.lease.lane in settled else None for each in asked]


def _values(leases: Sequence[Lease], cursors: Sequence[Cursor]) -> Callable[[int, int], tuple[object, ...]]:
    """The parameters of a sweep, but for its limits."""
    slots = sum(((1 << lease.last_slot + 1) - (1 << lease.first_slot)) for lease in leases)
    base, highest = meet(cursors), max([cursor.position for cursor in cursors])
    relay = (leases[0].sink, leases[0].owner)
    begin = (slots.to_bytes(SLOTS // 8, "little"), *relay, base.position, *xmax_and_xip(base.snapshot))
    horizon = LAST_XID if base.horizon is None else base.horizon
    end = ([lease.lane for lease in leases], [lease.epoch for lease in leases], horizon, highest)
    return lambda rows, size: (*begin, rows, size, *end)


def _settlement(asked: Settlement) -> tuple[object, ...]:
    lease, cursor, tally = asked.lease, asked.cursor, asked.tally
    fence = (lease.lane, lease.epoch, lease.version)
    moved = (cursor.position, cursor.snapshot, cursor.late_position, cursor.late_snapshot, cursor.horizon)
    if tally is None:
        return (*fence, *moved, None, None, None)
    latencies = None if tally.latencies is None else f"{{{','.join(map(str, tally.latencies))}}}"
    return (*fence, *moved, tally.published, tally.refused, latencies)
