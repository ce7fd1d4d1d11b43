"""Chores beside the lanes: deleting messages that every sink has passed and that are old enough, and reporting how many
messages were published.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.backoff import ExponentialBackoff
from postroad.errors import LogNotReadable, NotMigrated, StoreUnavailable
from postroad.events import MessagesDeleted, Progress, SinkUnserved
from postroad.listeners import Listeners
from postroad.relay.clock import Monotonic
from postroad.relay.store_outages import StoreOutages
from postroad.waiting import calling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroad.relay.clock import Clock
    from postroad.stores.base import Store

__all__ = ["Reports", "Retention", "reporting"]

RESTS: Final = 9.0
"""The pause after a batch, as a multiple of the time that the batch took."""
SHORTEST_REST: Final = 0.01
BEGIN_AGAIN_SECONDS: Final = 3600.0
UNSERVED_SECONDS: Final = 86_400.0
LAST_HOUR: Final = timedelta(hours=1)
"""Progress of the last hour is kept for `postroad status`, however short `retain` is."""


class Retention:
    """Deletes delivered messages in small batches. A message that any lane has not passed stays, whatever its age.

    Between two batches it pauses for a multiple of what the batch took, so that writers and lanes are hardly slowed. It
    goes on where it stopped, because a database walks over deleted rows until it has vacuumed them; once an hour it
    begins at the first row again, for the rows that stayed.
    """

    def __init__(
        self,
        store: Store,
        *,
        retain: timedelta,
        batch: int = 1000,
        interval: float = 60.0,
        longest_pause: float = 30.0,
        listeners: Listeners | None = None,
        outages: StoreOutages | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`longest_pause` is how many seconds are between two tries at most while the database is unavailable."""
        self._store = store
        self._retain = retain
        self._batch = batch
        self._interval = interval
        self._backoff = ExponentialBackoff(longest_pause)
        self._listeners = listeners or Listeners()
        self._clock = clock or Monotonic()
        self._outages = outages or StoreOutages("", self._listeners, self._clock)
        self._never = asyncio.Event()
        self._done = 0
        """The rows that are left up to here stay for now."""
        self._began_at = float("-inf")
        """When it last began at the first row of the log."""

    async def run_once(self) -> int:
        """Walk to the first batch in which nothing is old enough; return how many messages were deleted."""
        if self._clock.now() - self._began_at >= BEGIN_AGAIN_SECONDS:
            self._done, self._began_at = 0, self._clock.now()
            await self._report_unserved()
        deleted, through = 0, self._done
        try:
            while True:
                began = self._clock.now()
                cleaned = await self._store.delete_passed(after=through, older_than=self._retain, batch=self._batch)
                deleted += cleaned.deleted
                if not cleaned.more or cleaned.through == through:
                    break
                through = cleaned.through
                self._done = max(self._done, min(through, cleaned.behind))
                await self._clock.wait(self._never, max(SHORTEST_REST, RESTS * (self._clock.now() - began)))
        finally:
            if deleted:
                self._listeners.emit(MessagesDeleted(deleted=deleted, retain_s=self._retain.total_seconds()))
        await self._forget_progress()
        return deleted

    async def _report_unserved(self) -> None:
        """Name the sinks that keep the log from being cleaned because no relay serves them."""
        for sink, seconds in (await self._store.leases.unserved()).items():
            if seconds >= UNSERVED_SECONDS:
                self._listeners.emit(SinkUnserved(sink=sink, hours=seconds / 3600))

    async def _forget_progress(self) -> None:
        older_than = max(self._retain, LAST_HOUR)
        while await self._store.forget_progress(older_than=older_than, batch=self._batch):
            await self._clock.wait(self._never, SHORTEST_REST)

    async def run(self) -> None:
        """Do that at every interval, until the task is cancelled, which is safe at any moment."""
        failures = 0
        while True:
            try:
                await self.run_once()
            except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
                failures += 1
                pause = self._backoff.after(failures)
                self._outages.failed("retention", error, pause)
                await self._clock.wait(self._never, pause)
            else:
                if failures:
                    self._outages.worked("retention")
                failures = 0
                await self._clock.wait(self._never, self._interval)


class Reports:
    """Reports how many messages the lanes have published since the last report, unless there were none."""

    def __init__(
        self, sink: str, counts: Callable[[], tuple[int, int]], *, now: float, listeners: Listeners | None = None
    ) -> None:
        """`counts` returns how many messages, and in how many pages, the lanes have published."""
        self._sink = sink
        self._counts = counts
        self._listeners = listeners or Listeners()
        self._published, self._pages = self._counts()
        self._at = now

    def run_once(self, now: float) -> None:
        """Report, if messages were published."""
        published, pages = self._counts()
        seconds = now - self._at
        if published > self._published and seconds > 0:
            moved = published - self._published
            self._listeners.emit(
                Progress(
                    self._sink,
                    published=moved,
                    pages=pages - self._pages,
                    per_second=moved / seconds,
                    duration_ms=seconds * 1000,
                )
            )
        self._published, self._pages, self._at = published, pages, now


@contextmanager
def reporting(
    sink: str, counts: Callable[[], tuple[int, int]], listeners: Listeners, *, every: float
) -> Iterator[None]:
    """Report every so many seconds."""
    reports = Reports(sink, counts, now=time.monotonic(), listeners=listeners)
    with calling(lambda: reports.run_once(time.monotonic()), every=every):
        yield
