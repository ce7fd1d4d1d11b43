"""Reports the types that a consumer skips: each once, and so many at most, because other programs may make up types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.events import TypeSkipped

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.events import Event

__all__ = ["SkippedTypes"]

MOST: Final = 100


class SkippedTypes:
    """What one consumer has skipped so far."""

    def __init__(self, consumer: str, report: Callable[[Event], None]) -> None:
        self._consumer = consumer
        self._report = report
        self._types: set[str] = set()

    def note(self, type: str, source: str) -> None:
        """A message of this type, from this stream or topic, is skipped."""
        if type not in self._types and len(self._types) < MOST:
            self._types.add(type)
            self._report(TypeSkipped(self._consumer, message_type=type, source=source))
