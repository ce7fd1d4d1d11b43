"""The relay: hold a share of the lanes of one sink, and run them side by side."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from postroad import events
from postroad.config import RelaySettings
from postroad.errors import BrokerUnavailable, InvalidSetting, LoginRefused
from postroad.heap import keep_large_blocks
from postroad.listeners import Listeners, tell
from postroad.message import new_id
from postroad.relay.blockers import reporting_blockers
from postroad.relay.breaker import Breaker
from postroad.relay.clock import Monotonic
from postroad.relay.dispatch import FEW_ROUTES
from postroad.relay.lane import Lane
from postroad.relay.maintenance import Retention, reporting
from postroad.relay.ownership import LaneOwnership
from postroad.relay.scheduled import Scheduled
from postroad.relay.wakeup import Wakeup
from postroad.retry import Backoff
from postroad.stores.leases import RelayIdentity
from postroad.version import __version__
from postroad.waiting import cancelled, reached

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from postroad.brokers.base import Publisher
    from postroad.relay.clock import Clock
    from postroad.relay.idle import IdleWait
    from postroad.relay.owned_lane import OwnedLane
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Store

__all__ = ["Relay", "Summary"]

LAST_SECONDS: Final = 1.0
"""How long a publisher that is being opened is waited for, after it was cancelled because the relay ends."""


class Summary(msgspec.Struct, frozen=True):
    """What a relay did."""

    published: int
    pages: int
    seconds: float
    refused: int
    """Attempts that failed. Those messages are tried again, or dead."""
    died: int
    """Messages that need a person now."""
    lanes_lost: int
    """Lanes that another relay took."""
    lanes_waiting: int = 0
    """Lanes with messages that wait: for another attempt, for a route, or for one before them."""
    skipped: int = 0
    """Passed over: a person had decided about them."""
    dropped: int = 0
    """Dropped, because no consumer has subscribed to them, and unroutable = "drop"."""
    waits_for: Sequence[str] = ()
    """Routes that messages wait for."""

    def __str__(self) -> str:
        rate = f" ({self.published / self.seconds:,.0f}/s)" if self.seconds > 0 and self.published else ""
        text = f"{self.published:,} published"
        text += f", {self.refused:,} {'attempt' if self.refused == 1 else 'attempts'} failed" if self.refused else ""
        text += f", {self.died:,} dead" if self.died else ""
        text += f", {self.skipped:,} skipped" if self.skipped else ""
        text += f", {self.dropped:,} dropped" if self.dropped else ""
        text += f" in {self.seconds:.2f} s{rate}"
        if self.dropped:
            text += "; no consumer has subscribed to what was dropped"
        if self.lanes_lost:
            text += f"; another relay took {self.lanes_lost} {'lane' if self.lanes_lost == 1 else 'lanes'}"
        if self.lanes_waiting:
            text += f"; messages wait in {self.lanes_waiting} {'lane' if self.lanes_waiting == 1 else 'lanes'}"
        if self.waits_for:
            some = ", ".join(repr(route) for route in self.waits_for[:FEW_ROUTES])
            number = len(self.waits_for)
            text += f" for {number:,} {'route that is' if number == 1 else 'routes that are'} out: {some}"
        return text


class Relay:
    """Carries what is committed to one destination. It opens and closes the store and the publisher that it is given.

    Any number of relays may carry for one sink: they share its lanes, and one that dies is not missed. In a process
    that does other things too, `async with relay:` runs it in the background, and stops it at the end of the block.
    """

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        *,
        sink: str = "default",
        settings: RelaySettings | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`retry` decides when a refused message is tried again; unless given, it is a `Backoff` of the settings."""
        if not sink or not isinstance(sink, str):
            raise InvalidSetting(f"sink is {sink!r}; it must be a name")
        self._store = store
        self._publisher = publisher
        self._sink = sink
        self._listeners = Listeners()
        self._settings = settings or RelaySettings()
        self._clock = clock or Monotonic()
        self._retry = retry or Backoff(
            max_attempts=self._settings.max_attempts,
            max_backoff=timedelta(seconds=self._settings.seconds("max_backoff")),
        )
        self._wakeup = Wakeup(store.naps, sink, self._settings, self._listeners, clock=self._clock)
        self._lanes: list[Lane] = []
        self._past = _Counts()
        self._ownership: LaneOwnership | None = None
        self._started = asyncio.Event()
        self._background: asyncio.Task[Summary] | None = None
        longest = self._settings.seconds("outage_backoff")
        self._breaker = Breaker(sink, publisher, longest=longest, clock=self._clock)
        self._stopping = asyncio.Event()

    async def run(self) -> Summary:
        """Carry messages until `stop` is called. While other relays have all lanes, stand by."""
        return await self._run(until_empty=False)

    async def run_until_empty(self) -> Summary:
        """Carry all that is committed in the lanes that no other relay has, and end.

        Raises BrokerUnavailable or StoreUnavailable when one of them is out for longer than `until_empty_timeout`.
        """
        return await self._run(until_empty=True)

    def stop(self) -> None:
        """Take no new page, wait for the confirms under way, save what is known, and end. For good: make another relay
        to go on. To be called in the event loop's thread, as by `loop.add_signal_handler`.
        """
        self._stopping.set()
        self._breaker.stop()
        if self._ownership is not None:
            self._ownership.stop()
        for lane in self._lanes:
            self._stop_lane(lane)

    def _stop_lane(self, lane: Lane) -> None:
        lane.stop()
        asyncio.get_running_loop().call_later(self._settings.seconds("grace"), lane.give_up)

    async def __aenter__(self) -> Self:
        """Run in the background. Raises what keeps it from starting; a database or a broker that can't be reached yet
        is waited for in the background.
        """
        self._background = asyncio.create_task(self.run(), name=f"postroad relay {self._sink}")
        started = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait((self._background, started), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._cancel_background()
            raise
        finally:
            started.cancel()
        if self._background.done():
            self._background.result()
        self._background.add_done_callback(self._tell_failure)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop. Raises what has ended the relay before its time, unless the block raises something itself."""
        assert self._background is not None  # noqa: S101 - __aenter__ made it
        if not self._background.done():
            self.stop()
        try:
            await asyncio.wait((self._background,))
        except asyncio.CancelledError:
            await self._cancel_background()
            raise
        if kind is None:
            self._background.result()

    async def _cancel_background(self) -> None:
        assert self._background is not None  # noqa: S101 - __aenter__ made it
        self._background.cancel()
        await asyncio.wait((self._background,))

    def _tell_failure(self, background: asyncio.Task[Summary]) -> None:
        if not background.cancelled() and (error := background.exception()) is not None:
            tell(events.RelayFailed(self._sink, reason=repr(error)))

    def wake(self) -> None:
        """Look for messages now: for an application in the same process, after its commit. From any thread.

        An addition, which saves the database's way of telling; nothing depends on it.
        """
        self._wakeup.wake()

    async def _run(self, *, until_empty: bool) -> Summary:
        began = time.monotonic()
        keep_large_blocks()
        try:
            if await self._reach_store(until_empty=until_empty):
                async with reporting_blockers(self._store, self._listeners):
                    await self._serve(until_empty=until_empty)
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # what ends one lane for good ends all, and one error says it
        finally:
            await self._breaker.end()
            if self._ownership is not None:
                await self._ownership.deregister()
            await self._publisher.close()
            await self._store.close()
        summary = self._summary(time.monotonic() - began)
        tell(_ended(self._sink, summary))
        if self._breaker.given_up is not None:
            raise self._breaker.given_up
        return summary

    async def _serve(self, *, until_empty: bool) -> None:
        await self._store.leases.create(
            self._sink, self._publisher.destination, lanes=self._settings.lanes, start=self._settings.start
        )
        tell(events.RelayStarted(self._sink, to=self._publisher.name))
        if until_empty:
            self._breaker.limit(self._settings.seconds("until_empty_timeout"), self.stop)
        await self._open_publisher(wait=until_empty)
        with reporting(self._sink, self._counts, every=self._settings.seconds("report_interval")):
            await self._carry(until_empty=until_empty)
        await self._wakeup.end_naps()

    async def _reach_store(self, *, until_empty: bool) -> bool:
        """Open the store, and wait for a database that is starting; False when the relay was stopped meanwhile."""

        def waits(reason: str, waited: float) -> None:
            tell(events.StoreUnavailableAtStart(self._sink, reason=reason, waited_s=waited))
            self._started.set()  # an application that waited at its start could not be stopped by a signal

        return await reached(
            self._store.open,
            waits,
            stopping=self._stopping,
            limit=self._settings.seconds("until_empty_timeout") if until_empty else None,
        )

    async def _carry(self, *, until_empty: bool) -> None:
        scheduled = Scheduled(
            self._store, wakeup=self._wakeup, longest_pause=self._settings.seconds("outage_backoff"), clock=self._clock
        )
        if until_empty:
            await scheduled.run_once()
        # The owner is made now and not before, because the process may have been forked since.
        identity = RelayIdentity(
            new_id(), self._sink, socket.gethostname(), os.getpid(), __version__, self._publisher.destination
        )
        ownership = self._ownership = LaneOwnership(self._store.leases, identity, self._settings, self._listeners)
        if self._stopping.is_set():
            ownership.stop()
        async with asyncio.TaskGroup() as group:
            chores = (
                []
                if until_empty
                else [self._wakeup.run(identity.owner, ownership), scheduled.run(), self._retention().run()]
            )
            beside = [group.create_task(chore) for chore in chores]
            await ownership.run(
                lambda owned: self._start_lane(group, ownership, owned, until_empty=until_empty),
                on_started=self._started.set,
                until_empty=until_empty,
            )
            for task in beside:
                task.cancel()

    def _retention(self) -> Retention:
        return Retention(
            self._store,
            retain=timedelta(seconds=self._settings.seconds("retain")),
            interval=self._settings.seconds("cleanup_interval"),
            longest_pause=self._settings.seconds("outage_backoff"),
        )

    def _start_lane(
        self, group: asyncio.TaskGroup, ownership: LaneOwnership, owned: OwnedLane, *, until_empty: bool
    ) -> Callable[[], None]:
        rest = self._wakeup.add_lane(owned)
        lane = self._lane(owned, rest)
        self._lanes.append(lane)
        if self._stopping.is_set():
            self._stop_lane(lane)
        group.create_task(self._run_lane(lane, rest, ownership, owned, until_empty=until_empty))
        return partial(self._stop_lane, lane)

    def _lane(self, owned: OwnedLane, rest: IdleWait) -> Lane:
        return Lane(
            self._store,
            self._publisher,
            owned,
            self._settings,
            rest=rest,
            breaker=self._breaker,
            retry=self._retry,
            clock=self._clock,
        )

    async def _run_lane(
        self, lane: Lane, rest: IdleWait, ownership: LaneOwnership, owned: OwnedLane, *, until_empty: bool
    ) -> None:
        await lane.run(until_empty=until_empty)
        self._wakeup.remove_lane(rest)
        self._lanes.remove(lane)
        self._past.add(lane)
        await ownership.release(owned)

    async def _open_publisher(self, *, wait: bool) -> None:
        try:
            await self._unless_stopped(self._publisher.open())
        except BrokerUnavailable as outage:
            if isinstance(outage, LoginRefused):
                raise  # only now: a relay that has run waits until its login is right again, as in any outage
            tell(events.BrokerUnavailableAtStart(self._sink, reason=str(outage)))
            if wait:
                self._breaker.trip(outage)
                await self._breaker.closed(asyncio.Event())

    async def _unless_stopped(self, opening: Coroutine[Any, Any, None]) -> None:
        """A broker, or the database of handlers in this process, may take a connection and say nothing."""
        task, stopped = asyncio.create_task(opening), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(task, stopped, seconds=LAST_SECONDS)
        if task.done() and not (task.cancelled() and self._stopping.is_set()):
            task.result()

    def _counts(self) -> tuple[int, int]:
        """How many messages, and in how many pages, so far."""
        every: list[Lane | _Counts] = [self._past, *self._lanes]
        return sum(each.published for each in every), sum(each.pages for each in every)

    def _summary(self, seconds: float) -> Summary:
        for lane in self._lanes:
            self._past.add(lane)
        return Summary(
            published=self._past.published,
            pages=self._past.pages,
            seconds=seconds,
            refused=self._past.refused,
            died=self._past.died,
            skipped=self._past.skipped,
            lanes_lost=self._past.lost,
            lanes_waiting=self._past.waiting,
            dropped=self._past.dropped,
            waits_for=sorted(self._past.waits_for),
        )


class _Counts(msgspec.Struct):
    """What lanes that have ended have done."""

    published: int = 0
    pages: int = 0
    refused: int = 0
    died: int = 0
    lost: int = 0
    skipped: int = 0
    waiting: int = 0
    dropped: int = 0
    waits_for: set[str] = msgspec.field(default_factory=set)

    def add(self, lane: Lane) -> None:
        self.published += lane.published
        self.pages += lane.pages
        self.refused += lane.refused
        self.died += lane.died
        self.lost += lane.lost
        self.skipped += lane.skipped
        self.waiting += lane.waits
        self.dropped += lane.dropped
        self.waits_for |= set(lane.waits_for)


def _ended(sink: str, summary: Summary) -> events.RelayEnded:
    return events.RelayEnded(
        sink,
        published=summary.published,
        pages=summary.pages,
        refused=summary.refused,
        died=summary.died,
        skipped=summary.skipped,
        dropped=summary.dropped,
        lanes_lost=summary.lanes_lost,
        duration_ms=summary.seconds * 1000,
    )
