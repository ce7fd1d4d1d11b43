"""How PostgreSQL wakes a relay: naps in a table, a trigger that notifies those who nap, a connection that listens.

LISTEN belongs to a session, so it has a connection of its own, which does nothing else. A pooler that lends a session
to one transaction after the other would leave the LISTEN with whoever comes next; there it takes a direct URL.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from postroad.message import SLOTS
from postroad.stores.base import Tick, Writer
from postroad.stores.leases import RelayIdentity
from postroad.stores.postgresql_leases import beating, looking, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from postroad.stores.base import Lease, Listener
    from postroad.stores.leases import Beat

__all__ = ["ListenConnection", "PostgreSQLNaps", "marks_of"]

SLOTS_PER_MARK: Final = SLOTS // 64

_ECHO: Final = "echo "
_SLOTS: Final = re.compile(r"(\d{1,4})-(\d{1,4})")


class PostgreSQLNaps:
    """See `Naps` for the contract."""

    def __init__(
        self,
        schema: str,
        sql: Mapping[str, str],
        connection: Callable[[], AbstractAsyncContextManager[Any]],
        connect: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        self._schema = schema
        self._sql = sql
        self._connection = connection
        self._connect = connect
        self._listener: int | None = None
        """The server's process that serves our listening."""

    async def listen(self, channel: str, listener: Listener) -> ListenConnection:
        async with self._connect() as connection:
            ear = ListenConnection(connection, listener)
            # A transaction that may not see a nap notifies on the channel with the schema's name.
            for each in {channel, self._schema}:
                await connection.add_listener(each, ear.hear)
            self._listener = await connection.fetchval(self._sql["server_process"])
        return ear

    async def begin(self, lease: Lease, *, channel: str, seconds: float) -> int | None:
        async with self._connection() as connection:
            slots = (lease.first_slot, lease.last_slot)
            values = (*slots, marks_of(*slots), channel, seconds, self._listener)
            nap: int | None = await connection.fetchval(self._sql["begin_nap"], *values)
            return nap

    async def end(self, naps: Collection[int]) -> None:
        async with self._connection() as connection:
            await connection.execute(self._sql["end_naps"], list(naps))
        async with self._connection() as connection:  # in a transaction of its own, which sees that they are gone
            await connection.execute(self._sql["wipe_marks"])

    async def writers(self) -> Collection[Writer]:
        async with self._connection() as connection:
            return frozenset(Writer(*row) for row in await connection.fetch(self._sql["writers"]))

    async def tick(
        self,
        sink: str,
        owner: UUID,
        *,
        naps: Collection[int],
        seconds: float,
        channel: str,
        word: str,
        beat: Beat | None = None,
    ) -> Tick:
        me = looking(RelayIdentity(owner, sink, "", 0, "", "")) if beat is None else beating(beat)
        async with self._connection() as connection:
            row = await connection.fetchrow(self._sql["beat"], *me, list(naps), seconds, channel, _ECHO + word)
        return Tick(
            lanes=dict(zip(row["mine"], zip(row["epochs"], row["versions"], strict=True), strict=True)),
            stirred=row["stirred"],
            kept=row["kept"],
            snapshot=None if beat is None else snapshot(row, beat.identity, has_beaten=True),
        )


def marks_of(first_slot: int, last_slot: int) -> int:
    """A bit for each 16 slots in which there is one of these; the first one is the number's sign."""
    first, last = first_slot // SLOTS_PER_MARK, last_slot // SLOTS_PER_MARK
    marks = (1 << 64 - first) - (1 << 63 - last)
    return marks - (1 << 64) if first == 0 else marks


class ListenConnection:
    """A connection that listens."""

    def __init__(self, connection: Any, listener: Listener) -> None:
        self._connection = connection
        self._listener = listener
        self._open = True
        connection.add_termination_listener(self._ended)

    def hear(self, _connection: object, _process: int, _channel: str, payload: str) -> None:
        """Pass on what is meant for relays; others may use the channel too."""
        if payload.startswith(_ECHO):
            self._listener.echo(payload.removeprefix(_ECHO))
        elif not payload:
            self._listener.hear(0, SLOTS - 1)
        elif slots := _SLOTS.fullmatch(payload):
            self._listener.hear(int(slots[1]), int(slots[2]))

    def close(self) -> None:
        self._open = False
        self._connection.terminate()

    def _ended(self, _connection: object) -> None:
        if self._open:
            self._open = False
            self._listener.end("the connection that listens was lost")
