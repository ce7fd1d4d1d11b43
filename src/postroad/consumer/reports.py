"""Reports what a consumer has done since the last report, if it has done anything. Pure but for the listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from postroad import events

if TYPE_CHECKING:
    from postroad.consumer.model import Summary
    from postroad.listeners import Listeners

__all__ = ["Reports"]


class Reports:
    """The reports of one run."""

    def __init__(self, consumer: str, summary: Summary, listeners: Listeners, *, now: float) -> None:
        """`summary` is what the run counts in."""
        self._consumer = consumer
        self._summary = summary
        self._listeners = listeners
        self._last = msgspec.structs.replace(summary)
        self._at = now

    def run_once(self, now: float) -> None:
        """Report, if anything was done."""
        counted, last, seconds = self._summary, self._last, now - self._at
        done = {
            name: getattr(counted, name) - getattr(last, name) for name in ("handled", "duplicates", "failed", "dead")
        }
        if any(done.values()) and seconds > 0:
            rate = done["handled"] / seconds
            self._listeners.emit(
                events.ConsumerProgress(self._consumer, **done, per_second=rate, duration_ms=seconds * 1000)
            )
        self._last, self._at = msgspec.structs.replace(counted), now
