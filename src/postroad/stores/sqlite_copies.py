"""Copies of dead messages in SQLite; see `Copies` for the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from postroad.message import StoredMessage
from postroad.stores.copies import Copy

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from postroad.stores.copies import Postponed

__all__ = ["SQLiteCopies"]

T = TypeVar("T")

_FIELDS = len(StoredMessage.__struct_fields__)


class SQLiteCopies:
    """The copies that wait in one file. `on_disk` begins a transaction whose commit survives a power cut."""

    def __init__(
        self,
        sql: Mapping[str, str],
        fetch: Callable[..., Awaitable[list[Any]]],
        run: Callable[[Callable[[], T]], Awaitable[T]],
        on_disk: Callable[[], AbstractContextManager[sqlite3.Connection]],
    ) -> None:
        self._sql = sql
        self._fetch = fetch
        self._run: Any = run
        self._on_disk = on_disk

    async def due(self, sink: str, limit: int) -> Sequence[Copy]:
        return [_copy(row) for row in await self._fetch("due_copies", sink, limit)]

    async def settle(self, sink: str, *, done: Sequence[UUID], postponed: Sequence[Postponed]) -> None:
        later = [(sink, str(each.id), int(each.due_in * 1e6), each.counted) for each in postponed]

        def settle() -> None:
            with self._on_disk() as connection:
                connection.executemany(self._sql["forget_copy"], [(sink, str(id)) for id in done])
                connection.executemany(self._sql["postpone_copy"], later)

        await self._run(settle)

    async def is_sink(self, sink: str) -> bool:
        ((found,),) = await self._fetch("takes_copies", sink)
        return bool(found)


def _copy(row: Any) -> Copy:
    position, message_id, *rest = row[:_FIELDS]
    id, *of_copy = row[_FIELDS:]
    return Copy(StoredMessage(position, UUID(message_id), *rest), UUID(id), *of_copy)
