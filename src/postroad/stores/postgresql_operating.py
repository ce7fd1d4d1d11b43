"""Operating a log in PostgreSQL: the store's own connection, checked as a relay's is."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from postroad.config import DEFAULT_SCHEMA
from postroad.stores.asking import Rows
from postroad.stores.changing import Changing
from postroad.stores.postgresql import PostgreSQLStore
from postroad.stores.postgresql_patience import holder_named, in_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from postroad.stores.asking import Ask
    from postroad.stores.leases import RelayStatus

__all__ = ["PostgreSQLOperating"]


class PostgreSQLOperating(PostgreSQLStore, Changing):
    """See `Operating` for the contract."""

    def __init__(self, url: str, *, schema: str = DEFAULT_SCHEMA) -> None:
        super().__init__(url, schema=schema, connections=1)

    @asynccontextmanager
    async def session(self, *, changes: bool = False) -> AsyncIterator[Ask]:
        """A connection, and with `changes` a transaction on it."""
        async with self._connection() as connection:

            async def ask(query: str, *values: Any) -> Sequence[Sequence[Any]]:
                rows: Sequence[Sequence[Any]] = await connection.fetch(self._sql[query], *_spread(values))
                return rows

            if not changes:
                yield ask
                return
            async with holder_named(connection, self._sql, "retention"), in_transaction(connection):
                yield ask

    async def relays(self) -> Sequence[RelayStatus]:
        return await self.leases.relays()


def _spread(values: Iterable[Any]) -> list[Any]:
    """The values as the driver takes them: rows become columns."""
    spread: list[Any] = []
    for value in values:
        if isinstance(value, Rows):
            spread += (list(column) for column in zip(*value.rows, strict=True))
        else:
            spread.append(value)
    return spread
