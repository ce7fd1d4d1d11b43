"""Waits at the start of a relay or a consumer for a database that is unavailable; cancels tasks in bounded time; and
calls a function on an interval.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from postroad.backoff import ExponentialBackoff
from postroad.errors import StoreUnavailable
from postroad.outage_reports import FIRST_REPORT, LONGEST_REPORT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["calling", "cancel_and_wait", "connect_or_wait"]

BACKOFF: Final = ExponentialBackoff(first=0.1, longest=5.0)
CANCEL_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 10.0
_FIRST: Final = asyncio.FIRST_COMPLETED


async def connect_or_wait(
    connect: Callable[[], Coroutine[Any, Any, None]],
    report: Callable[[str, float], None],
    *,
    stopping: asyncio.Event,
    limit: float | None = None,
) -> bool:
    """Call `connect` until it succeeds; False when `stopping` is set before that.

    `report` is called with the reason and the seconds waited so far: at the first failure, or after 10 seconds without
    an answer, then after 10 seconds, and each time after twice as long. Raises what is no transient outage at once, and
    StoreUnavailable after `limit` seconds, also while `connect` has not returned, which has 10 seconds at least.
    """
    wait = _Wait(report, limit)
    failures = 0
    stopped = asyncio.create_task(stopping.wait())
    try:
        while not stopping.is_set():
            connecting = asyncio.create_task(connect())
            try:
                wait.begin()
                while not (await asyncio.wait((connecting, stopped), timeout=wait.timeout, return_when=_FIRST))[0]:
                    wait.after(StoreUnavailable("the database has not answered yet"), limit=wait.longest)
                if not connecting.done():
                    return False
                connecting.result()
            except StoreUnavailable as outage:
                if not outage.transient:
                    raise
                wait.after(outage)
            else:
                return True
            finally:
                await cancel_and_wait(connecting, seconds=CANCEL_SECONDS)
            failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(BACKOFF.after(failures)):
                    await stopping.wait()
        return False
    finally:
        stopped.cancel()


class _Wait:
    """How long the caller has waited: when that is reported next, and when it gives up."""

    def __init__(self, report: Callable[[str, float], None], limit: float | None) -> None:
        self._now = asyncio.get_running_loop().time
        self._report = report
        self._limit = float("inf") if limit is None else limit
        self._began = self._now()
        self._call_began = 0.0
        self._report_after = 0.0
        self._interval = FIRST_REPORT

    @property
    def timeout(self) -> float:
        """Seconds that a call may take before `after` is called while the call has not returned."""
        return max(0.0, min(self._report_after or FIRST_REPORT, self.longest) - self._waited)

    @property
    def longest(self) -> float:
        """The limit, for a call that has not returned."""
        return max(self._limit, self._call_began + ANSWER_SECONDS)

    def begin(self) -> None:
        """A call begins."""
        self._call_began = self._waited

    @property
    def _waited(self) -> float:
        return self._now() - self._began

    def after(self, outage: StoreUnavailable, *, limit: float | None = None) -> None:
        """Report the reason, if a report is due. Raises StoreUnavailable at the limit."""
        waited = self._waited
        if waited >= (self._limit if limit is None else limit):
            raise StoreUnavailable(
                f"gave up after waiting {self._limit:g} s (until_empty_timeout) for the database: {outage}"
            ) from outage
        if waited >= self._report_after:
            self._report(str(outage), waited)
            self._report_after, self._interval = waited + self._interval, min(2 * self._interval, LONGEST_REPORT)


@contextmanager
def calling(function: Callable[[], None], *, every: float) -> Iterator[None]:
    """Call the function every so many seconds, by a timer: it needs no task of its own, and ends at once."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def call() -> None:
        nonlocal timer
        timer = loop.call_later(every, call)
        function()

    timer = loop.call_later(every, call)
    try:
        yield
    finally:
        timer.cancel()


async def cancel_and_wait(*tasks: asyncio.Task[Any], seconds: float) -> set[asyncio.Task[Any]]:
    """Cancel tasks and wait for them, but no longer than this; returns those that have not ended.

    A driver that is cancelled sends a cancel request to its database and waits for the answer. If the database does not
    respond, that would take for ever.
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
    """Retrieve the error of an abandoned task: asyncio would log that it was never retrieved."""
    if not task.cancelled():
        task.exception()
