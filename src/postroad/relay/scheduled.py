"""Moves scheduled messages into the log when they are due; from there the lanes publish them like any other message.

Any number of relays may do this at once. Whatever goes wrong, a message is in exactly one of the two tables, so this
task remembers nothing and repairs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad import events
from postroad.backoff import ExponentialBackoff
from postroad.errors import LogNotReadable, NotMigrated, StoreUnavailable
from postroad.listeners import Listeners
from postroad.message import SLOTS
from postroad.relay.clock import Monotonic
from postroad.relay.store_outages import StoreOutages
from postroad.relay.wake_signal import WakeSignal

if TYPE_CHECKING:
    from postroad.relay.clock import Clock
    from postroad.relay.wakeup import Wakeup
    from postroad.stores.base import Store

__all__ = ["Scheduled"]

POLL_SECONDS: Final = 1.0
"""The longest pause between two looks: a message may have been added that is due earlier than the next known one."""
POLL_SECONDS_WHEN_NOTIFIED: Final = 5.0
"""The same where the database notifies of messages that are due within ten seconds (`wake_scheduled` in its schema)."""
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
        listeners: Listeners | None = None,
        outages: StoreOutages | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`longest_pause` is how many seconds are between two tries at most while the database is unavailable."""
        self._store = store
        self._batch = batch
        self._backoff = ExponentialBackoff(longest_pause)
        self._listeners = listeners or Listeners()
        self._clock = clock or Monotonic()
        self._outages = outages or StoreOutages("", self._listeners, self._clock)
        self._wakeup = wakeup
        self._signal = wakeup.add_signal() if wakeup is not None else WakeSignal(self._clock)

    async def run_once(self) -> int:
        """Move all that is due, and return how many messages were moved."""
        moved, _ = await self._move()
        return moved

    async def run(self) -> None:
        """Move messages when they are due, until the task is cancelled, which is safe at any moment."""
        failures = 0
        while True:
            try:
                _, due_in = await self._move()
            except (StoreUnavailable, LogNotReadable, NotMigrated) as error:
                failures += 1
                pause = self._backoff.after(failures)
                self._outages.failed("scheduled messages", error, pause)
                await self._signal.wait(pause)
            else:
                if failures:
                    self._outages.worked("scheduled messages")
                failures = 0
                notified = self._wakeup is not None and self._wakeup.listen_works
                poll = POLL_SECONDS_WHEN_NOTIFIED if notified else POLL_SECONDS
                await self._signal.wait(poll if due_in is None else max(SHORTEST_PAUSE, min(poll, due_in)))

    async def _move(self) -> tuple[int, float | None]:
        moved = 0
        while True:
            batch = await self._store.move_scheduled(self._batch)
            moved += batch.moved
            if batch.due_in != 0 or not batch.moved:
                break
        if moved:
            self._signal.found_work()
            self._listeners.emit(events.MessagesMoved(moved=moved))
            if self._wakeup is not None:
                self._wakeup.on_notify(0, SLOTS - 1)  # a database need not notify us of what we did ourselves
        return moved, batch.due_in
