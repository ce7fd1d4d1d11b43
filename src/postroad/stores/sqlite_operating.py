"""Operating a log in SQLite: a connection of its own, one session at a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from postroad.config import DEFAULT_SCHEMA
from postroad.stores.asking import Rows
from postroad.stores.changing import Changing
from postroad.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from postroad.stores.asking import Ask
    from postroad.stores.leases import RelayStatus

__all__ = ["SQLiteOperating"]


class SQLiteOperating(SQLiteStore, Changing):
    """See `Operating` for the contract."""

    removals = (*Changing.removals, "remove_leases")

    def __init__(self, path: Path | str, *, schema: str = DEFAULT_SCHEMA, busy_timeout: float = 30.0) -> None:
        super().__init__(path, schema=schema, busy_timeout=busy_timeout)
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def session(self, *, changes: bool = False) -> AsyncIterator[Ask]:
        """The connection; with `changes`, it has the write lock until the session is over."""

        async def ask(query: str, *values: Any) -> Sequence[Sequence[Any]]:
            return await self._fetch(query, *map(_plain, values))

        async with self._turn:
            if not changes:
                yield ask
                return
            await self._run(self._begin)
            try:
                yield ask
            except BaseException:
                await self._run(lambda: self._open().rollback())
                raise
            await self._run(lambda: self._open().commit())

    async def relays(self) -> Sequence[RelayStatus]:
        async with self._turn:
            return await self.leases.relays()

    def _begin(self) -> None:
        self._open().execute("pragma synchronous = full")
        self._open().execute("begin immediate")


def _plain(value: Any) -> Any:
    """A value as SQLite takes it."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Rows):
        return msgspec.json.encode(value.rows).decode()
    if isinstance(value, list):
        return msgspec.json.encode(value).decode()
    return value
