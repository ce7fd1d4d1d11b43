"""What was to be sent later goes into the log when it is due; from there the lanes carry it like any other message.

Any number of relays may do this at once. Whatever goes wrong, a message is in one of the two tables and in one only, so
there is nothing to remember here and nothing to repair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.errors import LogNotReadable, NotMigrated, StoreUnavailable
from postroad.listeners import tell
from postroad.message import SLOTS
from postroad.relay.breaker import FIRST_PAUSE
from postroad.relay.clock import Monotonic
from postroad.relay.wake_signal import WakeSignal

if TYPE_CHECKING:
    from postroad.relay.clock import Clock
    from postroad.relay.wakeup import Wakeup
    from postroad.stores.base import Store

__all__ = ["Scheduled"]

LOOK_SECONDS: Final = 1.0
"""At the latest after this long it is looked again: something may have been added that is due earlier."""
LOOK_SECONDS_WHEN_TOLD: Final = 5.0
"""The same where the database tells of what is due within ten seconds (`wake_scheduled` in 0004_naps.sql)."""
SHORTEST_PAUSE: Final = 0.001


class Scheduled:
    """Moves what is due."""

    def __init__(
        self,
        store: Store,
        *,
        wakeup: Wakeup | None = None,
        longest_pause: float = 30.0,
        batch: int = 1000,
        clock: Clock | None = None,
    ) -> None:
        """`longest_pause` is how many seconds are between two tries at most when the database can't be asked."""
        self._store = store
        self._batch = batch
        self._first_pause = min(FIRST_PAUSE, longest_pause)
        self._longest_pause = longest_pause
        self._clock = clock or Monotonic()
        self._wakeup = wakeup
        self._signal = wakeup.add_signal() if wakeup is not None else WakeSignal(self._clock)

    async def run_once(self) -> int:
        """Move all that is due, and say how many those were."""
        moved, _ = await self._move()
        return moved

    async def run(self) -> None:
        """Move what is due when it is due, for ever: cancel the task to stop it, at any moment."""
        pause = self._first_pause
        while True:
            try:
                _, due_in = await self._move()
            except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
                tell(events.SchedulingUnavailable(reason=str(error), retry_ms=pause * 1000))
                await self._signal.wait(pause)
                pause = min(2 * pause, self._longest_pause)
            else:
                pause = self._first_pause
                told = self._wakeup is not None and self._wakeup.listen_works
                look = LOOK_SECONDS_WHEN_TOLD if told else LOOK_SECONDS
                await self._signal.wait(look if due_in is None else max(SHORTEST_PAUSE, min(look, due_in)))

    async def _move(self) -> tuple[int, float | None]:
        moved = 0
        while True:
            batch = await self._store.move_scheduled(self._batch)
            moved += batch.moved
            if batch.due_in != 0 or not batch.moved:
                break
        if moved:
            self._signal.found_work()
            tell(events.MessagesMoved(moved=moved))
            if self._wakeup is not None:
                self._wakeup.on_notify(0, SLOTS - 1)  # a database need not tell us of what we did ourselves
        return moved, batch.due_in
