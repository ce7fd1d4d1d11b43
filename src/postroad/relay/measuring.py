"""Measures what a lane publishes, once per page or claim, for the listeners that measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.stores.latency import sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.listeners import Listeners
    from postroad.message import StoredMessage
    from postroad.relay.clock import Clock
    from postroad.relay.outcome import Outcome

__all__ = ["PageTimer"]


class PageTimer:
    """Measures the pages and claims of one lane."""

    def __init__(self, sink: str, listeners: Listeners, clock: Clock) -> None:
        self._sink = sink
        self._listeners = listeners
        self._clock = clock

    def start(self) -> float:
        """Publishing begins."""
        return self._clock.now()

    def stop(self, messages: Sequence[StoredMessage], outcome: Outcome, began: float) -> None:
        """Publishing has ended: report those that were confirmed. A page that was interrupted is published again, and
        measured then.
        """
        if outcome.interrupted is not None:
            return
        if outcome.held or outcome.deferred or outcome.skipped:
            others = {*outcome.held, *outcome.deferred, *outcome.skipped}
            messages = [message for message in messages if message.position not in others]
        if messages:
            created = [message.created_us for message in sample(messages)]
            self._listeners.published(self._sink, len(messages), created, self._clock.now() - began)
