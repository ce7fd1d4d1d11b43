"""The relay: take the lanes of one sink and run them side by side."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from postroad import events
from postroad.config import RelaySettings
from postroad.errors import BrokerUnavailable, InvalidSetting
from postroad.events import tell
from postroad.message import new_id
from postroad.relay.breaker import Breaker
from postroad.relay.clock import Monotonic
from postroad.relay.lane import Lane
from postroad.relay.maintenance import Retention, reporting
from postroad.relay.scheduled import Scheduled
from postroad.relay.wakeup import Wakeup
from postroad.retry import Backoff

if TYPE_CHECKING:
    from postroad.brokers.base import Publisher
    from postroad.relay.clock import Clock
    from postroad.retry import RetryPolicy
    from postroad.stores.base import Store

__all__ = ["Relay", "Summary"]


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

    def __str__(self) -> str:
        rate = f" ({self.published / self.seconds:,.0f}/s)" if self.seconds > 0 and self.published else ""
        text = f"published {self.published:,} messages in {self.seconds:.2f} s{rate}"
        if self.refused:
            text += f"; {self.refused:,} attempts failed"
        if self.died:
            text += f"; {self.died:,} {'message is' if self.died == 1 else 'messages are'} dead"
        if self.skipped:
            text += f"; {self.skipped:,} {'was' if self.skipped == 1 else 'were'} skipped"
        if self.lanes_lost:
            text += f"; {self.lanes_lost} lanes were taken by another relay"
        if self.lanes_waiting:
            text += f"; in {self.lanes_waiting} lanes messages wait"
        return text


class Relay:
    """Carries what is committed to one destination. It opens and closes the store and the publisher that it is given.

    The newest relay of a sink takes its lanes; an older one finds out at its next write and leaves them alone.
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
        self._settings = settings or RelaySettings()
        self._clock = clock or Monotonic()
        self._retry = retry or Backoff(
            max_attempts=self._settings.max_attempts,
            max_backoff=timedelta(seconds=self._settings.seconds("max_backoff")),
        )
        self._wakeup = Wakeup(store.naps, sink, self._settings, clock=self._clock)
        self._lanes: list[Lane] = []
        longest = self._settings.seconds("outage_backoff")
        self._breaker = Breaker(sink, publisher, longest=longest, clock=self._clock)
        self._stopped = False

    async def run(self) -> Summary:
        """Carry messages until `stop` is called, or until another relay has taken all lanes."""
        return await self._run(until_empty=False)

    async def run_until_empty(self) -> Summary:
        """Carry all that is committed, and end."""
        return await self._run(until_empty=True)

    def stop(self) -> None:
        """Take no new page, wait for the confirms under way, save what is known, and end. For good: make another relay
        to go on. To be called in the event loop's thread, as by `loop.add_signal_handler`.
        """
        self._stopped = True
        grace = self._settings.seconds("grace")
        self._breaker.stop()
        for lane in self._lanes:
            lane.stop()
            asyncio.get_running_loop().call_later(grace, lane.give_up)

    def wake(self) -> None:
        """Look for messages now: for an application in the same process, after its commit. From any thread.

        An addition, which saves the database's way of telling; nothing depends on it.
        """
        self._wakeup.wake()

    async def _run(self, *, until_empty: bool) -> Summary:
        began = time.monotonic()
        try:
            await self._store.open()
            tell(events.RelayStarted(self._sink, to=self._publisher.name))
            await self._open_publisher(must_work=until_empty)
            await self._take_lanes()
            with reporting(self._sink, self._lanes, every=self._settings.seconds("report_interval")):
                await self._carry(until_empty=until_empty)
            await self._wakeup.end_naps()
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # what ends one lane for good ends all, and one error says it
        finally:
            await self._breaker.end()
            await self._publisher.close()
            await self._store.close()
        summary = self._summary(time.monotonic() - began)
        tell(_ended(self._sink, summary))
        return summary

    async def _carry(self, *, until_empty: bool) -> None:
        scheduled = Scheduled(
            self._store, wakeup=self._wakeup, longest_pause=self._settings.seconds("outage_backoff"), clock=self._clock
        )
        if until_empty:
            await scheduled.run_once()
        async with asyncio.TaskGroup() as group:
            lanes = [group.create_task(lane.run(until_empty=until_empty)) for lane in self._lanes]
            if not until_empty:
                chores = [self._wakeup.run(), scheduled.run(), self._retention().run()]
                beside = [group.create_task(chore) for chore in chores]
                await asyncio.wait(lanes)
                for task in beside:
                    task.cancel()

    def _retention(self) -> Retention:
        return Retention(
            self._store,
            retain=timedelta(seconds=self._settings.seconds("retain")),
            interval=self._settings.seconds("cleanup_interval"),
            longest_pause=self._settings.seconds("outage_backoff"),
        )

    async def _open_publisher(self, *, must_work: bool) -> None:
        try:
            await self._publisher.open()
        except BrokerUnavailable as outage:
            if must_work:
                raise
            tell(events.BrokerOutAtStart(self._sink, reason=str(outage)))

    async def _take_lanes(self) -> None:
        wanted = self._settings.lanes
        owner = new_id()
        leases = await self._store.take_lanes(self._sink, owner, lanes=wanted, start=self._settings.start)
        if len(leases) != wanted:
            tell(events.LanesDiffer(self._sink, wanted=wanted, lanes=len(leases)))
        self._lanes = [
            Lane(
                self._store,
                self._publisher,
                lease,
                self._settings,
                rest=self._wakeup.rest(lease),
                breaker=self._breaker,
                retry=self._retry,
                clock=self._clock,
            )
            for lease in leases
        ]
        epochs = [lease.epoch for lease in leases]
        tell(events.LanesTaken(self._sink, owner=owner, lanes=len(leases), epochs=epochs))
        if self._stopped:
            self.stop()

    def _summary(self, seconds: float) -> Summary:
        return Summary(
            published=sum(lane.published for lane in self._lanes),
            pages=sum(lane.pages for lane in self._lanes),
            seconds=seconds,
            refused=sum(lane.refused for lane in self._lanes),
            died=sum(lane.died for lane in self._lanes),
            skipped=sum(lane.skipped for lane in self._lanes),
            lanes_lost=sum(lane.lost for lane in self._lanes),
            lanes_waiting=sum(lane.waits for lane in self._lanes),
        )


def _ended(sink: str, summary: Summary) -> events.RelayEnded:
    return events.RelayEnded(
        sink,
        published=summary.published,
        pages=summary.pages,
        refused=summary.refused,
        died=summary.died,
        skipped=summary.skipped,
        lanes_lost=summary.lanes_lost,
        duration_ms=summary.seconds * 1000,
    )
