"""How a port that tests listen on is closed, so that nothing is left to the garbage collector.

A transport that was never closed, or a coroutine that never began, would fail whichever test runs when it is collected.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["aborted", "closed", "end_serving"]

ACCEPTING = 10
"""After so many rounds of the loop everything that was accepted is being served."""


async def end_serving(listener: asyncio.Server, serving: dict[asyncio.Task[None], asyncio.StreamWriter]) -> None:
    """Accept nothing more, and end what is served; also what was accepted just now and has not begun."""
    # Not closed at once: asyncio fails with what it has accepted when the listener is closed, and closes nothing then.
    for listening in listener.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(ACCEPTING):
        await asyncio.sleep(0)
    listener.close()
    tasks, clients = list(serving), list(serving.values())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await aborted(*clients)  # a task that was canceled before it began has closed nothing


async def aborted(*writers: asyncio.StreamWriter) -> None:
    """End these connections without a goodbye."""
    for writer in writers:
        writer.transport.abort()
    await closed(*writers)


async def closed(*writers: asyncio.StreamWriter) -> None:
    """Wait until these connections, which are being closed, have ended."""
    for writer in writers:
        with suppress(OSError):
            await writer.wait_closed()
