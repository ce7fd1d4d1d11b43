"""How late the event loop runs what is due: a timer every half second, and the worst delay of the last half minute."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["LoopLag"]

EVERY_SECONDS: Final = 0.5
WINDOW_SECONDS: Final = 15.0


class LoopLag:
    """Measures the loop it was started in, until it is stopped."""

    def __init__(self) -> None:
        self._window: list[float] = [0.0, 0.0]
        """The worst delay in the window before, and in this one."""
        self._window_ends = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def worst(self) -> float:
        """The longest delay, in seconds, in the last 15 to 30 seconds. From any thread."""
        return max(self._window)

    def start(self) -> None:
        """Measure the running loop."""
        loop = asyncio.get_running_loop()
        self._window_ends = loop.time() + WINDOW_SECONDS
        self._schedule(loop)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self, delay: float, now: float) -> None:
        """The timer ran so late, at this time."""
        if now >= self._window_ends:
            self._window = [self._window[1], 0.0]
            self._window_ends = now + WINDOW_SECONDS
        self._window[1] = max(self._window[1], delay)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + EVERY_SECONDS

        def measure() -> None:
            self.note(max(0.0, loop.time() - due), loop.time())
            self._schedule(loop)

        self._timer = loop.call_at(due, measure)
