"""Wake-up in memory: every commit notifies the relays of the same process, at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from postroad.message import SLOTS
from postroad.stores.naps import Naps

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from postroad.stores.leases import Heartbeat
    from postroad.stores.memory import MemoryStore
    from postroad.stores.naps import NotifyHandler, Tick

__all__ = ["MemoryListenConnection", "MemoryNaps"]


class MemoryNaps(Naps):
    """Notifies of every commit, from whichever thread; see `Naps` for the contract."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._listening: list[MemoryListenConnection] = []

    def notify(self) -> None:
        """Notify every handler of a commit."""
        for each in list(self._listening):
            each.loop.call_soon_threadsafe(each.handler.on_notify, 0, SLOTS - 1)

    async def listen(self, channel: str, handler: NotifyHandler) -> MemoryListenConnection:
        connection = MemoryListenConnection(self._listening, handler)
        self._listening.append(connection)
        return connection

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
        snapshot = None
        if heartbeat is not None:
            snapshot = await self._store.leases.heartbeat(
                heartbeat.identity, heartbeat.seconds, heartbeat.liveness_lock
            )
        for each in self._listening:
            each.handler.on_echo(token)
        return msgspec.structs.replace(self._store.tick(sink, owner), renewed_naps=naps, snapshot=snapshot)


class MemoryListenConnection:
    """A handler, and the event loop in which it is called."""

    def __init__(self, listening: list[MemoryListenConnection], handler: NotifyHandler) -> None:
        self._listening = listening
        self.handler = handler
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._listening.remove(self)
