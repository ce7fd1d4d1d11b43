"""The circuit breaker of a relay: every call of the publisher goes through it. While the broker is unavailable, all
lanes wait and one task probes it.

An outage counts no attempt for any message. The probe is `Publisher.open`, not a message, because a message may be
what broke the connection.

All lanes share the broker's connection. When a message breaks it, every call in progress fails, so none of them is
known to be the cause. A call with a suspected message is therefore made alone, while no other call is in progress.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.backoff import ExponentialBackoff
from postroad.brokers.base import Durability
from postroad.errors import BrokerUnavailable
from postroad.outage_reports import OutageReports
from postroad.relay.outcome import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.brokers.base import Publisher
    from postroad.errors import Refusal
    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.otel import Tracing
    from postroad.relay.clock import Clock
    from postroad.relay.owned_lane import OwnedLane

__all__ = ["STOPPED_IN_OUTAGE", "Breaker"]

STOPPED_IN_OUTAGE: Final = "stopped in an outage; what was confirmed is saved"


class Breaker:
    """Closed while the broker answers, open in an outage. Probes back off exponentially, with jitter."""

    def __init__(
        self,
        sink: str,
        publisher: Publisher,
        listeners: Listeners,
        *,
        longest: float,
        clock: Clock,
        tracing: Tracing | None = None,
    ) -> None:
        """`longest` is how many seconds are between two probes at most."""
        self._sink = sink
        self._publisher = publisher
        self._listeners = listeners
        self._backoff = ExponentialBackoff(longest)
        self._clock = clock
        self._tracing = tracing
        self._reports = OutageReports()
        self._durability: Durability | None = None
        self.in_order = getattr(publisher, "in_order", False) is True
        self.is_open = False
        """The broker is unavailable, as far as is known."""
        self.was_reached = True
        """False when the broker could not be reached at the start, until a probe has reached it."""
        self.probes = 0
        """Probes since the broker last answered a call."""
        self.given_up: BrokerUnavailable | None = None
        """The error to raise to the caller, when the broker was unavailable for longer than the limit."""
        self._unavailable_since = 0.0
        self._limit = float("inf")
        self._on_given_up: Callable[[], None] = lambda: None
        self._calls = 0
        """Calls in progress."""
        self._no_calls = asyncio.Event()
        self._alone = asyncio.Lock()
        """Held by the call that is made alone, from before it waits for the others to end."""
        self._closed = asyncio.Event()
        self._closed.set()
        self._stopping = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None

    def limit(self, seconds: float, given_up: Callable[[], None]) -> None:
        """Wait no longer than that for an unavailable broker; then `given_up` is called, once."""
        self._limit, self._on_given_up = seconds, given_up

    async def open(self) -> None:
        """Open the publisher, and emit what a confirm means there, unless that is known."""
        durability = await self._publisher.open()
        # A publisher of the user's may return anything.
        if not isinstance(durability, Durability) or durability == self._durability:
            return
        self._durability = durability
        self._listeners.emit(events.DurabilityKnown(self._sink, meaning=durability.meaning))
        for warning in durability.warnings:
            self._listeners.emit(events.DurabilityWeak(self._sink, reason=warning))

    async def publish(
        self,
        messages: Sequence[StoredMessage],
        publisher: Publisher,
        owned: OwnedLane,
        stopping: asyncio.Event,
        *,
        alone: bool,
    ) -> Sequence[Refusal]:
        """Publish when the broker is available, through the sink's publisher or the lane's own; with `alone`, while no
        other call is in progress.

        Raises LeaseInDoubt in the last fifth of the lane's lease, Interrupted when `stopping` is set in an outage, and
        what the publisher raises. An outage opens the breaker.
        """
        if alone or self.is_open or self._alone.locked():
            await self._wait_turn(stopping, alone=alone)
        self._calls += 1
        try:
            owned.check()  # last: waiting may have taken long
            if self._tracing is None:
                refusals = await publisher.publish(messages)
            else:
                refusals = await self._tracing.publish(publisher, messages, self._sink)
        except BrokerUnavailable as outage:
            self.trip(outage)
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._no_calls.set()
            if alone:
                self._alone.release()
        if self.probes:
            self._recover()
        return refusals

    async def _wait_turn(self, stopping: asyncio.Event, *, alone: bool) -> None:
        while True:
            if self.is_open:
                await self.wait_closed(stopping)
            if alone:
                await self._alone.acquire()
                try:
                    while self._calls:
                        self._no_calls.clear()
                        await self._no_calls.wait()
                except asyncio.CancelledError:
                    self._alone.release()
                    raise
            else:
                while self._alone.locked():
                    async with self._alone:
                        pass
            if not self.is_open:
                return
            if alone:  # the breaker opened while this call waited for its turn
                self._alone.release()

    async def wait_closed(self, stopping: asyncio.Event) -> None:
        """Wait until the breaker is closed, or the relay is being stopped. Raises Interrupted if `stopping` is set."""
        waiting = [asyncio.create_task(event.wait()) for event in (self._closed, stopping)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if stopping.is_set():
            raise Interrupted(STOPPED_IN_OUTAGE)

    def _recover(self) -> None:
        """A call was answered."""
        if (outage := self._reports.worked(self._clock.now())) is not None:
            self._listeners.emit(events.BrokerRecovered(self._sink, probes=self.probes, waited_s=outage.seconds))
        self.probes = 0

    def trip(self, outage: BrokerUnavailable) -> None:
        """A call failed. The first of several that fail together opens the breaker."""
        if self.is_open or self._stopping.is_set():
            return
        self.is_open = True
        self._closed.clear()
        if not self.probes:
            self._unavailable_since = self._clock.now()
        self._probing = asyncio.create_task(self._probe(outage), name=f"postroad probe of sink {self._sink}")

    def stop(self) -> None:
        """Let all waiting lanes continue, and end."""
        self._stopping.set()
        self._close()

    async def end(self) -> None:
        """Stop, and cancel the probe."""
        self.stop()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait((self._probing,))

    def _close(self) -> None:
        self.is_open = False
        self._closed.set()

    async def _probe(self, outage: BrokerUnavailable) -> None:
        is_news = True  # a connection that worked was lost; that a probe fails is no news
        while not self._stopping.is_set():
            left = self._limit - (self._clock.now() - self._unavailable_since)
            if left <= 0:
                return self._give_up(outage)
            self.probes += 1
            jitter = random.uniform(0.75, 1)  # noqa: S311 - many relays must not probe at once
            pause = min(left, self._backoff.after(self.probes) * jitter)
            self._report(outage, pause, is_news=is_news)
            is_news = False
            await self._clock.wait(self._stopping, pause)
            if self._stopping.is_set():
                return None
            try:
                await self.open()
            except BrokerUnavailable as still:
                outage = still
            except Exception as error:
                outage = BrokerUnavailable(f"the publisher could not be opened: {error!r}")
            else:
                self.was_reached = True
                return self._close()
        return None

    def _report(self, outage: BrokerUnavailable, pause: float, *, is_news: bool) -> None:
        if (report := self._reports.failed(self._clock.now(), is_news=is_news)) is not None:
            self._listeners.emit(
                events.BrokerUnavailable(
                    self._sink,
                    reason=str(outage),
                    retry_ms=pause * 1000,
                    waited_s=report.seconds,
                    retries=report.retries,
                )
            )

    def _give_up(self, outage: BrokerUnavailable) -> None:
        self.given_up = BrokerUnavailable(
            f"gave up after waiting {self._limit:g} s (until_empty_timeout) for the broker: {outage}"
        )
        self._on_given_up()
