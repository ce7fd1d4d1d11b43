"""One circuit breaker per sink: while the broker is unavailable, all lanes wait and one task probes it.

An outage counts no attempt for any message. The probe is `Publisher.open`, not a message, because a message may be
what broke the connection.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from postroad import events
from postroad.backoff import ExponentialBackoff
from postroad.errors import BrokerUnavailable
from postroad.relay.exclusion import SharedExclusiveLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.brokers.base import Publisher
    from postroad.listeners import Listeners
    from postroad.relay.clock import Clock

__all__ = ["Breaker"]


class Breaker:
    """Closed while the broker answers, open in an outage. Probes back off exponentially, with jitter."""

    def __init__(self, sink: str, publisher: Publisher, listeners: Listeners, *, longest: float, clock: Clock) -> None:
        """`longest` is how many seconds are between two probes at most."""
        self._sink = sink
        self._publisher = publisher
        self._listeners = listeners
        self._backoff = ExponentialBackoff(longest)
        self._clock = clock
        self.is_open = False
        """The broker is unavailable, as far as is known."""
        self.failures = 0
        """How often the broker was unavailable since it last confirmed a message."""
        self.calls = SharedExclusiveLock()
        """Held during each call of the publisher."""
        self.given_up: BrokerUnavailable | None = None
        """The error to raise to the caller, when the broker was unavailable for longer than the limit."""
        self._unavailable_since = 0.0
        self._limit = float("inf")
        self._on_given_up: Callable[[], None] = lambda: None
        self._closed = asyncio.Event()
        self._closed.set()
        self._stopping = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None

    def limit(self, seconds: float, given_up: Callable[[], None]) -> None:
        """Wait no longer than that for an unavailable broker; then `given_up` is called, once."""
        self._limit, self._on_given_up = seconds, given_up

    async def wait_closed(self, stopping: asyncio.Event) -> None:
        """Wait until the breaker is closed, or until `stopping` is set, or the relay is being stopped."""
        waiting = [asyncio.create_task(event.wait()) for event in (self._closed, stopping)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def begin_call(self, stopping: asyncio.Event, *, alone: bool) -> bool:
        """Wait until the broker is available and this call has its turn, which `calls.end` ends; False, and no turn,
        when `stopping` was set in an outage.
        """
        while True:
            if self.is_open:
                await self.wait_closed(stopping)
                if stopping.is_set():
                    return False
            await self.calls.begin(alone=alone)
            if not self.is_open:
                return True
            self.calls.end(alone=alone)  # the breaker opened while this call waited for its turn

    def trip(self, outage: BrokerUnavailable) -> None:
        """A call failed. The first of several that fail together opens the breaker."""
        if self.is_open or self._stopping.is_set():
            return
        self.is_open = True
        self._closed.clear()
        if not self.failures:
            self._unavailable_since = self._clock.now()
        self._probing = asyncio.create_task(self._probe(outage), name=f"postroad probe of sink {self._sink}")

    def worked(self) -> None:
        """The broker has confirmed a message after an outage: the outage is over."""
        self._listeners.emit(events.BrokerRecovered(self._sink, probes=self.failures))
        self.failures = 0

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
        while not self._stopping.is_set():
            left = self._limit - (self._clock.now() - self._unavailable_since)
            if left <= 0:
                return self._give_up(outage)
            self.failures += 1
            jitter = random.uniform(0.75, 1)  # noqa: S311 - many relays must not probe at once
            pause = min(left, self._backoff.after(self.failures) * jitter)
            self._listeners.emit(events.BrokerUnavailable(self._sink, reason=str(outage), retry_ms=pause * 1000))
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
                return self._close()
        return None

    def _give_up(self, outage: BrokerUnavailable) -> None:
        self.given_up = BrokerUnavailable(
            f"gave up after waiting {self._limit:g} s (until_empty_timeout) for the broker: {outage}"
        )
        self._on_given_up()
