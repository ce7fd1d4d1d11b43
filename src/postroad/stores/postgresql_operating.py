"""Operating a log in PostgreSQL: the store's own connection, checked as a relay's is."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import StoreUnavailable
from postroad.stores.asking import Rows
from postroad.stores.changing import Changing
from postroad.stores.postgresql import PostgreSQLStore
from postroad.stores.postgresql_pool import holder_named, in_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from postroad.stores.asking import Ask
    from postroad.stores.base import Blocker
    from postroad.stores.leases import RelayStatus

__all__ = ["PostgreSQLOperating"]

LOCK_MS: Final = 2000


class PostgreSQLOperating(PostgreSQLStore, Changing):
    """See `Operating` for the contract."""

    def __init__(self, url: str, *, schema: str = DEFAULT_SCHEMA) -> None:
        super().__init__(url, schema=schema, connections=1)

    @asynccontextmanager
    async def session(self, *, changes: bool = False) -> AsyncIterator[Ask]:
        """A connection, and with `changes` a transaction on it. That one has lanes locked, so it waits for others'
        locks for a moment only.
        """
        async with self._connection() as connection:

            async def ask(query: str, *values: Any) -> Sequence[Sequence[Any]]:
                try:
                    rows: Sequence[Sequence[Any]] = await connection.fetch(self._sql[query], *_spread(values))
                except asyncpg.LockNotAvailableError as error:
                    if blockers := await self.blockers(longer_than=timedelta(0)):
                        raise _locked(blockers) from error
                    raise
                return rows

            if not changes:
                yield ask
                return
            async with holder_named(connection, self._sql, "retention"), in_transaction(connection):
                await connection.execute(f"set local lock_timeout = '{LOCK_MS}ms'")
                yield ask

    async def relays(self) -> Sequence[RelayStatus]:
        return await self.leases.relays()


def _locked(blockers: Sequence[Blocker]) -> StoreUnavailable:
    names = "; ".join(map(str, blockers))
    return StoreUnavailable(
        f"messages or lanes are locked by {names}. Nothing was changed: try again when that transaction has ended"
    )


def _spread(values: Iterable[Any]) -> list[Any]:
    """The values as the driver takes them: rows become columns."""
    spread: list[Any] = []
    for value in values:
        if isinstance(value, Rows):
            spread += (list(column) for column in zip(*value.rows, strict=True))
        else:
            spread.append(value)
    return spread
