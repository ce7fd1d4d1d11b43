"""How a relay on SQLite notices a commit: a number that changes when anybody else has written, asked for now and then.

That is cheap, because it reads nothing but a counter in memory that all processes share. Nobody is told who naps.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import NotMigrated, StoreUnavailable
from postroad.message import SLOTS
from postroad.stores.base import Tick
from postroad.stores.told_anyway import ToldAnyway

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from uuid import UUID

    from postroad.stores.base import Listener
    from postroad.stores.leases import Beat, Leases

__all__ = ["SQLiteNaps", "Watch"]

WATCH_SECONDS: Final = 0.02


class SQLiteNaps(ToldAnyway):
    """See `Naps` for the contract."""

    def __init__(self, fetch: Callable[..., Awaitable[list[Any]]], leases: Leases) -> None:
        self._fetch = fetch
        self._leases = leases
        self._listener: Listener | None = None

    async def listen(self, channel: str, listener: Listener) -> Watch:
        self._listener = listener
        return Watch(listener, self._fetch, await self._fetch("data_version"))

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
        snapshot = None if beat is None else await self._leases.beat(beat.identity, beat.seconds, beat.liveness_lock)
        rows = await self._fetch("tick", sink, str(owner))
        if self._listener is not None:
            self._listener.echo(word)
        return Tick(
            lanes={lane: (epoch, version) for lane, epoch, version, _ in rows},
            stirred=[lane for lane, _, _, stirred in rows if stirred],
            kept=naps,
            snapshot=snapshot,
        )


class Watch:
    """Asks for the number again and again, on the store's own connection, whose writes don't change it."""

    def __init__(self, listener: Listener, fetch: Callable[..., Awaitable[list[Any]]], version: list[Any]) -> None:
        self._listener = listener
        self._fetch = fetch
        self._watching = asyncio.create_task(self._watch(version), name="postroad watch")

    def close(self) -> None:
        self._watching.cancel()

    async def _watch(self, version: list[Any]) -> None:
        try:
            while True:
                await asyncio.sleep(WATCH_SECONDS)
                before, version = version, await self._fetch("data_version")
                if version != before:
                    self._listener.hear(0, SLOTS - 1)
        except (StoreUnavailable, NotMigrated) as error:
            self._listener.end(str(error))
