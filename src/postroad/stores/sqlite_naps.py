"""Wake-up on SQLite: polls `PRAGMA data_version`, a number that changes when another connection has committed.

That is cheap: it reads a counter in memory that all processes share. Lanes need not tell writers that they nap.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import NotMigrated, StoreUnavailable
from postroad.message import SLOTS
from postroad.stores.naps import Naps, Tick

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from uuid import UUID

    from postroad.stores.leases import Heartbeat, Leases
    from postroad.stores.naps import NotifyHandler

__all__ = ["DataVersionPoller", "SQLiteNaps"]

POLL_SECONDS: Final = 0.02


class SQLiteNaps(Naps):
    """See `Naps` for the contract."""

    def __init__(self, fetch: Callable[..., Awaitable[list[Any]]], leases: Leases) -> None:
        self._fetch = fetch
        self._leases = leases
        self._handler: NotifyHandler | None = None

    async def listen(self, channel: str, handler: NotifyHandler) -> DataVersionPoller:
        self._handler = handler
        return DataVersionPoller(handler, self._fetch, await self._fetch("data_version"))

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
            snapshot = await self._leases.heartbeat(heartbeat.identity, heartbeat.seconds, heartbeat.liveness_lock)
        rows = await self._fetch("tick", sink, str(owner))
        if self._handler is not None:
            self._handler.on_echo(token)
        return Tick(
            lanes={lane: (epoch, version) for lane, epoch, version, _ in rows},
            has_work=[lane for lane, _, _, has_work in rows if has_work],
            renewed_naps=naps,
            snapshot=snapshot,
        )


class DataVersionPoller:
    """Polls on the store's own connection, whose own commits do not change the number."""

    def __init__(self, handler: NotifyHandler, fetch: Callable[..., Awaitable[list[Any]]], version: list[Any]) -> None:
        self._handler = handler
        self._fetch = fetch
        self._polling = asyncio.create_task(self._poll(version), name="postroad data_version")

    def close(self) -> None:
        self._polling.cancel()

    async def _poll(self, version: list[Any]) -> None:
        try:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                before, version = version, await self._fetch("data_version")
                if version != before:
                    self._handler.on_notify(0, SLOTS - 1)
        except (StoreUnavailable, NotMigrated) as error:
            self._handler.on_listen_lost(str(error))
