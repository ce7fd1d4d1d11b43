"""Waiting for a database that can't be reached yet, at the start of a relay or a consumer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["cancelled", "reached"]

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
FIRST_REPORT: Final = 10.0
LONGEST_REPORT: Final = 600.0
CANCEL_SECONDS: Final = 1.0


async def reached(
    connect: Callable[[], Coroutine[Any, Any, None]],
    report: Callable[[str, float], None],
    *,
    stopping: asyncio.Event,
    limit: float | None = None,
) -> bool:
    """Call `connect` until it succeeds; False when `stopping` is set before that.

    `report` is called with the reason and the seconds waited so far: at the first failure, then after 10 seconds, and
    each time after twice as long. Raises what is no transient outage at once, and StoreUnavailable after `limit`
    seconds.
    """
    now = asyncio.get_running_loop().time
    began = now()
    pause, report_at, interval = FIRST_PAUSE, began, FIRST_REPORT
    stopped = asyncio.create_task(stopping.wait())
    try:
        while not stopping.is_set():
            connecting = asyncio.create_task(connect())
            try:
                await asyncio.wait((connecting, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not connecting.done():
                    return False
                connecting.result()
            except StoreUnavailable as out:
                waited = now() - began
                if not out.transient:
                    raise
                if limit is not None and waited >= limit:
                    raise StoreUnavailable(
                        f"gave up after waiting {limit:g} s (until_empty_timeout) for the database: {out}"
                    ) from out
                if now() >= report_at:
                    report(str(out), waited)
                    report_at, interval = now() + interval, min(2 * interval, LONGEST_REPORT)
            else:
                return True
            finally:
                await cancelled(connecting, seconds=CANCEL_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stopping.wait()
            pause = min(2 * pause, LONGEST_PAUSE)
        return False
    finally:
        stopped.cancel()


async def cancelled(*tasks: asyncio.Task[Any], seconds: float) -> set[asyncio.Task[Any]]:
    """Cancel tasks, and wait for them no longer than this; those that have not ended.

    A driver that is cancelled asks its database to break off, and waits for the answer: a database that has gone silent
    would be waited for without end.
    """
    for task in tasks:
        task.cancel()
    if not tasks:
        return set()
    _, left = await asyncio.wait(tasks, timeout=seconds)
    for task in left:
        task.add_done_callback(_ignore)
    return left


def _ignore(task: asyncio.Task[Any]) -> None:
    """What it raises after it was given up is no news: asyncio would complain that it was never looked at."""
    if not task.cancelled():
        task.exception()
