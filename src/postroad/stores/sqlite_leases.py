"""Leases in SQLite. There is one writer at a time, so what a write transaction has read does not change before it ends.

A file has no sessions that other relays could check: a dead relay keeps its lanes until its lease has expired.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroad.sink_filter import EVERYTHING
from postroad.stores.leases import (
    NOWHERE,
    Leases,
    Peer,
    RelayStatus,
    SinkSnapshot,
    relay_state,
    wrong_destination,
    wrong_filter,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from postroad.sink_filter import SinkFilter
    from postroad.stores.base import Lease, Start
    from postroad.stores.leases import LivenessLock, RelayIdentity

    Connection = sqlite3.Connection

__all__ = ["SQLiteLeases"]


class SQLiteLeases(Leases):
    """See `Leases` for the contract."""

    def __init__(
        self,
        sql: Mapping[str, str],
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        connection: Callable[[], Connection],
        writing: Callable[[], AbstractContextManager[Connection]],
        lease: Callable[[Any], Lease],
    ) -> None:
        """`run` calls a function in the connection's thread; `writing` is a transaction that ends on disk."""
        self._sql = sql
        self._run = run
        self._connection = connection
        self._writing = writing
        self._lease = lease

    async def create(
        self, sink: str, destination: str, *, lanes: int, start: Start, filter: SinkFilter = EVERYTHING
    ) -> None:
        def create(connection: Connection) -> None:
            values = (sink, destination, destination != NOWHERE, filter.text)
            ((kept, kept_filter),) = connection.execute(self._sql["create_sink"], values).fetchall()
            if kept != destination:
                raise wrong_destination(sink, kept, destination)
            if kept_filter != filter.text:
                raise wrong_filter(sink, kept_filter, filter.text)
            connection.execute(self._sql["create_lanes"], (sink, lanes, start))
            connection.execute(self._sql["undate_lanes"], (sink,))

        await self._write(create)

    async def heartbeat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        def heartbeat(connection: Connection) -> SinkSnapshot:
            now = self._now(connection)
            until = now + int(seconds * 1e6)
            owner, sink = str(identity.owner), identity.sink
            row = (owner, sink, identity.host, identity.pid, identity.version, until, now)
            connection.execute(self._sql["heartbeat"], row)
            connection.execute(self._sql["forget_dead_relays"], (now,))
            connection.execute(self._sql["renew_leases"], (owner, sink, until))
            return self._snapshot(connection, identity, now, renewed=True)

        snapshot: SinkSnapshot = await self._write(heartbeat)
        return snapshot

    async def inspect(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        def inspect() -> SinkSnapshot:
            connection = self._connection()
            return self._snapshot(connection, identity, self._now(connection), renewed=False)

        snapshot: SinkSnapshot = await self._run(inspect)
        return snapshot

    async def take(
        self,
        identity: RelayIdentity,
        at_most: int,
        seconds: float,
        *,
        reclaim: Collection[int] = (),
        exclude: Collection[int] = (),
    ) -> Sequence[Lease]:
        def take(connection: Connection) -> list[Lease]:
            now = self._now(connection)
            if self._kept(connection, identity.sink) != (identity.destination, identity.filter):
                return []
            every = connection.execute(self._sql["list_lanes"], (identity.sink, now)).fetchall()
            lanes = [row for row in every if row[0] not in exclude]
            own = [lane for lane, owner, _, _ in lanes if owner == str(identity.owner) and lane in reclaim]
            free = [lane for lane, owner, _, free in lanes if free and owner != str(identity.owner)]
            taken = []
            for lane in sorted((own + free)[:at_most]):
                taken += connection.execute(
                    self._sql["take_lanes"], (identity.sink, str(identity.owner), lane)
                ).fetchall()
                connection.execute(self._sql["save_lease"], (identity.sink, lane, now + int(seconds * 1e6)))
            return [self._lease(row) for row in taken]

        leases: list[Lease] = await self._write(take)
        return leases

    async def release(self, lease: Lease) -> None:
        values = (lease.sink, lease.lane, str(lease.owner), lease.epoch)
        await self._write(lambda connection: connection.execute(self._sql["release_lane"], values))

    async def deregister(self, identity: RelayIdentity) -> None:
        def deregister(connection: Connection) -> None:
            connection.execute(self._sql["free_lanes"], (str(identity.owner),))
            connection.execute(self._sql["deregister"], (str(identity.owner),))
            connection.execute(self._sql["save_served_at"], (identity.sink, self._now(connection)))

        await self._write(deregister)

    async def relays(self) -> Sequence[RelayStatus]:
        def ask() -> list[RelayStatus]:
            connection = self._connection()
            now = self._now(connection)
            rows = connection.execute(self._sql["relays"], (now,)).fetchall()
            return [self._status(connection, row, now) for row in rows]

        relays: list[RelayStatus] = await self._run(ask)
        return relays

    async def unserved(self) -> Mapping[str, float]:
        rows = await self._run(lambda: self._connection().execute(self._sql["sink_reports"]).fetchall())
        return {sink: (now - served_at) / 1e6 for sink, _, _, served_at, _, now in rows}

    def _status(self, connection: Connection, row: Any, now: int) -> RelayStatus:
        owner, sink, host, pid, version, started_at, heartbeat_seconds, alive = row
        every = connection.execute(self._sql["list_lanes"], (sink, now)).fetchall()
        lanes = [lane for lane, its_owner, _, _ in every if its_owner == owner]
        state = relay_state(alive=bool(alive), lanes=lanes)
        started = datetime.fromtimestamp(started_at / 1e6, UTC)
        return RelayStatus(UUID(owner), sink, host, pid, version, lanes, started, heartbeat_seconds, state, None)

    def _snapshot(self, connection: Connection, identity: RelayIdentity, now: int, *, renewed: bool) -> SinkSnapshot:
        lanes = connection.execute(self._sql["list_lanes"], (identity.sink, now)).fetchall()
        owners = [owner for _, owner, _, _ in lanes]
        peers = connection.execute(self._sql["peers"], (identity.sink, now)).fetchall()
        destination, filter = self._kept(connection, identity.sink)
        mine = {lane: epoch for lane, owner, epoch, _ in lanes if owner == str(identity.owner)}
        return SinkSnapshot(
            lanes=len(lanes),
            destination=destination,
            filter=filter,
            mine=mine,
            renewed=list(mine) if renewed else (),
            free=[lane for lane, owner, _, free in lanes if free and owner != str(identity.owner)],
            peers=[Peer(UUID(owner), owners.count(owner), heartbeats) for owner, heartbeats in peers],
            suspects=(),
        )

    def _kept(self, connection: Connection, sink: str) -> tuple[str | None, str | None]:
        """The sink's destination and filter."""
        return connection.execute(self._sql["destination"], (sink,)).fetchone() or (None, None)

    def _now(self, connection: Connection) -> int:
        now: int = connection.execute(self._sql["clock"]).fetchone()[0]
        return now

    async def _write(self, work: Callable[[Connection], Any]) -> Any:
        def write() -> Any:
            with self._writing() as connection:
                return work(connection)

        return await self._run(write)
