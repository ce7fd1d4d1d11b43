"""Copies of dead messages in PostgreSQL; see `Copies` for the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.message import StoredMessage
from postroad.stores.copies import Copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from postroad.stores.copies import Postponed

__all__ = ["PostgreSQLCopies"]

_FIELDS = len(StoredMessage.__struct_fields__)


class PostgreSQLCopies:
    """The copies that wait in one schema."""

    def __init__(self, sql: Mapping[str, str], connection: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
        self._sql = sql
        self._connection = connection

    async def due(self, sink: str, limit: int) -> Sequence[Copy]:
        async with self._connection() as connection:
            rows = await connection.fetch(self._sql["due_copies"], sink, limit)
        return [Copy(StoredMessage(*row[:_FIELDS]), *row[_FIELDS:]) for row in rows]

    async def settle(self, sink: str, *, done: Sequence[UUID], postponed: Sequence[Postponed]) -> None:
        later = [(each.id, each.due_in, each.counted) for each in postponed]
        columns = [list(column) for column in zip(*later, strict=True)] or [[], [], []]
        async with self._connection() as connection:
            await connection.execute(self._sql["settle_copies"], sink, list(done), *columns)

    async def is_sink(self, sink: str) -> bool:
        async with self._connection() as connection:
            return bool(await connection.fetchval(self._sql["takes_copies"], sink))
