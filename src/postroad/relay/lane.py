"""One lane: read → publish → settle. Only this module moves a cursor.

The rules, each of which has cost somebody messages:

- The cursor moves past a message only after the broker has confirmed it.
- The next page is read while this one is published, and dropped whenever this one was not confirmed whole.
- After any error of the store, and whenever the lane's row is not as it was loaded, everything known is forgotten and
  loaded again: the database may have gone back to before what is remembered here.
- What can't be saved is not published: after an error a lane first makes sure that it can write its cursor.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from postroad import events
from postroad.errors import (
    BrokerUnavailable,
    LaneChanged,
    LeaseLost,
    LogNotReadable,
    NotMigrated,
    PostroadError,
    Refusal,
    StoreUnavailable,
)
from postroad.events import tell
from postroad.relay.waves import in_waves
from postroad.stores.cursor import PageLimit

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from postroad.brokers.base import Publisher
    from postroad.config import RelaySettings
    from postroad.message import StoredMessage
    from postroad.stores.base import Lease, Store
    from postroad.stores.cursor import Cursor, Page

__all__ = ["Lane"]

FIRST_PAUSE = 0.05
SAVING_SECONDS = 2


class Interrupted(PostroadError):
    """The page was left before all of it was confirmed: the relay is stopping, or a message was refused."""


class Lane:
    """Carries the messages of one lane until it is stopped, loses the lane, or a message is refused."""

    def __init__(self, store: Store, publisher: Publisher, lease: Lease, settings: RelaySettings) -> None:
        self._store = store
        self._publisher = publisher
        self._settings = settings
        self._limit = PageLimit(settings.batch_size, settings.page_bytes)
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._forgotten = False
        self._load(lease)
        self.published = 0
        self.pages = 0
        self.refusal: Refusal | None = None
        self.lost = False

    @property
    def name(self) -> str:
        """The lane as logs call it."""
        return f"{self._lease.sink}/{self._lease.lane}"

    async def run(self, *, until_empty: bool = False) -> None:
        """Carry messages until told to stop, or until there are none left."""
        self._running = asyncio.create_task(self._run(until_empty=until_empty), name=f"postroad lane {self.name}")
        try:
            await self._running
        except asyncio.CancelledError:
            if not self._stopping.is_set() or _is_being_cancelled():
                raise
            tell(
                events.LaneStopped(*self._where, reason="the database did not answer in time; the last pages go again")
            )

    async def _run(self, *, until_empty: bool) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                if self._forgotten:
                    lease = await self._store.load(self._lease)
                    self._load(await self._store.settle(lease, lease.cursor))
                    pause = FIRST_PAUSE
                return await self._carry(until_empty=until_empty)
            except LaneChanged as changed:
                self._forgotten = True
                tell(events.LaneReloaded(*self._where, reason=str(changed)))
            except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
                self._forgotten = True
                tell(events.StoreOut(*self._where, reason=str(error), retry_ms=pause * 1000))
                await self._pause(pause)
                pause = min(2 * pause, self._settings.seconds("outage_backoff"))
            except LeaseLost as lost:
                self.lost = True
                tell(events.LaneLost(*self._where, reason=str(lost)))
                return None
        return None

    def stop(self) -> None:
        """Take no new page; the one under way may still be confirmed."""
        self._stopping.set()

    def give_up(self) -> None:
        """Wait no longer for the broker; and for the database, only as long as saving the cursor should take."""
        if self._publishing is not None:
            self._publishing.cancel()
        if self._running is not None:
            asyncio.get_running_loop().call_later(SAVING_SECONDS, self._running.cancel)

    # -- read → publish → settle -------------------------------------------------------------------------------------

    async def _carry(self, *, until_empty: bool) -> None:
        idle = self._settings.seconds("poll_interval")
        reading = self._begin_reading(self._confirmed)
        try:
            while not self._stopping.is_set():
                page = await reading
                if page.messages:
                    reading = self._begin_reading(page.after)
                    with self._told(page):
                        await self._publish(page)
                    await self._settle(page.after)
                    idle = self._settings.seconds("poll_interval")
                    continue
                await self._settle(page.after, now=True)
                if not page.before.catching_up:  # else only the late rows have come to an end
                    if until_empty:
                        return
                    await self._pause(idle)
                    idle = min(2 * idle, self._settings.seconds("max_idle_backoff"))
                reading = self._begin_reading(page.after)
            await self._settle(self._confirmed, now=True)
        except Interrupted as interrupted:
            if self.refusal is None:
                tell(events.LaneStopped(*self._where, reason=str(interrupted)))
            await self._settle(self._confirmed, now=True)
        finally:
            reading.cancel()
            await asyncio.wait((reading,), timeout=SAVING_SECONDS)
            if reading.done() and not reading.cancelled():
                reading.exception()  # whatever it was, nobody needs that page any more

    def _begin_reading(self, cursor: Cursor) -> asyncio.Task[Page]:
        return asyncio.create_task(self._store.read(self._lease, cursor, self._limit))

    async def _publish(self, page: Page) -> None:
        """Have every message of the page confirmed. Raises Interrupted with the confirmed beginning noted."""
        waves = [page.messages] if self._settings.ordering == "none" else in_waves(page.messages)
        confirmed: set[int] = set()
        try:
            await self._until_given_up(self._publish_waves(waves, confirmed))
        except Interrupted:
            beginning = next((n for n, message in enumerate(page.messages) if message.position not in confirmed), None)
            self._note(page.cursor_after(len(page.messages) if beginning is None else beginning), beginning)
            raise
        self.pages += 1
        self._note(page.after, len(page.messages))

    async def _publish_waves(self, waves: Sequence[Sequence[StoredMessage]], confirmed: set[int]) -> None:
        """Publish wave after wave. `confirmed` is filled only when that is interrupted: else all of them are.

        A page that was begun is finished also when the relay is being stopped: the first wave has messages from all
        over the page, so a page that is left after it would almost all go again.
        """
        if self._stopping.is_set():
            raise Interrupted("stopped; what was confirmed is saved")
        for number, wave in enumerate(waves):
            try:
                await self._publish_wave(wave, confirmed)
            except (Interrupted, asyncio.CancelledError):
                confirmed.update(message.position for done in waves[:number] for message in done)
                raise

    async def _publish_wave(self, wave: Sequence[StoredMessage], confirmed: set[int]) -> None:
        pause, outages = FIRST_PAUSE, 0
        while True:
            try:
                refusals = await self._publisher.publish(wave)
            except BrokerUnavailable as outage:
                refusals = outage.refusals
                confirmed |= outage.confirmed
                wave = [message for message in wave if message.position not in confirmed]
                pause = FIRST_PAUSE if outage.confirmed else min(2 * pause, self._settings.seconds("outage_backoff"))
                outages += 1
                tell(events.BrokerOut(*self._where, reason=str(outage), waiting=len(wave), retry_ms=pause * 1000))
                if refusals:
                    raise self._refused(refusals[0]) from outage
                await self._pause(pause)
                if self._stopping.is_set():
                    raise Interrupted("stopped in an outage; what was confirmed is saved") from outage
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                    raise
                # Neither a refusal nor an outage, nor did anybody want this to end: nothing is known of any message.
                raise self._refused(Refusal(wave[0].position, f"the publisher failed: {error!r}")) from error
            else:
                if outages:
                    tell(events.BrokerBack(*self._where, attempts=outages + 1))
                if not refusals:
                    return
                refused = {refusal.position for refusal in refusals}
                confirmed.update(message.position for message in wave if message.position not in refused)
                raise self._refused(refusals[0])

    async def _until_given_up(self, publishing: Coroutine[None, None, None]) -> None:
        """Wait for confirms, unless the relay is being stopped and its grace has ended."""
        self._publishing = asyncio.create_task(publishing)
        try:
            await self._publishing
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            raise Interrupted("the broker did not confirm in time; what it had confirmed is saved") from None
        finally:
            self._publishing = None

    def _refused(self, refusal: Refusal) -> Interrupted:
        self.refusal = refusal
        tell(events.MessageRefused(*self._where, **refusal._asdict()))
        return Interrupted("a message was refused")

    # -- the cursor --------------------------------------------------------------------------------------------------

    def _load(self, lease: Lease) -> None:
        """Begin from what the database says, and nothing else."""
        self._lease = lease
        self._confirmed = lease.cursor
        self._forgotten = False
        self._unsaved = False
        self._saved_at = time.monotonic()

    def _note(self, cursor: Cursor, messages: int | None) -> None:
        if messages:
            self.published += messages
            self._unsaved = True
        self._confirmed = cursor

    async def _settle(self, cursor: Cursor, *, now: bool = False) -> None:
        """Save the cursor: at once when the lane has nothing else to do, every so often under load."""
        self._confirmed = cursor
        saved = self._lease.cursor
        moved = self._unsaved or (cursor.position, cursor.late_position) != (saved.position, saved.late_position)
        if moved and (now or time.monotonic() - self._saved_at >= self._settings.seconds("settle_interval")):
            self._lease = await self._store.settle(self._lease, cursor)
            self._unsaved = False
            self._saved_at = time.monotonic()

    # -- the log -----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> tuple[str, int]:
        return self._lease.sink, self._lease.lane

    @contextmanager
    def _told(self, page: Page) -> Iterator[None]:
        """For those who read about every page: what was taken, and what became of it."""
        if not events.is_wanted(events.PageTaken):
            yield
            return
        began, published = time.monotonic(), self.published
        tell(events.PageTaken(*self._where, size=len(page.messages), position=page.after.position))
        try:
            yield
        finally:
            tell(
                events.PagePublished(
                    *self._where,
                    published=self.published - published,
                    refused=int(self.refusal is not None),
                    duration_ms=(time.monotonic() - began) * 1000,
                    position=self._confirmed.position,
                )
            )

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when the relay is being stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def _is_being_cancelled() -> bool:
    """Somebody has cancelled the task that runs this, as against an error of that name that came from elsewhere."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
