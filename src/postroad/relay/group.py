"""Several relays in one process, each for a sink of its own: none waits for another.

- Each relay has its own store, publisher, lanes and breaker; they share the event loop and nothing else. So an outage,
  a slow destination or a refusal concerns one sink.
- Before any of them publishes, the sinks of all are created and compared with the settings: what is wrong with one of
  them ends the group before anything is sent.
- A relay that fails later is started again after a pause, while the others go on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.backoff import ExponentialBackoff
from postroad.errors import LogNotReadable, NotMigrated, StoreUnavailable
from postroad.listeners import Listeners
from postroad.relay.clock import Monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from postroad.listeners import Listener
    from postroad.relay.clock import Clock
    from postroad.relay.relay import Relay
    from postroad.relay.summary import Summary

__all__ = ["RelayGroup"]

LONGEST_PAUSE: Final = 60.0
"""Seconds between two starts of a relay that fails again and again."""


class RelayGroup:
    """Runs a relay for each of several sinks. `makers` has for each sink a function that makes its relay, with a store
    and a publisher that no other relay has; it is called again when that relay has failed.
    """

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Relay]],
        *,
        listeners: Iterable[Listener] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._makers = makers
        self._relays = {sink: make() for sink, make in makers.items()}
        self._listeners = Listeners(listeners)
        self._clock = clock or Monotonic()
        self._stopping = asyncio.Event()
        self.errors: dict[str, Exception] = {}
        """What has ended relays that were to run until empty."""

    @property
    def relays(self) -> Sequence[Relay]:
        """The relay of each sink, as it is now."""
        return list(self._relays.values())

    async def run(self) -> Mapping[str, Summary]:
        """Publish messages until `stop` is called. Raises what is wrong with a sink when it is first compared."""
        return await self._run(until_empty=False)

    async def run_until_empty(self) -> Mapping[str, Summary]:
        """Publish every committed message that no other relay is to publish. What has failed is in `errors` then, and
        has not kept the others from ending.
        """
        return await self._run(until_empty=True)

    def stop(self) -> None:
        """Stop all relays, as `Relay.stop` does."""
        self._stopping.set()
        for relay in self._relays.values():
            relay.stop()

    async def _run(self, *, until_empty: bool) -> Mapping[str, Summary]:
        await self._create_sinks()
        runs = {
            sink: asyncio.create_task(
                self._once(sink) if until_empty else self._again_and_again(sink), name=f"postroad relay {sink}"
            )
            for sink in self._makers
        }
        try:
            await asyncio.wait(runs.values())
        except asyncio.CancelledError:
            for task in runs.values():
                task.cancel()
            await asyncio.wait(runs.values())
            raise
        return {sink: summary for sink, task in runs.items() if (summary := task.result()) is not None}

    async def _create_sinks(self) -> None:
        for relay in self._relays.values():
            try:
                await relay.create_sink()
            except (StoreUnavailable, NotMigrated, LogNotReadable):
                return  # each relay says so, and waits for it if that helps
        for relay in self._relays.values():  # only now: one of these sinks may be that of another's dead letters
            await relay.check_dead_letter_sink()

    async def _once(self, sink: str) -> Summary | None:
        try:
            return await self._relays[sink].run_until_empty()
        except Exception as error:
            self.errors[sink] = error
            self._listeners.emit(events.RelayFailed(sink, reason=str(error)).caused_by(error))
            return None

    async def _again_and_again(self, sink: str) -> Summary | None:
        backoff, failures = ExponentialBackoff(LONGEST_PAUSE), 0
        while not self._stopping.is_set():
            began = self._clock.now()
            try:
                if failures:
                    self._relays[sink] = self._makers[sink]()
                return await self._relays[sink].run()
            except Exception as error:  # whatever it is, the other sinks have nothing to do with it
                failures = 1 if self._clock.now() - began > LONGEST_PAUSE else failures + 1
                pause = backoff.after(failures)
                self._listeners.emit(
                    events.RelayRestarting(sink, reason=str(error), retry_ms=pause * 1000).caused_by(error)
                )
            await self._clock.wait(self._stopping, pause)
        return None
