"""Wake-up on PostgreSQL: naps in a table, a trigger that notifies napping lanes, a connection that listens.

LISTEN belongs to a session, so it has a connection of its own. A transaction pooler would give that session, with its
LISTEN, to the next client; behind one, the setting `direct` gives the URL of the server itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from postroad.message import SLOTS
from postroad.stores.leases import RelayIdentity
from postroad.stores.naps import Tick, Writer
from postroad.stores.postgresql_leases import heartbeat_values, inspect_values, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from postroad.stores.base import Lease
    from postroad.stores.leases import Heartbeat
    from postroad.stores.naps import NotifyHandler

__all__ = ["PostgreSQLListenConnection", "PostgreSQLNaps", "marks_of"]

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
        self._listening: int | None = None
        """The server process of the LISTEN connection."""

    async def listen(self, channel: str, handler: NotifyHandler) -> PostgreSQLListenConnection:
        async with self._connect() as connection:
            listening = PostgreSQLListenConnection(connection, handler)
            # A transaction that may not see a nap notifies on the channel with the schema's name.
            for each in {channel, self._schema}:
                await connection.add_listener(each, listening.on_payload)
            self._listening = await connection.fetchval(self._sql["server_process"])
        return listening

    async def begin(self, lease: Lease, *, channel: str, seconds: float) -> int | None:
        async with self._connection() as connection:
            slots = (lease.first_slot, lease.last_slot)
            values = (*slots, marks_of(*slots), channel, seconds, self._listening, lease.sink, lease.lane)
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
        token: str,
        heartbeat: Heartbeat | None = None,
    ) -> Tick:
        if heartbeat is None:
            values = inspect_values(RelayIdentity(owner, sink, "", 0, "", ""))
        else:
            values = heartbeat_values(heartbeat)
        async with self._connection() as connection:
            row = await connection.fetchrow(
                self._sql["heartbeat"], *values, list(naps), seconds, channel, _ECHO + token
            )
        return Tick(
            lanes=dict(zip(row["mine"], zip(row["epochs"], row["versions"], strict=True), strict=True)),
            has_work=row["has_work"],
            renewed_naps=row["renewed_naps"],
            snapshot=None if heartbeat is None else snapshot(row, heartbeat.identity, registered=True),
        )


def marks_of(first_slot: int, last_slot: int) -> int:
    """A bit for each group of 16 slots that contains one of these; the first group is the number's sign."""
    first, last = first_slot // SLOTS_PER_MARK, last_slot // SLOTS_PER_MARK
    marks = (1 << 64 - first) - (1 << 63 - last)
    return marks - (1 << 64) if first == 0 else marks


class PostgreSQLListenConnection:
    """A connection that does nothing but listen."""

    def __init__(self, connection: Any, handler: NotifyHandler) -> None:
        self._connection = connection
        self._handler = handler
        self._open = True
        connection.add_termination_listener(self._ended)

    def on_payload(self, _connection: object, _process: int, _channel: str, payload: str) -> None:
        """Call the handler for payloads that are meant for relays; other programs may use the channel too."""
        if payload.startswith(_ECHO):
            self._handler.on_echo(payload.removeprefix(_ECHO))
        elif not payload:
            self._handler.on_notify(0, SLOTS - 1)
        elif slots := _SLOTS.fullmatch(payload):
            self._handler.on_notify(int(slots[1]), int(slots[2]))

    def close(self) -> None:
        self._open = False
        self._connection.terminate()

    def _ended(self, _connection: object) -> None:
        if self._open:
            self._open = False
            self._handler.on_listen_lost("the LISTEN connection was lost")
