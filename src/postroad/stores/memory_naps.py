"""How a relay in the same process is told of commits in memory: each of them, at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from postroad.message import SLOTS
from postroad.stores.told_anyway import ToldAnyway

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from postroad.stores.base import Listener, Tick
    from postroad.stores.leases import Beat
    from postroad.stores.memory import MemoryStore

__all__ = ["MemoryListenConnection", "MemoryNaps"]


class MemoryNaps(ToldAnyway):
    """Tells of every commit, from whichever thread; see `Naps` for the contract."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._ears: list[MemoryListenConnection] = []

    def tell(self) -> None:
        """Something was committed."""
        for ear in list(self._ears):
            ear.loop.call_soon_threadsafe(ear.listener.hear, 0, SLOTS - 1)

    async def listen(self, channel: str, listener: Listener) -> MemoryListenConnection:
        ear = MemoryListenConnection(self._ears, listener)
        self._ears.append(ear)
        return ear

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
        leases = self._store.leases
        snapshot = None if beat is None else await leases.beat(beat.identity, beat.seconds, beat.liveness_lock)
        for ear in self._ears:
            ear.listener.echo(word)
        return msgspec.structs.replace(self._store.looked_after(sink, owner), kept=naps, snapshot=snapshot)


class MemoryListenConnection:
    """Somebody in this process who listens."""

    def __init__(self, ears: list[MemoryListenConnection], listener: Listener) -> None:
        self._ears = ears
        self.listener = listener
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Listen no more."""
        self._ears.remove(self)
