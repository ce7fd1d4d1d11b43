"""What a database provides to `Admin`: named queries, on several connections at once.

Everything else in this package is written once, on top of this contract.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from postroad.stores.base import Blocker, Cleaned
    from postroad.stores.leases import RelayStatus

__all__ = ["AdminDatabase", "Query", "Rows", "from_microseconds", "to_microseconds"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Rows(NamedTuple):
    """Several rows, at least one, as a parameter: PostgreSQL gets an array per column, SQLite one JSON text."""

    rows: Sequence[tuple[Any, ...]]


class Query(Protocol):
    """Runs a named query of `sql/*/admin.sql` on one connection and returns its rows.

    Times are microseconds since 1970, both as parameters and in results.
    """

    async def __call__(self, name: str, *values: Any) -> Sequence[Sequence[Any]]: ...


class AdminDatabase(Protocol):
    """A database that `Admin` works with. Calls may run concurrently; each gets a connection to itself."""

    @property
    def sink_tables(self) -> Sequence[str]:
        """The tables with rows of sinks. The queries `remove_<table>` together delete a sink."""
        ...

    async def open(self) -> None:
        """Connect and check the schema's version."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    def read(self) -> AbstractAsyncContextManager[Query]:
        """Borrow a connection for queries that change nothing. Waits while all connections are in use."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[Query]:
        """As `read`, and all queries of the block see the database as it was at one moment."""
        ...

    def write(self) -> AbstractAsyncContextManager[Query]:
        """Borrow a connection and run the block as one transaction, durable when the block ends.

        If the block raises, the transaction is rolled back.
        """
        ...

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        """Run one batch of retention. See `Store.delete_passed`."""
        ...

    async def blockers(self, *, longer_than: timedelta) -> Sequence[Blocker]:
        """List the sessions that have held locks which relays need for longer than this. See `Store.blockers`."""
        ...

    async def relays(self) -> Sequence[RelayStatus]:
        """List the relays of all sinks. See `Leases.relays`."""
        ...


def from_microseconds(microseconds: int) -> datetime:
    """Convert a time that a query returned."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(time: datetime) -> int:
    """Convert a time for a query. A time without a zone is taken as local time."""
    return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
