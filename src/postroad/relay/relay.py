"""The relay: owns a share of the lanes of one sink, and runs them side by side."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace
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
from postroad.relay.epochs import EpochPublisher
from postroad.relay.following import FollowingLane
from postroad.relay.grouping import FEWEST, FEWEST_FILTERED
from postroad.relay.lane import Lane
from postroad.relay.maintenance import Retention, reporting
from postroad.relay.ownership import LaneOwnership
from postroad.relay.scheduled import Scheduled
from postroad.relay.stats import RelayStats, counted, knows_broker
from postroad.relay.store_outages import StoreOutages
from postroad.relay.summary import Summary, Totals
from postroad.relay.wakeup import Wakeup
from postroad.retry import Backoff
from postroad.sink_filter import EVERYTHING
from postroad.stores.leases import RelayIdentity
from postroad.trace_context import context_without_span
from postroad.version import __version__
from postroad.waiting import cancel_and_wait, connect_or_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from postroad.brokers.base import Publisher
    from postroad.listeners import Listener
    from postroad.otel import Tracing
    from postroad.relay.clock import Clock
    from postroad.relay.idle import IdleWait
    from postroad.relay.owned_lane import OwnedLane
    from postroad.relay.stats import Phase
    from postroad.retry import RetryPolicy
    from postroad.sink_filter import SinkFilter
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
        filter: SinkFilter | None = None,
        settings: RelaySettings | None = None,
        retry: RetryPolicy | None = None,
        listeners: Iterable[Listener] | None = None,
        tracing: Tracing | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`filter` says which messages the sink takes; unless given, all. The sink keeps the filter of its first relay,
        and a relay with another one is refused.

        `retry` decides when a refused message is retried; unless given, it is a `Backoff` with the settings' limits.

        `listeners` get the relay's events; unless given, they are logged. To log them too, pass a `LogListener` along.
        `tracing` makes spans of OpenTelemetry, see `postroad.otel`.
        """
        if not sink or not isinstance(sink, str):
            raise InvalidSetting(f"sink is {sink!r}; it must be a name")
        self._store = store
        self._publisher = publisher
        self._sink = sink
        self._filter = filter or EVERYTHING
        self._slot: str | None = getattr(publisher, "slot", None)
        self._settings = settings or RelaySettings()
        if self._settings.dead_letter_sink == sink:
            raise InvalidSetting(
                f"dead_letter_sink is {sink!r}, which is the sink itself; it must be another sink",
                settings=("dead_letter_sink",),
            )
        if self._slot is not None:
            self._settings = replace(self._settings, lanes=1)  # one cursor says how far the slot's reader has come
        self._listeners = Listeners(listeners)
        self._clock = clock or Monotonic()
        self._retry = retry or Backoff(
            max_attempts=self._settings.max_attempts,
            max_backoff=timedelta(seconds=self._settings.seconds("max_backoff")),
        )
        self._wakeup = Wakeup(store.naps, sink, self._settings, self._listeners, clock=self._clock)
        self._convoy = Convoy(
            store, clock=self._clock, fewest=FEWEST if self._filter == EVERYTHING else FEWEST_FILTERED
        )
        self._lanes: list[Lane] = []
        self._totals = Totals()
        self._ownership: LaneOwnership | None = None
        self._started = asyncio.Event()
        self._background: asyncio.Task[Summary] | None = None
        longest = self._settings.seconds("outage_backoff")
        self._breaker = Breaker(sink, publisher, self._listeners, longest=longest, clock=self._clock, tracing=tracing)
        self._outages = StoreOutages(sink, self._listeners, self._clock)
        self._stopping = asyncio.Event()
        self._phase: Phase = "starting"
        self._listeners.attach(self)

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
        name = f"postroad relay {self._sink}"
        self._background = asyncio.create_task(self.run(), name=name, context=context_without_span())
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
            self._listeners.emit(events.RelayFailed(self._sink, reason=repr(error)).caused_by(error))

    def stats(self) -> RelayStats:
        """What the relay has done and knows at this moment. From any thread, at any time."""
        done = counted(self._totals, self._lanes)
        runs = self._phase == "running"
        return RelayStats(
            sink=self._sink,
            phase="draining" if runs and self._stopping.is_set() else self._phase,
            by_lane=done.by_lane,
            refusal_causes=done.refusal_causes,
            lanes_lost=done.lanes_lost,
            lanes=0 if self._ownership is None else self._ownership.lanes,
            broker_up=knows_broker(self._breaker, done.by_lane),
            listening=self._wakeup.listen_works if runs and self._settings.wakeup == "notify" else None,
            routes_blocked=done.routes_blocked,
            lease_remaining=None if self._ownership is None else self._ownership.lease_remaining,
        )

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
            self._phase = "failed"
            raise several.exceptions[0] from None  # an error that ends one lane ends the relay
        except BaseException as error:
            self._phase = "ended" if isinstance(error, asyncio.CancelledError) else "failed"
            raise
        finally:
            await self._breaker.end()
            await self._convoy.close()
            if self._ownership is not None:
                await self._ownership.deregister()
            await self._publisher.close()
            await self._store.close()
        while self._lanes:
            self._totals.add(self._lanes.pop())
        self._phase = "ended" if self._breaker.given_up is None else "failed"
        summary = self._totals.summary(time.monotonic() - began)
        self._listeners.emit(_ended(self._sink, summary))
        if self._breaker.given_up is not None:
            raise self._breaker.given_up
        return summary

    async def create_sink(self) -> None:
        """Create the sink, or compare it with this relay's destination and filter, and publish nothing.

        Raises InvalidSetting if these differ, and what `Store.open` raises. The relay can be run afterwards.
        """
        await self._store.open()
        try:
            await self._create_sink()
        finally:
            await self._store.close()

    async def _create_sink(self) -> None:
        if self._slot is not None and self._store.replication is None:
            raise InvalidSetting(
                f"to is slot://{self._slot}; only PostgreSQL has replication slots, and this database is another one",
                settings=("to",),
            )
        if self._slot is not None and self._filter != EVERYTHING:
            raise InvalidSetting(
                f"to is slot://{self._slot}, whose reader carries every message: it can't have a filter"
            )
        await self._store.leases.create(
            self._sink,
            self._publisher.destination,
            lanes=self._settings.lanes,
            start=self._settings.start,
            filter=self._filter,
        )

    async def check_dead_letter_sink(self) -> None:
        """Raises InvalidSetting if `dead_letter_sink` names a sink that is not there, or that no relay publishes for;
        and what `Store.open` raises. The relay can be run afterwards.
        """
        await self._store.open()
        try:
            await self._check_dead_letter_sink()
        finally:
            await self._store.close()

    async def _check_dead_letter_sink(self) -> None:
        other = self._settings.dead_letter_sink
        if other is not None and not await self._store.copies.is_sink(other):
            raise InvalidSetting(
                f"dead_letter_sink is {other!r}, and the database has no such sink, or one that follows a replication "
                "slot; it must be a sink that a relay publishes for, and that was started before, or is served by the "
                "same process; `postroad sink list` lists all",
                settings=("dead_letter_sink",),
            )

    async def _serve(self, *, until_empty: bool) -> None:
        await self._create_sink()
        await self._check_dead_letter_sink()
        self._phase = "running"
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
            outages=self._outages,
            clock=self._clock,
        )
        if until_empty:
            await scheduled.run_once()
        # The owner is made now and not before, because the process may have been forked since.
        identity = RelayIdentity(
            new_id(),
            self._sink,
            socket.gethostname(),
            os.getpid(),
            __version__,
            self._publisher.destination,
            self._filter.text,
        )
        ownership = self._ownership = LaneOwnership(
            self._store.leases, identity, self._settings, self._listeners, outages=self._outages
        )
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
            outages=self._outages,
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
        kind: Callable[..., Lane] = Lane
        if self._slot is not None and self._store.replication is not None:
            kind = partial(FollowingLane, slot=self._slot, replication=self._store.replication)
        return kind(
            self._store,
            owned,
            self._settings,
            convoy=self._convoy,
            idle=idle,
            breaker=self._breaker,
            epochs=EpochPublisher(self._publisher, owned.lease, self._listeners),
            retry=self._retry,
            listeners=self._listeners,
            outages=self._outages,
            clock=self._clock,
        )

    async def _run_lane(
        self, lane: Lane, idle: IdleWait, ownership: LaneOwnership, owned: OwnedLane, *, until_empty: bool
    ) -> None:
        try:
            await lane.run(until_empty=until_empty)
        finally:
            await lane.close()
        self._wakeup.remove_lane(idle)
        self._lanes.remove(lane)
        self._convoy.remove(owned.lease.lane)
        self._totals.add(lane)
        await ownership.release(owned)

    async def _open_publisher(self, *, wait: bool) -> None:
        try:
            await self._unless_stopped(self._breaker.open())
        except BrokerUnavailable as outage:
            if isinstance(outage, LoginRefused):
                raise  # only now: a relay that has run waits until its login is right again, as in any outage
            self._breaker.was_reached = False
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
