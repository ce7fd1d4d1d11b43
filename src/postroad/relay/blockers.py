"""Reports the sessions of other programs whose locks a relay's statements wait for, or skip rows because of."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import PostroadError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroad.listeners import Listeners
    from postroad.stores.base import Store

__all__ = ["reporting_blockers"]

REPEAT_SECONDS: Final = 30.0
"""How often the same session is reported while it blocks."""
RETRY_SECONDS: Final = 1.0
"""The pause after an error that no statement of the relay reports."""


@asynccontextmanager
async def reporting_blockers(store: Store, listeners: Listeners) -> AsyncIterator[None]:
    """Report as long as the block lasts. The store must be open."""
    task = asyncio.create_task(_report(store, listeners), name="postroad blockers")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))  # it closes its connection


async def _report(store: Store, listeners: Listeners) -> None:
    reported: dict[int, float] = {}
    loop = asyncio.get_running_loop()
    while True:
        try:
            blockers = await store.blocked()
        except PostroadError:
            continue  # the statement that waits fails too, and its error is reported
        except Exception as error:
            listeners.emit(events.BlockersUnknown(reason=repr(error), retry_ms=RETRY_SECONDS * 1000))
            await asyncio.sleep(RETRY_SECONDS)
            continue
        for blocker in blockers:
            if loop.time() - reported.get(blocker.pid, float("-inf")) >= REPEAT_SECONDS:
                reported[blocker.pid] = loop.time()
                listeners.emit(events.StoreBlocked(by=str(blocker), pid=blocker.pid, role=blocker.role))
