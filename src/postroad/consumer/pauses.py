"""The pauses of a consumer between two tries when something is unavailable. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "longer"]

FIRST_PAUSE: Final = 0.05  # seconds
LONGEST_PAUSE: Final = 5.0


def longer(pause: float) -> float:
    """The pause after this one: twice as long, up to the longest."""
    return min(2 * pause, LONGEST_PAUSE)
