"""Leases in PostgreSQL, and the session by which others see at once that a relay died.

The session holds an advisory lock, which the server lets go when the process is gone, and nothing else: whether a lock
is held is read from pg_locks, so nobody who looks ever holds another's lock. It also listens: who gives a lane up, or
comes new, tells the others.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import StoreUnavailable
from postroad.stores.leases import NOWHERE, Beat, Peer, RelayStatus, SinkSnapshot, Suspect, elsewhere, relay_state
from postroad.stores.postgresql_pool import in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from uuid import UUID

    from postroad.stores.base import Lease, Start
    from postroad.stores.leases import LivenessLock, RelayIdentity

__all__ = ["PostgreSQLLeases", "beating", "looking", "snapshot"]

_NO_TICK: Final = ((), None, None, None)
"""Nothing about naps."""


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
        """`connection` lends one of the store's; `connect` makes one that stays, and `has_sessions` says whether it
        can; `translated` names the driver's errors as the contract does; `taken` reads a row of `lanes`;
        `locked` is called when free lanes could not be taken, because their rows are locked.
        """
        self._schema = schema
        self._sql = sql
        self._connection = connection
        self._connect = connect
        self._has_sessions = has_sessions
        self._translated = translated
        self._taken = taken
        self._locked = locked

    async def create(self, sink: str, destination: str, *, lanes: int, start: Start) -> None:
        async with self._connection() as connection, in_transaction(connection):
            kept = await connection.fetchval(self._sql["create_sink"], sink, destination, destination != NOWHERE)
            if kept != destination:
                raise elsewhere(sink, kept, destination)
            await connection.execute(self._sql["create_lanes"], sink, lanes, start)

    async def beat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        async with self._connection() as connection:
            me = beating(Beat(identity, seconds, liveness_lock))
            row = await connection.fetchrow(self._sql["beat"], *me, *_NO_TICK)
        return snapshot(row, identity, has_beaten=True)

    async def look(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        async with self._connection() as connection:
            row = await connection.fetchrow(self._sql["beat"], *looking(identity, liveness_lock), *_NO_TICK)
        return snapshot(row, identity, has_beaten=False)

    async def bury(
        self, identity: RelayIdentity, suspects: Collection[Suspect], liveness_lock: LivenessLock | None = None
    ) -> Collection[UUID]:
        owners, beats = [each.owner for each in suspects], [each.beats for each in suspects]
        async with self._connection() as connection, in_transaction(connection):
            rows = await connection.fetch(self._sql["bury"], identity.sink, owners, beats)
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
        again: Collection[int] = (),
        but: Collection[int] = (),
    ) -> Sequence[Lease]:
        async with self._connection() as connection:
            values = (identity.sink, identity.owner, at_most, seconds, list(again), list(but), identity.destination)
            rows = await connection.fetch(self._sql["take_lanes"], *values)
            left = len(rows) < at_most and await connection.fetchval(self._sql["free_left"], identity.sink, list(but))
        if left:
            self._locked()
        return sorted(map(self._taken, rows), key=lambda lease: lease.lane)

    async def give_up(self, lease: Lease) -> None:
        async with self._connection() as connection:
            await connection.execute(self._sql["give_up"], lease.sink, lease.lane, lease.owner, lease.epoch)

    async def leave(self, identity: RelayIdentity) -> None:
        async with self._connection() as connection, in_transaction(connection):
            await connection.execute(self._sql["free_lanes"], [identity.owner])
            await connection.execute(self._sql["leave"], identity.owner, identity.sink)

    async def attend(
        self, identity: RelayIdentity, lock: int | None, stirred: Callable[[], None]
    ) -> LivenessLock | None:
        if not self._has_sessions():
            return None
        key = int.from_bytes(identity.owner.bytes[8:], signed=True) if lock is None else lock
        async with self._connect() as connection:
            # A pooler makes up the number by which a client could cancel; only the server itself knows its process.
            process = await connection.fetchval(self._sql["server_process"])
            if process != connection.get_server_pid():
                connection.terminate()
                return None
            await connection.execute(self._sql["keep_alive"])
            session = PostgreSQLLivenessLock(
                connection,
                self._sql,
                self._translated,
                owner=identity.owner,
                key=key,
                process=process,
                stirred=stirred,
            )
            await connection.add_listener(f"{self._schema}_lanes", session.heard)
            await session.lock()
            await connection.execute(self._sql["join_in"])
        return session

    async def relays(self) -> Sequence[RelayStatus]:
        async with self._connection() as connection:
            rows = await connection.fetch(self._sql["relays"])
        return [_status(row) for row in rows]

    async def unserved(self) -> Mapping[str, float]:
        async with self._connection() as connection:
            rows = await connection.fetch(self._sql["sink_reports"])
        return {sink: (now - served_at) / 1e6 for sink, _, served_at, _, now in rows}


class PostgreSQLLivenessLock:
    """See `Presence` for the contract."""

    def __init__(
        self,
        connection: Any,
        sql: Mapping[str, str],
        translated: Callable[[], AbstractContextManager[None]],
        *,
        owner: UUID,
        key: int,
        process: int,
        stirred: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._translated = translated
        self._owner = owner
        self._key = key
        self._stirred = stirred
        self._closed = False
        self.process = process
        """The server's process of this session."""
        self.holds = False
        self.lost = False
        connection.add_termination_listener(self._ended)

    async def lock(self) -> bool:
        if not self.holds and not self.lost:
            with self._translated():
                held = await self._connection.fetchval(self._sql["try_lock"], self._key)
                if held and not await self._connection.fetchval(self._sql["note_lock"], self._owner, self._key):
                    raise StoreUnavailable("PostgreSQL: `direct` leads to another database than this relay's")
                self.holds = held
        return self.holds

    async def holder(self) -> str | None:
        with self._translated():
            holder: str | None = await self._connection.fetchval(self._sql["lock_holder"], self._key)
        return holder

    def heard(self, *_: object) -> None:
        """Somebody has given up a lane, or has come."""
        self._stirred()

    def close(self) -> None:
        self._closed, self.holds = True, False
        self._connection.terminate()

    def _ended(self, _: object) -> None:
        self.holds = False
        if not self._closed:
            self.lost = True
            self._stirred()


