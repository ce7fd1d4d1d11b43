"""One lane: read → publish → settle, until it is stopped or lost.

- The next page is read while this one is published, and dropped if this one was not published to its end.
- After any error of the store, and whenever the lane's row is not as it was loaded, the lane forgets everything and
  loads again: the database may have been restored to an earlier time.
- Loading writes, so an owner that can't write finds out before it publishes.
- A lane that has nothing to write checks that its row is as it was loaded, so that operators' changes take effect.
- One task publishes, so whether a message must wait for an earlier one of its key is decided where it is published.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.backoff import ExponentialBackoff
from postroad.errors import LaneChanged, LeaseLost, LogNotReadable, LogReset, NotMigrated, StoreUnavailable
from postroad.relay.copies import LaneCopies
from postroad.relay.deferred import DeferredMessages
from postroad.relay.measuring import PageTimer
from postroad.relay.outcome import Interrupted, Outcome
from postroad.relay.owned_lane import LeaseInDoubt
from postroad.relay.progress import LaneProgress
from postroad.relay.publishing import LanePublisher, is_being_cancelled
from postroad.relay.refusals import Refusals
from postroad.relay.retries import Retries
from postroad.stores.base import key_and_source
from postroad.stores.cursor import PageLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from postroad.config import RelaySettings
    from postroad.listeners import Listeners
    from postroad.relay.breaker import Breaker
    from postroad.relay.clock import Clock
    from postroad.relay.convoy import Convoy
    from postroad.relay.epochs import EpochPublisher
    from postroad.relay.idle import IdleWait
    from postroad.relay.owned_lane import OwnedLane
    from postroad.relay.progress import Counts
    from postroad.relay.store_outages import StoreOutages
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Claimed, Loaded, Store
    from postroad.stores.cursor import Page

__all__ = ["Lane"]

SAVING_SECONDS: Final = 2
"""How long a lane may take to save its cursor after `give_up`."""
PAUSED_SECONDS: Final = 1.0
"""How often a paused lane asks whether it was resumed."""
_NOT_CLAIMED: Final[Mapping[int, Claimed]] = {}


class Lane:
    """Publishes the messages of one lane."""

    def __init__(
        self,
        store: Store,
        owned: OwnedLane,
        settings: RelaySettings,
        *,
        convoy: Convoy,
        idle: IdleWait,
        breaker: Breaker,
        epochs: EpochPublisher,
        retry: RetryPolicy,
        listeners: Listeners,
        outages: StoreOutages,
        clock: Clock,
    ) -> None:
        lease = owned.lease
        self._store = store
        self._convoy = convoy
        self._owned = owned
        self._idle = idle
        self._settings = settings
        self._listeners = listeners
        self._outages = outages
        self._clock = clock
        self._limit = PageLimit(settings.batch_size, settings.page_bytes)
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._where = lease.sink, lease.lane
        self._deferred = _deferred_messages(settings, retry)
        self._progress = LaneProgress(
            store, convoy, owned, self._deferred, settle_interval=settings.seconds("settle_interval"),
            listeners=listeners, clock=clock,
        )  # fmt: skip
        attempts = getattr(retry, "max_attempts", "as many as the policy allows")
        refusals = Refusals(self._where, self._deferred, self.counts, listeners, max_attempts=attempts)
        self._epochs = epochs
        self.refusal_causes: Mapping[str, int] = refusals.causes
        """How many messages were refused, by cause."""
        self._timer = PageTimer(lease.sink, listeners, clock)
        self._publisher = LanePublisher(
            breaker,
            epochs,
            owned=owned,
            progress=self._progress,
            deferred=self._deferred,
            refusals=refusals,
            listeners=listeners,
            dead_letter_topic=settings.dead_letter_topic,
            stopping=self._stopping,
        )
        self._retries = Retries(
            self._progress, self._publisher, self._deferred, refusals, self._limit, timer=self._timer
        )
        self._copies: LaneCopies | None = None
        if lease.lane == 0:
            self._copies = LaneCopies(
                store.copies, self._publisher, self._where, retry=retry, route_pause=settings.seconds("outage_backoff"),
                listeners=listeners, clock=clock,
            )  # fmt: skip
        self._reports_pages = False
        """Whether a listener wants the events of pages, when the lane was loaded or was last idle."""
        self.lost = False

    @property
    def number(self) -> int:
        """Which lane of its sink it is."""
        return self._where[1]

    @property
    def counts(self) -> Counts:
        """What the lane has done."""
        return self._progress.counts

    @property
    def has_deferred(self) -> bool:
        """Whether deferred messages are left."""
        return self._deferred.any_left

    @property
    def blocked_routes(self) -> Collection[str]:
        """The routes that messages wait for."""
        return self._deferred.blocked_routes

    # -- from start to end -------------------------------------------------------------------------------------------

    async def run(self, *, until_empty: bool = False) -> None:
        """Publish messages until stopped; with `until_empty`, until none is left that may be published now."""
        name = "postroad lane {}/{}".format(*self._where)
        self._running = asyncio.create_task(self._run(until_empty=until_empty), name=name)
        try:
            await self._running
        except asyncio.CancelledError:
            if not self._stopping.is_set() or is_being_cancelled():
                raise
            reason = "the database did not answer in time; the last pages will be published again"
            self._listeners.emit(events.LaneStopped(*self._where, reason=reason))
        if self._owned.lost and not self.lost:
            self._lose(self._progress.lease.lost())

    def stop(self) -> None:
        """Begin no new page; the page in progress may still be confirmed."""
        self._stopping.set()
        self._idle.wake()

    def give_up(self) -> None:
        """Wait no longer for the broker; and for the database, only as long as saving the cursor should take."""
        self._publisher.give_up()
        if self._running is not None:
            asyncio.get_running_loop().call_later(SAVING_SECONDS, self._running.cancel)

    async def close(self) -> None:
        """Close what the lane published through, before the lane is released. Takes no longer than a moment."""
        await self._epochs.end()

    def _lose(self, lost: LeaseLost) -> None:
        self.lost = True
        self._listeners.emit(events.LaneLost(*self._where, reason=str(lost)))

    async def _run(self, *, until_empty: bool) -> None:
        """Load the lane and publish its messages; after an error of the store or the lease, begin again."""
        backoff, failures = ExponentialBackoff(self._settings.seconds("outage_backoff")), 0
        while not self._stopping.is_set():
            try:
                loaded = await self._load()
                if failures:
                    self._outages.worked("lanes")
                failures = 0
                if loaded.paused:
                    self._listeners.emit(events.LanePaused(*self._where))
                    return None if until_empty else await self._until_resumed()
                return await self._deliver_pages(until_empty=until_empty)
            except (LaneChanged, LeaseInDoubt) as reason:
                await self._owned.wait_until_decided(self._stopping)
                if not self._owned.lost:
                    self._listeners.emit(events.LaneReloaded(*self._where, reason=str(reason)))
            except LogReset:
                raise  # it ends the relay: an operator must decide, before positions pass the cursor
            except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
                self._convoy.clear()
                failures += 1
                pause = backoff.after(failures)
                self._outages.failed("lanes", error, pause)
                await self._clock.wait(self._stopping, pause)
            except LeaseLost as lost:
                await self._owned.wait_until_decided(self._stopping)
                if self._owned.lose():
                    self._lose(lost)
                    return None
        return None

    async def _load(self) -> Loaded:
        self._idle.end_nap()
        self._reports_pages = self._wants_pages()
        loaded = await self._progress.load(by_source=self._settings.ordering == "source-key")
        await self._epochs.begin(self._progress.lease.epoch)
        if self._copies is not None:
            self._copies.loaded(self._clock.now())
        return loaded

    # -- read → publish → settle -------------------------------------------------------------------------------------

    async def _deliver_pages(self, *, until_empty: bool) -> None:
        convoy, progress, deferred = self._convoy, self._progress, self._deferred
        reading = convoy.read(progress.lease, progress.cursor, self._limit)
        try:
            while not self._stopping.is_set():
                if deferred.unblocked_routes or deferred.due_at <= self._clock.now():
                    await self._retries.run(self._clock.now())
                if self._copies is not None and self._copies.due_at <= self._clock.now():
                    await self._copies.run()
                page = await reading
                if page.version > progress.lease.version:
                    await progress.settle(now=True)
                    raise progress.lease.changed()
                if page.messages:
                    # The next page is read while this one waits for its confirms.
                    reading = convoy.read(progress.lease, page.after, self._limit)
                    self._idle.worked = True
                    if self._idle.nap is not None:
                        self._idle.end_nap()
                    await self._publish(page)
                    await progress.settle()
                    continue
                progress.pass_empty(page)
                # Before the lane sleeps, all is tallied: the next message, and the next tally, may be hours away.
                await progress.settle(now=not page.more, with_tally=self._idle.nap is not None)
                due_in = deferred.due_in(self._clock.now())
                if not (page.more or page.before.catching_up) and due_in != 0:
                    is_idle = not await self._publish_copies_when_idle()
                    if until_empty and is_idle:
                        break
                    if is_idle:
                        await self._idle.wait(due_in)
                        self._reports_pages = self._wants_pages()
                reading = convoy.read(progress.lease, page.after, self._limit)
            await progress.settle(now=True, with_tally=True)
        except Interrupted as interrupted:
            await progress.settle(now=True, with_tally=True)
            self._listeners.emit(events.LaneStopped(*self._where, reason=str(interrupted)))
        finally:  # only now: a read whose database is silent takes a while to be cancelled
            reading.cancel()
            convoy.leave(self._owned.lease.lane)
            await asyncio.wait((reading,), timeout=SAVING_SECONDS)
            if reading.done() and not reading.cancelled():
                reading.exception()  # whatever it was, that page is not needed any more

    async def _publish(self, page: Page) -> None:
        """Publish the page and move the cursor past it. Raises Interrupted with the cursor past its beginning."""
        outcome = Outcome(self._progress.unsure_through, self._progress.skipped)
        report = self._report_page(page) if self._reports_pages else None
        timer = self._timer if self._listeners.measure else None
        began = 0.0 if timer is None else timer.start()
        try:
            await self._publisher.publish(page.messages, outcome, self._deferred.blocked_keys, _NOT_CLAIMED)
            self._progress.pass_page(page, outcome)
        finally:
            if report is not None:
                report(outcome)
        if timer is not None:
            timer.stop(page.messages, outcome, began)
        if outcome.interrupted is not None:
            raise outcome.interrupted

    async def _publish_copies_when_idle(self) -> bool:
        """Publish some copies of messages that died in other sinks, if it is time; True if there may be more."""
        copies = self._copies
        if copies is None:
            return False
        if copies.due_at_when_idle <= self._clock.now():
            await copies.run()
        return copies.more

    def _wants_pages(self) -> bool:
        return self._listeners.wants(events.PageTaken) or self._listeners.wants(events.PagePublished)

    def _report_page(self, page: Page) -> Callable[[Outcome], None]:
        """Emit that the page was taken; the function to call when it was published."""
        began, counts = self._clock.now(), self.counts
        published, refused = counts.published, counts.refused
        self._listeners.emit(events.PageTaken(*self._where, size=len(page.messages), position=page.after.position))

        def report(outcome: Outcome) -> None:
            self._listeners.emit(
                events.PagePublished(
                    *self._where,
                    published=counts.published - published,
                    refused=counts.refused - refused,
                    held=len(outcome.held),
                    duration_ms=(self._clock.now() - began) * 1000,
                    position=self._progress.cursor.position,
                )
            )

        return report

    async def _until_resumed(self) -> None:
        """Wait until the lane is changed, as by an operator who resumes its sink: then LaneChanged is raised."""
        while not self._stopping.is_set():
            await self._clock.wait(self._stopping, min(PAUSED_SECONDS, self._settings.seconds("max_idle_backoff")))
            if not self._stopping.is_set() and not await self._store.is_current(self._progress.lease):
                raise self._progress.lease.changed()


def _deferred_messages(settings: RelaySettings, retry: RetryPolicy) -> DeferredMessages:
    return DeferredMessages(
        retry,
        on_dead=settings.on_dead,
        ordering_key=key_and_source if settings.ordering == "source-key" else attrgetter("key"),
        ordered=settings.ordering != "none",
        longest_pause=settings.seconds("outage_backoff"),
        drops_unroutable=settings.unroutable == "drop",
        route_timeout=None if settings.route_timeout is None else settings.seconds("route_timeout"),
        dead_letter_sink=settings.dead_letter_sink,
    )
