"""How lanes with nothing to do wait, so that a commit wakes them at once and idling costs next to nothing.

The rules by which no wake-up is lost. tests/properties/test_wakeup.py removes them one by one:

- A nap is committed before anybody is asked who may have missed it.
- As long as one of those is at it, the lane does not sleep but looks again and again.
- After the last of them has ended, the lane looks once more. Only then it sleeps.
- What is heard is kept until the lane begins to wait for it: a bell is silenced before the look, never after it.
- A nap that was not renewed in time is no nap: it begins anew, by all of these rules.
- Nobody sleeps unless our own notifications have come back to us.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from postroad import events
from postroad.errors import LaneChanged, LogNotReadable, NotMigrated, StoreUnavailable
from postroad.listeners import tell
from postroad.message import SLOTS, new_id
from postroad.relay.bell import Bell
from postroad.relay.clock import Monotonic

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from postroad.config import RelaySettings
    from postroad.relay.clock import Clock
    from postroad.stores.base import Lease, Listening, Naps, Tick, Writer
    from postroad.stores.leases import Beat, SinkSnapshot

__all__ = ["Heartbeat", "Rest", "Wakeup", "still_unaware"]

TICKS_PER_NAP: Final = 3
LEAST_PATIENCE: Final = 1.0
FAREWELL_SECONDS: Final = 2
NO_LIMIT: Final = 7 * 24 * 60 * 60
_STORE_ERRORS: Final = (StoreUnavailable, LogNotReadable, NotMigrated)


def still_unaware(
    unaware: Collection[Writer], before: Collection[Writer], now: Collection[Writer]
) -> Collection[Writer]:
    """Of the writers that may have missed a nap, those that are still at it; `before` is who was there a look ago.

    When one is gone and a prepared transaction is new, it may be the same one: being prepared changes its name.
    """
    left = set(unaware) & set(now)
    if left != set(unaware):
        left |= {writer for writer in set(now) - set(before) if writer.prepared}
    return left


class Heartbeat(Protocol):
    """Who says that the relay lives. A tick does it along the way: an idle relay needs one statement for it all."""

    def due(self) -> Beat | None:
        """What is to be said now; None: nothing."""
        ...

    def beaten(self, beat: Beat, snapshot: SinkSnapshot) -> None:
        """It was said, and this was the answer."""


class Wakeup:
    """What the lanes of one relay share: who listens, the tick, and the naps that are over. Lanes come and go."""

    def __init__(self, naps: Naps, sink: str, settings: RelaySettings, *, clock: Clock | None = None) -> None:
        self.naps = naps
        self.clock = clock or Monotonic()
        self.settings = settings
        self.patience = max(settings.seconds("tick"), LEAST_PATIENCE)
        """How long a tick may take; a nap lasts some times as long."""
        self.hears = False
        """Our own notifications come back to us."""
        self.times_deaf = 0
        """How often that ended: a nap from before names a listener that is gone."""
        self._sink = sink
        self._owner: UUID | None = None
        self._heart: Heartbeat | None = None
        self._rests: list[Rest] = []
        self._bells: list[Bell] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: Listening | None = None
        self._word: str | None = None
        """What was sent and has not come back."""
        self._deaf = False
        """It was said that nothing is heard."""
        self._ended = asyncio.Event()
        self._over: set[int] = set()
        self._clearing: asyncio.Task[None] | None = None

    def serve(self, owner: UUID, heart: Heartbeat) -> None:
        """Tick for this relay, whichever lanes it has, and beat for it along the way."""
        self._owner, self._heart = owner, heart

    def rest(self, lease: Lease) -> Rest:
        """How the lane with this lease waits, until it is forgotten."""
        self._rests.append(Rest(self, lease))
        return self._rests[-1]

    def forget(self, rest: Rest) -> None:
        """The lane does not run any more: another relay may have it."""
        rest.get_up()
        self._rests.remove(rest)

    def bell(self) -> Bell:
        """A bell for another task of the relay: it hears of every commit."""
        self._bells.append(Bell(self.clock))
        return self._bells[-1]

    def wake(self) -> None:
        """Every lane looks, now. From any thread, at any time."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed: there is nobody to wake
                self._loop.call_soon_threadsafe(self.hear, 0, SLOTS - 1)

    async def run(self) -> None:
        """Listen and tick until cancelled."""
        self._loop = asyncio.get_running_loop()
        if self.settings.wakeup == "off":
            return
        try:
            while True:
                await self._listen_and_tick()
                await self._until_next_tick()
        finally:
            self.hears = False
            self._loop = None
            self._close()

    async def end_naps(self) -> None:
        """Nobody needs to notify us any more."""
        for rest in self._rests:
            rest.get_up()
        if self._clearing is not None:
            await asyncio.wait((self._clearing,), timeout=FAREWELL_SECONDS)
            self._clearing.cancel()

    def over(self, nap: int) -> None:
        """A nap is over; say so in the database, while its lane goes on."""
        self._over.add(nap)
        if self._clearing is None or self._clearing.done():
            self._clearing = asyncio.create_task(self._clear(), name="postroad naps that are over")

    # -- what the database tells -------------------------------------------------------------------------------------

    def hear(self, first_slot: int, last_slot: int) -> None:
        """Something was committed in these slots."""
        for bell in self._bells:
            bell.hear()
        for rest in self._rests:
            if rest.lease.first_slot <= last_slot and rest.lease.last_slot >= first_slot:
                rest.hear()

    def echo(self, word: str) -> None:
        """A word has come back."""
        if word == self._word:
            self._word = None
            self.hears = True
            if self._deaf:
                self._deaf = False
                tell(events.ListenRestored(self._sink))

    def end(self, reason: str) -> None:
        """Who listens does not any more."""
        self._be_deaf(reason)
        self._ended.set()

    # -- listening and ticking ---------------------------------------------------------------------------------------

    async def _listen_and_tick(self) -> None:
        if self._word is not None:
            self._be_deaf("what PostgreSQL was told to notify us of did not arrive")
        try:
            if self._listening is None:
                self._listening = await self.naps.listen(self.settings.channel, self)
        except _STORE_ERRORS as error:
            self._be_deaf(str(error))
        try:
            await self._tick()
        except _STORE_ERRORS as error:
            self._be_deaf(str(error))
        except TimeoutError:
            self._be_deaf("the database did not answer a tick in time")

    async def _tick(self) -> None:
        if self._owner is None or self._heart is None:
            return
        beat = self._heart.due()
        asked = [(rest, rest.lease) for rest in self._rests if rest.asleep]
        naps = {rest.nap for rest in self._rests if rest.nap is not None}
        self._word = str(new_id())
        async with asyncio.timeout(self.patience):  # longer, and a nap may have ended before it was renewed
            found = await self.naps.tick(
                self._sink, self._owner, naps=naps, seconds=TICKS_PER_NAP * self.patience,
                channel=self.settings.channel, word=self._word, beat=beat,
            )  # fmt: skip
        if beat is not None and found.snapshot is not None:
            self._heart.beaten(beat, found.snapshot)
        for rest in self._rests:
            if rest.nap in naps and rest.nap not in found.kept:
                rest.lose_nap()
        for rest, lease in asked:
            if rest.asleep and rest.lease is lease:
                rest.look_after(found)

    async def _until_next_tick(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.seconds("tick")):
                await self._ended.wait()
                self._ended.clear()
                await asyncio.sleep(self.settings.seconds("max_idle_backoff"))

    def _be_deaf(self, reason: str) -> None:
        self._close()
        self._word = None
        self.hears = False
        self.times_deaf += 1
        if not self._deaf:
            self._deaf = True
            poll_ms = self.settings.seconds("max_idle_backoff") * 1000
            tell(events.ListenLost(self._sink, reason=reason, poll_ms=poll_ms))
        for rest in self._rests:
            rest.wake()

    def _close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _clear(self) -> None:
        await asyncio.sleep(0)  # whatever woke the lane goes first
        while self._over:
            over, self._over = self._over, set()
            with suppress(*_STORE_ERRORS):  # a nap that can't be ended ends by itself
                await self.naps.end(over)


