"""The relay: owns a share of the lanes of one sink, and runs them side by side."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from postroad import events
from postroad.config import RelaySettings
from postroad.errors import BrokerUnavailable, InvalidSetting, LoginRefused
from postroad.heap import keep_large_blocks
from postroad.listeners import Listeners
from postroad.message import new_id
from postroad.relay.blockers import reporting_blockers
from postroad.relay.breaker import Breaker
from postroad.relay.clock import Monotonic
from postroad.relay.convoy import Convoy
from postroad.relay.lane import Lane
from postroad.relay.maintenance import Retention, reporting
from postroad.relay.ownership import LaneOwnership
from postroad.relay.scheduled import Scheduled
from postroad.relay.summary import Summary, Totals
from postroad.relay.wakeup import Wakeup
from postroad.retry import Backoff
from postroad.stores.leases import RelayIdentity
from postroad.version import __version__
from postroad.waiting import cancel_and_wait, connect_or_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from postroad.brokers.base import Publisher
    from postroad.listeners import Listener
    from postroad.relay.clock import Clock
    from postroad.relay.idle import IdleWait
    from postroad.relay.owned_lane import OwnedLane
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Store

__all__ = ["Relay"]

LAST_SECONDS: Final = 1.0
"""How long a relay that ends waits for a publisher that was being opened, after it was cancelled."""


class Relay:
    """Publishes committed messages to one destination. It opens and closes the store and the publisher it is given.

    Any number of relays may serve one sink: they share its lanes, and the others take over the lanes of one that dies.
    In a process that does other things too, `async with relay:` runs it in the background, and stops it at the end of
    the block.
    """

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        *,
        sink: str = "default",
        settings: RelaySettings | None = None,
        retry: RetryPolicy | None = None,
        listeners: Iterable[Listener] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`retry` decides when a refused message is retried; unless given, it is a `Backoff` with the settings' limits.

        `listeners` get the relay's events; unless given, they are logged. To log them too, pass a `LogListener` along.
        """
        if not sink or not isinstance(sink, str):
            raise InvalidSetting(f"sink is {sink!r}; it must be a name")
        self._store = store
        self._publisher = publisher
        self._sink = sink
        self._settings = settings or RelaySettings()
        self._listeners = Listeners(listeners)
        self._clock = clock or Monotonic()
        self._retry = retry or Backoff(
            max_attempts=self._settings.max_attempts,
            max_backoff=timedelta(seconds=self._settings.seconds("max_backoff")),
        )
        self._wakeup = Wakeup(store.naps, sink, self._settings, self._listeners, clock=self._clock)
        self._convoy = Convoy(store, clock=self._clock)
        self._lanes: list[Lane] = []
        self._totals = Totals()
        self._ownership: LaneOwnership | None = None
        self._started = asyncio.Event()
        self._background: asyncio.Task[Summary] | None = None
        longest = self._settings.seconds("outage_backoff")
        self._breaker = Breaker(sink, publisher, self._listeners, longest=longest, clock=self._clock)
        self._stopping = asyncio.Event()

    async def run(self) -> Summary:
        """Publish messages until `stop` is called. While other relays own all lanes, stand by."""
        return await self._run(until_empty=False)

    async def run_until_empty(self) -> Summary:
        """Publish every committed message in the lanes that no other relay owns, and end.

        Raises BrokerUnavailable or StoreUnavailable when that is unavailable for longer than `until_empty_timeout`.
        """
        return await self._run(until_empty=True)

    def stop(self) -> None:
        """Begin no new page, wait for outstanding confirms, save the cursors, and end. A relay can't be started again:
        make another one. Call this in the event loop's thread, as `loop.add_signal_handler` does.
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
        """Run in the background. Raises what keeps it from starting; for a database or a broker that can't be reached
        yet it waits in the background.
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
        self._background.add_done_callback(self._report_failure)
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

    def _report_failure(self, background: asyncio.Task[Summary]) -> None:
        if not background.cancelled() and (error := background.exception()) is not None:
            self._listeners.emit(events.RelayFailed(self._sink, reason=repr(error)))

    def wake(self) -> None:
        """Look for messages now: for an application in the same process, after its commit. From any thread.

        That saves the time of the database's notification; nothing depends on it.
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
            raise several.exceptions[0] from None  # an error that ends one lane ends the relay
        finally:
            await self._breaker.end()
            await self._convoy.close()
            if self._ownership is not None:
                await self._ownership.deregister()
            await self._publisher.close()
            await self._store.close()
        for lane in self._lanes:
            self._totals.add(lane)
        summary = self._totals.summary(time.monotonic() - began)
        self._listeners.emit(_ended(self._sink, summary))
        if self._breaker.given_up is not None:
            raise self._breaker.given_up
        return summary

    async def _serve(self, *, until_empty: bool) -> None:
        await self._store.leases.create(
            self._sink, self._publisher.destination, lanes=self._settings.lanes, start=self._settings.start
        )
        self._listeners.emit(events.RelayStarted(self._sink, to=self._publisher.name))
        if until_empty:
            self._breaker.limit(self._settings.seconds("until_empty_timeout"), self.stop)
        await self._open_publisher(wait=until_empty)
        every = self._settings.seconds("report_interval")
        with reporting(self._sink, self._published, self._listeners, every=every):
            await self._run_lanes(until_empty=until_empty)
        await self._wakeup.end_naps()

    async def _reach_store(self, *, until_empty: bool) -> bool:
        """Open the store, and wait for a database that is starting; False when the relay was stopped meanwhile."""

        def waits(reason: str, waited: float) -> None:
            self._listeners.emit(events.StoreUnavailableAtStart(self._sink, reason=reason, waited_s=waited))
            self._started.set()  # an application that waited at its start could not be stopped by a signal

        return await connect_or_wait(
            self._store.open,
            waits,
            stopping=self._stopping,
            limit=self._settings.seconds("until_empty_timeout") if until_empty else None,
        )

    async def _run_lanes(self, *, until_empty: bool) -> None:
        scheduled = Scheduled(
            self._store,
            wakeup=self._wakeup,
            longest_pause=self._settings.seconds("outage_backoff"),
            listeners=self._listeners,
            clock=self._clock,
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
            listeners=self._listeners,
        )

    def _start_lane(
        self, group: asyncio.TaskGroup, ownership: LaneOwnership, owned: OwnedLane, *, until_empty: bool
    ) -> Callable[[], None]:
        idle = self._wakeup.add_lane(owned)
        lane = self._lane(owned, idle)
        self._lanes.append(lane)
        self._convoy.add(owned.lease.lane)
        if self._stopping.is_set():
            self._stop_lane(lane)
        group.create_task(self._run_lane(lane, idle, ownership, owned, until_empty=until_empty))
        return partial(self._stop_lane, lane)

    def _lane(self, owned: OwnedLane, idle: IdleWait) -> Lane:
        return Lane(
            self._store,
            owned,
            self._settings,
            convoy=self._convoy,
            idle=idle,
            breaker=self._breaker,
            retry=self._retry,
            listeners=self._listeners,
            clock=self._clock,
        )

    async def _run_lane(
        self, lane: Lane, idle: IdleWait, ownership: LaneOwnership, owned: OwnedLane, *, until_empty: bool
    ) -> None:
        await lane.run(until_empty=until_empty)
        self._wakeup.remove_lane(idle)
        self._lanes.remove(lane)
        self._convoy.remove(owned.lease.lane)
        self._totals.add(lane)
        await ownership.release(owned)

    async def _open_publisher(self, *, wait: bool) -> None:
        try:
            await self._unless_stopped(self._publisher.open())
        except BrokerUnavailable as outage:
            if isinstance(outage, LoginRefused):
                raise  # only now: a relay that has run waits until its login is right again, as in any outage
            self._listeners.emit(events.BrokerUnavailableAtStart(self._sink, reason=str(outage)))
            if wait:
                self._breaker.trip(outage)
                await self._breaker.wait_closed(asyncio.Event())

    async def _unless_stopped(self, opening: Coroutine[Any, Any, None]) -> None:
        """Open the publisher. A broker, or the database of handlers in this process, may accept a connection and never
        answer, so a relay that is stopped does not wait for it.
        """
        task, stopped = asyncio.create_task(opening), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(task, stopped, seconds=LAST_SECONDS)
        if task.done() and not (task.cancelled() and self._stopping.is_set()):
            task.result()

    def _published(self) -> tuple[int, int]:
        """How many messages, and in how many pages, so far."""
        every = [self._totals.counts, *(lane.counts for lane in self._lanes)]
        return sum(each.published for each in every), sum(each.pages for each in every)


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
