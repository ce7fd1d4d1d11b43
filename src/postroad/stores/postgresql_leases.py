"""Leases in PostgreSQL, and the session by which other relays see at once that a relay died.

The session holds an advisory lock, which the server releases when the process is gone. Other relays read pg_locks to
see whether it is held, so they never hold it themselves, not even briefly. The session also listens: a relay that
releases a lane, or starts, notifies the others.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import StoreUnavailable
from postroad.sink_filter import EVERYTHING
from postroad.stores.leases import (
    NOWHERE,
    Heartbeat,
    Peer,
    RelayStatus,
    SinkSnapshot,
    Suspect,
    relay_state,
    wrong_destination,
    wrong_filter,
)
from postroad.stores.postgresql_pool import in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from uuid import UUID

    from postroad.sink_filter import SinkFilter
    from postroad.stores.base import Lease, Start
    from postroad.stores.leases import LivenessLock, RelayIdentity

__all__ = ["PostgreSQLLeases", "PostgreSQLLivenessLock", "heartbeat_values", "inspect_values", "snapshot"]

_NO_TICK: Final = ((), None, None, None)
"""The parameters about naps, for a statement that is no tick."""


class PostgreSQLLeases:
    """See `Leases` for the contract."""

    def __init__(
        self,
        schema: str,
        sql: Mapping[str, str],
        *,
        connection: Callable[[], AbstractAsyncContextManager[Any]],
        connect: Callable[[], AbstractAsyncContextManager[Any]],
        has_sessions: Callable[[], bool],
        translated: Callable[[], AbstractContextManager[None]],
        taken: Callable[[Any], Lease],
        locked: Callable[[], None],
    ) -> None:
        """`connection` lends a connection of the store's pool; `connect` makes one that stays open, and `has_sessions`
        says whether it can; `translated` turns the driver's errors into those of the contract; `taken` makes a lease of
        a row of `lanes`; `locked` is called when free lanes were skipped because their rows are locked.
        """
        self._schema = schema
        self._sql = sql
        self._connection = connection
        self._connect = connect
        self._has_sessions = has_sessions
        self._translated = translated
        self._taken = taken
        self._locked = locked

    async def create(
        self, sink: str, destination: str, *, lanes: int, start: Start, filter: SinkFilter = EVERYTHING
    ) -> None:
        async with self._connection() as connection, in_transaction(connection):
            # First of all, because it must be read before the transaction has an id: see create_lanes.
            position = await connection.fetchval(self._sql["log_end"]) if start == "now" else 0
            values = (sink, destination, destination != NOWHERE, *filter.columns)
            kept, kept_filter = await connection.fetchrow(self._sql["create_sink"], *values)
            if kept != destination:
                raise wrong_destination(sink, kept, destination)
            if kept_filter != filter.text:
                raise wrong_filter(sink, kept_filter, filter.text)
            await connection.execute(self._sql["create_lanes"], sink, lanes, position)

    async def heartbeat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        async with self._connection() as connection:
            values = heartbeat_values(Heartbeat(identity, seconds, liveness_lock))
            row = await connection.fetchrow(self._sql["heartbeat"], *values, *_NO_TICK)
        return snapshot(row, identity, registered=True)

    async def inspect(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        async with self._connection() as connection:
            values = inspect_values(identity, liveness_lock)
            row = await connection.fetchrow(self._sql["heartbeat"], *values, *_NO_TICK)
        return snapshot(row, identity, registered=False)

    async def evict(self, identity: RelayIdentity, suspects: Collection[Suspect]) -> Collection[UUID]:
        owners, heartbeats = [each.owner for each in suspects], [each.heartbeats for each in suspects]
        async with self._connection() as connection, in_transaction(connection):
            rows = await connection.fetch(self._sql["dead_suspects"], identity.sink, owners, heartbeats)
            if not rows:
                return []
            dead = [row["owner"] for row in rows]
            await connection.execute(self._sql["free_lanes"], dead)
            return [row["owner"] for row in await connection.fetch(self._sql["mark_dead"], dead)]

    async def take(
        self,
        identity: RelayIdentity,
        at_most: int,
        seconds: float,
        *,
        reclaim: Collection[int] = (),
        exclude: Collection[int] = (),
    ) -> Sequence[Lease]:
        async with self._connection() as connection:
            lanes = (list(reclaim), list(exclude))
            values = (identity.sink, identity.owner, at_most, seconds, *lanes, identity.destination, identity.filter)
            rows = await connection.fetch(self._sql["take_lanes"], *values)
            skipped = len(rows) < at_most and await connection.fetchval(
                self._sql["has_free_lanes"], identity.sink, list(exclude)
            )
        if skipped:
            self._locked()
        return sorted(map(self._taken, rows), key=lambda lease: lease.lane)

    async def release(self, lease: Lease) -> None:
        async with self._connection() as connection:
            await connection.execute(self._sql["release_lane"], lease.sink, lease.lane, lease.owner, lease.epoch)

    async def deregister(self, identity: RelayIdentity) -> None:
        async with self._connection() as connection, in_transaction(connection):
            await connection.execute(self._sql["free_lanes"], [identity.owner])
            await connection.execute(self._sql["deregister"], identity.owner, identity.sink)

    async def open_session(
        self, identity: RelayIdentity, lock: int | None, on_change: Callable[[], None]
    ) -> LivenessLock | None:
        if not self._has_sessions():
            return None
        key = int.from_bytes(identity.owner.bytes[8:], signed=True) if lock is None else lock
        async with self._connect() as connection:
            # A pooler invents the process id of the cancel key; the server's own answer tells them apart.
            process = await connection.fetchval(self._sql["server_process"])
            if process != connection.get_server_pid():
                connection.terminate()
                return None
            await connection.execute(self._sql["set_keepalives"])
            session = PostgreSQLLivenessLock(
                connection,
                self._sql,
                self._translated,
                owner=identity.owner,
                key=key,
                process=process,
                on_change=on_change,
            )
            await connection.add_listener(f"{self._schema}_lanes", session.on_notify)
            await session.acquire()
            await connection.execute(self._sql["announce_relay"])
        return session

    async def relays(self) -> Sequence[RelayStatus]:
        async with self._connection() as connection:
            rows = await connection.fetch(self._sql["relays"])
        return [_status(row) for row in rows]

    async def unserved(self) -> Mapping[str, float]:
        async with self._connection() as connection:
            rows = await connection.fetch(self._sql["sink_reports"])
        return {sink: (now - served_at) / 1e6 for sink, _, _, served_at, _, now in rows}


class PostgreSQLLivenessLock:
    """See `LivenessLock` for the contract."""

    def __init__(
        self,
        connection: Any,
        sql: Mapping[str, str],
        translated: Callable[[], AbstractContextManager[None]],
        *,
        owner: UUID,
        key: int,
        process: int,
        on_change: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._translated = translated
        self._owner = owner
        self._key = key
        self._on_change = on_change
        self._closed = False
        self.process = process
        """The server process of this session."""
        self.held = False
        self.lost = False
        connection.add_termination_listener(self._ended)

    async def acquire(self) -> bool:
        if not self.held and not self.lost:
            with self._translated():
                held = await self._connection.fetchval(self._sql["try_lock"], self._key)
                if held and not await self._connection.fetchval(self._sql["save_lock"], self._owner, self._key):
                    raise StoreUnavailable("PostgreSQL: `direct` leads to another database than this relay's")
                self.held = held
        return self.held

    async def holder(self) -> str | None:
        with self._translated():
            holder: str | None = await self._connection.fetchval(self._sql["lock_holder"], self._key)
        return holder

    def on_notify(self, *_: object) -> None:
        """Another relay has released a lane, or was started."""
        self._on_change()

    def close(self) -> None:
        self._closed, self.held = True, False
        self._connection.terminate()

    def _ended(self, _: object) -> None:
        self.held = False
        if not self._closed:
            self.lost = True
            self._on_change()


def heartbeat_values(heartbeat: Heartbeat) -> tuple[Any, ...]:
    """The parameters of the query `heartbeat`, without those about naps."""
    return (*_values(heartbeat.identity), heartbeat.seconds, True, _process(heartbeat.liveness_lock))


def inspect_values(identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> tuple[Any, ...]:
    """The parameters with which the query `heartbeat` writes nothing, without those about naps."""
    return (*_values(identity), 0.0, False, _process(liveness_lock))


def snapshot(row: Any, identity: RelayIdentity, *, registered: bool) -> SinkSnapshot:
    """The answer of the query `heartbeat`, without the columns about naps. `registered`: it was a heartbeat."""
    columns = (row[name] for name in ("peers", "peers_lanes", "peers_heartbeats", "peers_locks"))
    peers = [Peer(*peer) for peer in zip(*columns, strict=True)]
    if registered and identity.owner not in row["peers"]:
        # Its first heartbeat: the statement can't see the row that it inserts.
        peers.append(Peer(identity.owner, len(row["mine"]), heartbeats=1))
    return SinkSnapshot(
        lanes=row["lanes"],
        destination=row["destination"],
        filter=row["filter"],
        mine=dict(zip(row["mine"], row["epochs"], strict=True)),
        renewed=row["renewed"],
        free=row["free"],
        peers=peers,
        suspects=[Suspect(*each) for each in zip(row["suspects"], row["suspects_heartbeats"], strict=True)],
        lock_held=row["lock_held"],
    )


def _values(identity: RelayIdentity) -> tuple[Any, ...]:
    return (identity.owner, identity.sink, identity.host, identity.pid, identity.version)


def _process(liveness_lock: LivenessLock | None) -> int | None:
    return liveness_lock.process if isinstance(liveness_lock, PostgreSQLLivenessLock) and liveness_lock.held else None


def _status(row: Any) -> RelayStatus:
    owner, sink, host, pid, version, lanes, started_at, heartbeat_seconds, alive, lock = row
    started, state = datetime.fromtimestamp(started_at / 1e6, UTC), relay_state(alive=alive, lanes=lanes)
    return RelayStatus(owner, sink, host, pid, version, lanes, started, heartbeat_seconds, state, lock)
