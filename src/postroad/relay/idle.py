"""How one lane with nothing to do waits: polls, naps, sleeps.

The rules by which no wake-up is lost. tests/properties/test_wakeup.py removes them one by one:

- A nap is committed before the lane asks which writers may have missed it.
- While one of those writers is active, the lane does not sleep but polls.
- After the last of them has ended, the lane reads once more. Only then it sleeps.
- A notification is kept until the lane begins to wait for it: the signal is cleared before the read, never after it.
- A nap that was not renewed in time counts for nothing: the lane begins a new one, by all of these rules.
- A lane sleeps only while the relay's own notifications come back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from postroad.errors import LaneChanged
from postroad.relay.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroad.config import RelaySettings
    from postroad.relay.clock import Clock
    from postroad.relay.owned_lane import OwnedLane
    from postroad.stores.base import Lease
    from postroad.stores.naps import Naps, Tick, Writer

__all__ = ["IdleWait", "ListenState", "still_unaware"]

NO_LIMIT: Final = 7 * 24 * 60 * 60


class ListenState(Protocol):
    """What `Wakeup` offers the lanes of its relay."""

    clock: Clock
    settings: RelaySettings
    naps: Naps
    nap_seconds: float
    """How long a nap lasts unless a tick renews it."""
    listen_works: bool
    """Our own notifications come back to us."""
    listen_losses: int
    """How often LISTEN was lost: a nap from before names a LISTEN connection that is gone."""

    def end_nap(self, nap: int) -> None:
        """Delete the nap, while its lane goes on."""


def still_unaware(
    unaware: Collection[Writer], before: Collection[Writer], now: Collection[Writer]
) -> Collection[Writer]:
    """Of the writers that may have missed a nap, those that are still active; `before`: all that were active at the
    last call.

    When one has ended and a prepared transaction is new, they may be the same: PREPARE gives it another name.
    """
    left = set(unaware) & set(now)
    if left != set(unaware):
        left |= {writer for writer in set(now) - set(before) if writer.prepared}
    return left


class IdleWait:
    """The waiting of one lane. `wait` returns when the lane should read; the lane reads before it waits again."""

    def __init__(self, state: ListenState, owned: OwnedLane) -> None:
        self._state = state
        self._owned = owned
        self._settings = state.settings
        self._clock = state.clock
        self._signal = WakeSignal(state.clock)
        self._worked_at = float("-inf")
        self._interval = self._settings.seconds("poll_interval")
        self._writers: Collection[Writer] = ()
        self._unaware: Collection[Writer] = ()
        """Writers that may have missed the nap."""
        self._changed = False
        self._listen_losses = 0
        self.worked = False
        """The lane has found messages since it last waited."""
        self.nap: int | None = None
        self.asleep = False

    @property
    def lease(self) -> Lease:
        """The lane's lease."""
        return self._owned.lease

    def wake(self) -> None:
        """Let `wait` return now."""
        self._signal.wake()

    def on_notify(self) -> None:
        """Let `wait` return, because a commit was notified."""
        self._signal.on_notify()

    async def wait(self, due_in: float | None = None) -> None:
        """Wait until there may be something to read; at most for `due_in` seconds, if that is given.

        Raises LaneChanged when the lane was changed or taken while it slept, and what the store raises.
        """
        if self.worked:
            self.worked = False
            self._worked_at = self._clock.now()
            self._signal.found_work()
            self._interval = self._settings.seconds("poll_interval")
        if not self._state.listen_works:
            self.end_nap()
            await self._poll(due_in)
        elif self._clock.now() - self._worked_at < self._settings.seconds("linger"):
            await self._until_signal(self._settings.seconds("poll_interval"), due_in)
        elif self.nap is None or self._listen_losses != self._state.listen_losses:
            self.end_nap()
            await self._begin_nap(due_in)
        elif self._unaware:
            await self._poll(due_in)
            before, self._writers = self._writers, await self._state.naps.writers()
            self._unaware = still_unaware(self._unaware, before, self._writers)
        else:
            await self._sleep(due_in)

    def end_nap(self) -> None:
        """End the nap, if there is one."""
        if self.nap is not None:
            self._state.end_nap(self.nap)
            self.nap = None

    def on_tick(self, tick: Tick) -> None:
        """A tick that was sent while the lane slept has found this."""
        self._changed = tick.lanes.get(self.lease.lane) != (self.lease.epoch, self.lease.version)
        if self._changed or self.lease.lane in tick.has_work:
            self.wake()

    def on_nap_expired(self) -> None:
        """The nap was not renewed in time: writers may have added without a NOTIFY."""
        self.nap = None
        self.wake()

    async def _begin_nap(self, due_in: float | None) -> None:
        self._listen_losses = self._state.listen_losses
        self.nap = await self._state.naps.begin(
            self.lease, channel=self._settings.channel, seconds=self._state.nap_seconds
        )
        if self.nap is None:
            await self._poll(due_in)
        else:
            self._unaware = self._writers = await self._state.naps.writers()
            self._interval = self._settings.seconds("poll_interval")

    async def _sleep(self, due_in: float | None) -> None:
        self.asleep = True
        try:
            await self._until_signal(due_in)
        finally:
            self.asleep = False
        if self._changed:
            self._changed = False
            self.end_nap()
            raise LaneChanged(f"lane {self.lease.lane} of sink {self.lease.sink!r} was changed while it slept")

    async def _poll(self, due_in: float | None) -> None:
        await self._until_signal(self._interval, due_in)
        self._interval = min(2 * self._interval, self._settings.seconds("max_idle_backoff"))

    async def _until_signal(self, *limits: float | None) -> None:
        await self._signal.wait(min((each for each in limits if each is not None), default=NO_LIMIT))
