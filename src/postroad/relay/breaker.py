"""One breaker per sink: while the broker is out all lanes stand still, and one probe asks whether it is back.

An outage is nobody's fault: no message is counted an attempt for it. The probe is `Publisher.open`, not a message,
because a message may be what broke the connection.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import BrokerUnavailable
from postroad.listeners import tell
from postroad.relay.exclusion import SharedExclusiveLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.brokers.base import Publisher
    from postroad.relay.clock import Clock

__all__ = ["FIRST_PAUSE", "Breaker"]

FIRST_PAUSE: Final = 0.05


class Breaker:
    """Closed while the broker answers. Pauses between probes double up to `longest`, with jitter."""

    def __init__(self, sink: str, publisher: Publisher, *, longest: float, clock: Clock) -> None:
        self._sink = sink
        self._publisher = publisher
        self._longest = longest
        self._clock = clock
        self._first = self._pause = min(FIRST_PAUSE, longest)
        self._outages = 0
        self._out_since = 0.0
        self._limit = float("inf")
        self._on_given_up: Callable[[], None] = lambda: None
        self.given_up: BrokerUnavailable | None = None
        """The broker was out for longer than the limit: what to tell the caller."""
        self._closed = asyncio.Event()
        self._closed.set()
        self._stopping = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None
        self.turns = SharedExclusiveLock()

    def limit(self, seconds: float, given_up: Callable[[], None]) -> None:
        """Wait no longer than that for a broker that is out; then `given_up` is called, once."""
        self._limit, self._on_given_up = seconds, given_up

    @property
    def is_open(self) -> bool:
        """The broker is out, as far as is known."""
        return not self._closed.is_set()

    async def closed(self, stopping: asyncio.Event) -> None:
        """Wait until the broker may be asked again, or until the relay, or the one who waits, is being stopped."""
        waiting = [asyncio.create_task(event.wait()) for event in (self._closed, stopping)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def trip(self, outage: BrokerUnavailable) -> None:
        """A call failed. The first of several that fail together opens the breaker."""
        if self.is_open or self._stopping.is_set():
            return
        self._closed.clear()
        if not self._outages:
            self._out_since = self._clock.now()
        self._probing = asyncio.create_task(self._probe(outage), name=f"postroad probe of sink {self._sink}")

    def worked(self) -> None:
        """The broker has confirmed something: whatever comes is another outage."""
        if self._outages:
            tell(events.BrokerRecovered(self._sink, probes=self._outages))
            self._outages = 0
            self._pause = self._first

    def stop(self) -> None:
        """Nobody waits any more."""
        self._stopping.set()
        self._closed.set()

    async def end(self) -> None:
        """Leave no probe behind."""
        self.stop()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait((self._probing,))

    async def _probe(self, outage: BrokerUnavailable) -> None:
        while not self._stopping.is_set():
            left = self._limit - (self._clock.now() - self._out_since)
            if left <= 0:
                return self._give_up(outage)
            pause = min(left, self._pause * random.uniform(0.75, 1))  # noqa: S311 - many relays must not come at once
            self._outages += 1
            self._pause = min(2 * self._pause, self._longest)
            tell(events.BrokerUnavailable(self._sink, reason=str(outage), retry_ms=pause * 1000))
            await self._clock.wait(self._stopping, pause)
            if self._stopping.is_set():
                return None
            try:
                await self._publisher.open()
            except BrokerUnavailable as still:
                outage = still
            except Exception as error:
                outage = BrokerUnavailable(f"the publisher could not be opened: {error!r}")
            else:
                self._closed.set()
                return None
        return None

    def _give_up(self, outage: BrokerUnavailable) -> None:
        self.given_up = BrokerUnavailable(
            f"gave up after waiting {self._limit:g} s (until_empty_timeout) for the broker: {outage}"
        )
        self._on_given_up()
