"""Named queries for `Admin` on PostgreSQL, on the connections of a store, which checks each of them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import StoreUnavailable
from postroad.sink_filter import SinkFilter
from postroad.stores.admin.session import Rows
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.postgresql import PostgreSQLStore
from postroad.stores.postgresql_pool import holder_named, in_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from postroad.stores.admin.session import Query
    from postroad.stores.base import Blocker, Cleaned
    from postroad.stores.leases import RelayStatus

__all__ = ["PostgreSQLAdminDatabase", "as_parameters"]

LOCK_TIMEOUT_MS: Final = 2000


class PostgreSQLAdminDatabase:
    """See `AdminDatabase` for the contract. `connections` calls run at the same time; further ones wait."""

    sink_tables = POSTGRESQL.sink_tables

    def __init__(self, url: str, *, schema: str = DEFAULT_SCHEMA, connections: int = 1) -> None:
        self._pool = Pool(url, schema=schema, connections=connections)

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Query]:
        async with self._pool.borrowed() as connection:
            yield self._query_on(connection)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Query]:
        async with self._pool.borrowed() as connection, in_transaction(connection, one_snapshot=True):
            yield self._query_on(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Query]:
        """Borrow a connection for one transaction.

        It holds locks on lanes, which blocks their relays, so it waits for other locks only LOCK_TIMEOUT_MS.
        """
        async with (
            self._pool.borrowed() as connection,
            holder_named(connection, self._pool.sql, "retention"),
            in_transaction(connection),
        ):
            await connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
            yield self._query_on(connection)

    def _query_on(self, connection: Any) -> Query:
        async def query(name: str, *values: Any) -> Sequence[Sequence[Any]]:
            try:
                rows: Sequence[Sequence[Any]] = await connection.fetch(self._pool.sql[name], *as_parameters(values))
            except asyncpg.LockNotAvailableError as error:
                if blockers := await self._pool.blockers(longer_than=timedelta(0)):
                    raise _locked(blockers) from error
                raise
            return rows

        return query

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        return await self._pool.delete_passed(after=after, older_than=older_than, batch=batch, key=key)

    async def blockers(self, *, longer_than: timedelta) -> Sequence[Blocker]:
        return await self._pool.blockers(longer_than=longer_than)

    async def relays(self) -> Sequence[RelayStatus]:
        return await self._pool.leases.relays()


class Pool(PostgreSQLStore):
    """The connections of a store, lent out."""

    @property
    def sql(self) -> Mapping[str, str]:
        return self._sql

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Any]:
        """Borrow a connection. Waits while all of them are in use."""
        async with self._connection() as connection:
            yield connection


def _locked(blockers: Sequence[Blocker]) -> StoreUnavailable:
    names = "; ".join(map(str, blockers))
    return StoreUnavailable(
        f"messages or lanes are locked by {names}. Nothing was changed: try again when that transaction has ended"
    )


def as_parameters(values: Iterable[Any]) -> list[Any]:
    """Convert values for the driver: `Rows` become one array per column, and so does a filter."""
    parameters: list[Any] = []
    for value in values:
        if isinstance(value, Rows):
            parameters += (list(column) for column in zip(*value.rows, strict=True))
        elif isinstance(value, SinkFilter):
            parameters += value.columns
        else:
            parameters.append(value)
    return parameters
