"""PostgreSQL's replication slots; see `Replication` for the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.stores.cursor import Cursor, xmax_and_xip
from postroad.stores.dialects.postgresql import LAST_XID
from postroad.stores.replication import Identity, Look, ReplicationSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from postroad.stores.base import Lease

__all__ = ["PostgreSQLReplication"]


class PostgreSQLReplication:
    """`connection` gives a connection, only if it is to the server from which the given lane was loaded."""

    def __init__(self, sql: Mapping[str, str], connection: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
        self._sql = sql
        self._connection = connection

    async def look(self, lease: Lease, slot: str, after: Cursor) -> Look:
        horizon = LAST_XID if after.horizon is None else after.horizon
        begin = (lease.first_slot, lease.last_slot, after.position, *xmax_and_xip(after.snapshot), horizon)
        async with self._connection(lease) as connection:
            row = await connection.fetchrow(self._sql["look_at_slot"], *begin, *_owner(lease), slot)
        lease.check_read(after, row["version"], row["log_end"])
        return Look(
            cursor=Cursor(row["log_end"], row["snapshot"], horizon=row["horizon"]),
            lsn=row["lsn"],
            added=row["added"],
            version=row["version"],
            slot=_slot(row),
            kept=_kept(row),
            lost=row["lost"],
        )

    async def keep(self, lease: Lease, slot: str, identity: Identity) -> None:
        values = (identity.transactions, identity.timeline, identity.statistics)
        async with self._connection(lease) as connection:
            await connection.execute(self._sql["keep_slot"], *_owner(lease), slot, *values)

    async def lose(self, lease: Lease, slot: str, reason: str) -> None:
        async with self._connection(lease) as connection:
            await connection.execute(self._sql["lose_slot"], *_owner(lease), slot, reason)


def _owner(lease: Lease) -> tuple[object, ...]:
    return (lease.sink, lease.lane, lease.owner, lease.epoch)


def _slot(row: Any) -> ReplicationSlot | None:
    if row["active"] is None:
        return None
    return ReplicationSlot(
        identity=Identity(row["transactions"], row["timeline"], row["statistics"]),
        active=row["active"],
        confirmed=row["confirmed"],
        of_this_database=bool(row["of_this_database"]),
        wal_status=row["wal_status"],
    )


def _kept(row: Any) -> Identity | None:
    if row["kept_transactions"] is None:
        return None
    return Identity(row["kept_transactions"], row["kept_timeline"], row["kept_statistics"])