def beating(beat: Beat) -> tuple[Any, ...]:
    """What `beat` of leases.sql takes for one who says that it lives, without what is about naps."""
    return (*_me(beat.identity), beat.seconds, True, _process(beat.liveness_lock))


def looking(identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> tuple[Any, ...]:
    """The same, for one who only looks."""
    return (*_me(identity), 0.0, False, _process(liveness_lock))


def snapshot(row: Any, identity: RelayIdentity, *, has_beaten: bool) -> SinkSnapshot:
    """What `beat` answers, without what is about naps."""
    columns = (row[name] for name in ("peers", "peers_lanes", "peers_beats", "peers_locks"))
    peers = [Peer(*peer) for peer in zip(*columns, strict=True)]
    if has_beaten and identity.owner not in row["peers"]:
        # Its first heartbeat: the statement can't see the row that it makes.
        peers.append(Peer(identity.owner, len(row["mine"]), beats=1))
    return SinkSnapshot(
        lanes=row["lanes"],
        destination=row["destination"],
        mine=dict(zip(row["mine"], row["epochs"], strict=True)),
        renewed=row["renewed"],
        free=row["free"],
        peers=peers,
        suspects=[Suspect(*each) for each in zip(row["suspects"], row["suspects_beats"], strict=True)],
        present=row["present"],
    )


def _me(identity: RelayIdentity) -> tuple[Any, ...]:
    return (identity.owner, identity.sink, identity.host, identity.pid, identity.version)


def _process(liveness_lock: LivenessLock | None) -> int | None:
    return liveness_lock.process if isinstance(liveness_lock, PostgreSQLLivenessLock) and liveness_lock.holds else None


def _status(row: Any) -> RelayStatus:
    owner, sink, host, pid, version, lanes, started_at, heartbeat_seconds, alive, lock = row
    started, state = datetime.fromtimestamp(started_at / 1e6, UTC), relay_state(alive=alive, lanes=lanes)
    return RelayStatus(owner, sink, host, pid, version, lanes, started, heartbeat_seconds, state, lock)
