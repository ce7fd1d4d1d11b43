"""Chores beside the lanes: deleting what every sink has had, once it is old enough, and reporting what moves."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroad.events import MessagesDeleted, Progress, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from postroad.relay.lane import Lane
    from postroad.stores.base import Store

__all__ = ["Reports", "Retention", "reporting"]


class Retention:
    """Deletes delivered messages in small batches. What any lane has not passed stays, whatever its age."""

    def __init__(self, store: Store, *, retain: timedelta, batch: int = 5000) -> None:
        self._store = store
        self._retain = retain
        self._batch = batch

    async def run_once(self) -> int:
        """Walk from the oldest row to the first batch in which nothing is old enough; say how many were deleted."""
        deleted = through = 0
        while True:
            cleaned = await self._store.delete_passed(after=through, older_than=self._retain, batch=self._batch)
            deleted += cleaned.deleted
            if not cleaned.more or cleaned.through == through:
                break
            through = cleaned.through
        tell(MessagesDeleted(deleted=deleted, retain_s=self._retain.total_seconds()))
        return deleted


class Reports:
    """Says how many messages the lanes have published since it was asked last, and nothing when there were none."""

    def __init__(self, sink: str, lanes: Sequence[Lane], *, now: float) -> None:
        self._sink = sink
        self._lanes = lanes
        self._published, self._pages = self._counts()
        self._at = now

    def run_once(self, now: float) -> None:
        """Report, if something moved."""
        published, pages = self._counts()
        seconds = now - self._at
        if published > self._published and seconds > 0:
            moved = published - self._published
            tell(
                Progress(
                    self._sink,
                    published=moved,
                    pages=pages - self._pages,
                    per_second=moved / seconds,
                    duration_ms=seconds * 1000,
                )
            )
        self._published, self._pages, self._at = published, pages, now

    def _counts(self) -> tuple[int, int]:
        return sum(lane.published for lane in self._lanes), sum(lane.pages for lane in self._lanes)


@contextmanager
def reporting(sink: str, lanes: Sequence[Lane], *, every: float) -> Iterator[None]:
    """Report every so many seconds, by a timer: it needs no task of its own, and ends at once."""
    loop = asyncio.get_running_loop()
    reports = Reports(sink, lanes, now=time.monotonic())
    timer: asyncio.TimerHandle

    def report() -> None:
        nonlocal timer
        timer = loop.call_later(every, report)
        reports.run_once(time.monotonic())

    timer = loop.call_later(every, report)
    try:
        yield
    finally:
        timer.cancel()