class Rest:
    """How one lane waits. `wait` returns when the lane should look, and the lane looks before it waits again."""

    def __init__(self, wakeup: Wakeup, lease: Lease) -> None:
        self._wakeup = wakeup
        self._settings = wakeup.settings
        self._clock = wakeup.clock
        self._bell = Bell(wakeup.clock)
        self._worked_at = float("-inf")
        self._interval = self._settings.seconds("poll_interval")
        self._writers: Collection[Writer] = ()
        self._unaware: Collection[Writer] = ()
        self._changed = False
        self._times_deaf = 0
        self.lease = lease
        self.nap: int | None = None
        self.asleep = False

    def found_work(self) -> None:
        """The lane has something to do, so it naps no more."""
        self._worked_at = self._clock.now()
        self._bell.was_worth_it()
        self._interval = self._settings.seconds("poll_interval")
        self.get_up()

    def wake(self) -> None:
        """Look, now."""
        self._bell.ring()

    def hear(self) -> None:
        """Look, because something is said to have been committed."""
        self._bell.hear()

    async def wait(self, lease: Lease, due_in: float | None = None) -> None:
        """Wait until there may be something to do; at most for `due_in` seconds, if that is given.

        Raises LaneChanged when the lane was changed or taken while it slept, and what the store raises.
        """
        self.lease = lease
        if not self._wakeup.hears:
            self.get_up()
            await self._poll(due_in)
        elif self._clock.now() - self._worked_at < self._settings.seconds("linger"):
            await self._until_signal(self._settings.seconds("poll_interval"), due_in)
        elif self.nap is None or self._times_deaf != self._wakeup.times_deaf:
            self.get_up()
            await self._lie_down(due_in)
        elif self._unaware:
            await self._poll(due_in)
            before, self._writers = self._writers, await self._wakeup.naps.writers()
            self._unaware = still_unaware(self._unaware, before, self._writers)
        else:
            await self._sleep(due_in)

    def get_up(self) -> None:
        """The nap is over, if there was one."""
        if self.nap is not None:
            self._wakeup.over(self.nap)
            self.nap = None

    def lose_nap(self) -> None:
        """There is no nap any more: whoever added may not have said so."""
        self.nap = None
        self.wake()

    def look_after(self, found: Tick) -> None:
        """What a tick has found while the lane slept."""
        self._changed = found.lanes.get(self.lease.lane) != (self.lease.epoch, self.lease.version)
        if self._changed or self.lease.lane in found.stirred:
            self.wake()

    async def _lie_down(self, due_in: float | None) -> None:
        seconds = TICKS_PER_NAP * self._wakeup.patience
        self._times_deaf = self._wakeup.times_deaf
        self.nap = await self._wakeup.naps.begin(self.lease, channel=self._settings.channel, seconds=seconds)
        if self.nap is None:
            await self._poll(due_in)
        else:
            self._unaware = self._writers = await self._wakeup.naps.writers()
            self._interval = self._settings.seconds("poll_interval")

    async def _sleep(self, due_in: float | None) -> None:
        self.asleep = True
        try:
            await self._until_signal(due_in)
        finally:
            self.asleep = False
        if self._changed:
            self._changed = False
            self.get_up()
            raise LaneChanged(f"lane {self.lease.lane} of sink {self.lease.sink!r} was changed while it slept")

    async def _poll(self, due_in: float | None) -> None:
        await self._until_signal(self._interval, due_in)
        self._interval = min(2 * self._interval, self._settings.seconds("max_idle_backoff"))

    async def _until_signal(self, *limits: float | None) -> None:
        await self._bell.wait(min((each for each in limits if each is not None), default=NO_LIMIT))
