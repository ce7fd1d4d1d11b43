"""Wake-up: a LISTEN connection and a tick for all lanes of one relay. `idle.py` has the waiting of each lane.

An idle relay sends one statement per tick. It renews the naps, finds out what was not notified, sends a token that must
come back over the LISTEN connection before the next tick, and sends the relay's heartbeat.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from postroad import events
from postroad.errors import LogNotReadable, NotMigrated, StoreUnavailable
from postroad.message import SLOTS, new_id
from postroad.relay.clock import Monotonic
from postroad.relay.idle import IdleWait
from postroad.relay.wake_signal import WakeSignal

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.config import RelaySettings
    from postroad.listeners import Listeners
    from postroad.relay.clock import Clock
    from postroad.relay.owned_lane import OwnedLane
    from postroad.stores.leases import Heartbeat, SinkSnapshot
    from postroad.stores.naps import ListenConnection, Naps

__all__ = ["HeartbeatSource", "Wakeup"]

TICKS_PER_NAP: Final = 3
SHORTEST_TIMEOUT: Final = 1.0
LAST_NAPS_SECONDS: Final = 2
_STORE_ERRORS: Final = (StoreUnavailable, LogNotReadable, NotMigrated)


class HeartbeatSource(Protocol):
    """Has heartbeats for a tick to send along."""

    def next_heartbeat(self) -> Heartbeat | None:
        """The heartbeat to send now; None: none."""
        ...

    def on_heartbeat(self, heartbeat: Heartbeat, snapshot: SinkSnapshot) -> None:
        """The heartbeat was sent, and this is the answer."""


class Wakeup:
    """The part of waking up that the lanes of one relay share. Lanes come and go."""

    def __init__(
        self, naps: Naps, sink: str, settings: RelaySettings, listeners: Listeners, *, clock: Clock | None = None
    ) -> None:
        self.naps = naps
        self.clock = clock or Monotonic()
        self.settings = settings
        self.listen_works = False
        """Our own notifications come back to us."""
        self.listen_losses = 0
        """How often LISTEN was lost: a nap from before names a LISTEN connection that is gone."""
        self._tick_timeout = max(settings.seconds("tick"), SHORTEST_TIMEOUT)
        self.nap_seconds = TICKS_PER_NAP * self._tick_timeout
        self._sink = sink
        self._listeners = listeners
        self._waits: list[IdleWait] = []
        self._signals: list[WakeSignal] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: ListenConnection | None = None
        self._token: str | None = None
        """The token of the last tick, until it has come back."""
        self._loss_reported = False
        self._connection_ended = asyncio.Event()
        self._ended_naps: set[int] = set()
        self._ending_naps: asyncio.Task[None] | None = None

    def add_lane(self, owned: OwnedLane) -> IdleWait:
        """The waiting of this lane, until `remove_lane`."""
        self._waits.append(IdleWait(self, owned))
        return self._waits[-1]

    def remove_lane(self, wait: IdleWait) -> None:
        """The lane does not run any more: another relay may own it."""
        wait.end_nap()
        self._waits.remove(wait)

    def add_signal(self) -> WakeSignal:
        """A signal for another task of the relay: every commit wakes it."""
        self._signals.append(WakeSignal(self.clock))
        return self._signals[-1]

    def wake(self) -> None:
        """Let every lane read, now. From any thread, at any time."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed: no lane runs
                self._loop.call_soon_threadsafe(self.on_notify, 0, SLOTS - 1)

    async def run(self, owner: UUID, heartbeats: HeartbeatSource) -> None:
        """Listen and tick for this relay, whichever lanes it owns, until cancelled."""
        self._loop = asyncio.get_running_loop()
        if self.settings.wakeup == "off":
            return
        try:
            while True:
                await self._listen_and_tick(owner, heartbeats)
                await self._until_next_tick()
        finally:
            self.listen_works = False
            self._loop = None
            self._close()

    async def end_naps(self) -> None:
        """End the naps of all lanes: writers need not notify this relay any more."""
        for wait in self._waits:
            wait.end_nap()
        if self._ending_naps is not None:
            await asyncio.wait((self._ending_naps,), timeout=LAST_NAPS_SECONDS)
            self._ending_naps.cancel()

    def end_nap(self, nap: int) -> None:
        """Delete the nap in the database, while its lane goes on."""
        self._ended_naps.add(nap)
        if self._ending_naps is None or self._ending_naps.done():
            self._ending_naps = asyncio.create_task(self._end_naps(), name="postroad ended naps")

    # -- notifications -----------------------------------------------------------------------------------------------

    def on_notify(self, first_slot: int, last_slot: int) -> None:
        """A transaction that added messages in these slots has committed."""
        for signal in self._signals:
            signal.on_notify()
        for wait in self._waits:
            if wait.lease.first_slot <= last_slot and wait.lease.last_slot >= first_slot:
                wait.on_notify()

    def on_echo(self, token: str) -> None:
        """A token has come back: LISTEN works, if it is the last tick's."""
        if token == self._token:
            self._token = None
            self.listen_works = True
            if self._loss_reported:
                self._loss_reported = False
                self._listeners.emit(events.ListenRestored(self._sink))

    def on_listen_lost(self, reason: str) -> None:
        """The LISTEN connection has ended."""
        self._lose_listen(reason)
        self._connection_ended.set()

    # -- listening and ticking ---------------------------------------------------------------------------------------

    async def _listen_and_tick(self, owner: UUID, heartbeats: HeartbeatSource) -> None:
        if self._token is not None:
            self._lose_listen("a notification that this relay sent to itself did not arrive")
        try:
            if self._listening is None:
                self._listening = await self.naps.listen(self.settings.channel, self)
        except _STORE_ERRORS as error:
            self._lose_listen(str(error))
        try:
            await self._tick(owner, heartbeats)
        except _STORE_ERRORS as error:
            self._lose_listen(str(error))
        except TimeoutError:
            self._lose_listen("the database did not answer a tick in time")

    async def _tick(self, owner: UUID, heartbeats: HeartbeatSource) -> None:
        heartbeat = heartbeats.next_heartbeat()
        sleeping = [(wait, wait.lease) for wait in self._waits if wait.asleep]
        naps = {wait.nap for wait in self._waits if wait.nap is not None}
        self._token = str(new_id())
        async with asyncio.timeout(self._tick_timeout):  # longer, and a nap may have expired before it was renewed
            tick = await self.naps.tick(
                self._sink, owner, naps=naps, seconds=self.nap_seconds,
                channel=self.settings.channel, token=self._token, heartbeat=heartbeat,
            )  # fmt: skip
        if heartbeat is not None and tick.snapshot is not None:
            heartbeats.on_heartbeat(heartbeat, tick.snapshot)
        for wait in self._waits:
            if wait.nap in naps and wait.nap not in tick.renewed_naps:
                wait.on_nap_expired()
        for wait, lease in sleeping:
            if wait.asleep and wait.lease is lease:
                wait.on_tick(tick)

    async def _until_next_tick(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.seconds("tick")):
                await self._connection_ended.wait()
                self._connection_ended.clear()
                await asyncio.sleep(self.settings.seconds("max_idle_backoff"))

    def _lose_listen(self, reason: str) -> None:
        self._close()
        self._token = None
        self.listen_works = False
        self.listen_losses += 1
        if not self._loss_reported:
            self._loss_reported = True
            poll_ms = self.settings.seconds("max_idle_backoff") * 1000
            self._listeners.emit(events.ListenLost(self._sink, reason=reason, poll_ms=poll_ms))
        for wait in self._waits:
            wait.wake()

    def _close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _end_naps(self) -> None:
        await asyncio.sleep(0)  # the lane that was woken goes first
        while self._ended_naps:
            ended, self._ended_naps = self._ended_naps, set()
            with suppress(*_STORE_ERRORS):  # a nap that can't be deleted expires by itself
                await self.naps.end(ended)
