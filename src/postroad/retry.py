"""When a message that was refused is tried again, and when it is dead. Pure: no clock, no I/O.

A policy is asked once per refusal that counts. An outage never gets here: it is nobody's fault, and counts for nobody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.errors import Refusal

__all__ = ["Backoff", "RetryPolicy"]


class RetryPolicy(Protocol):
    """Decides about a refusal. Give your own to a Relay: `Relay(..., retry=...)`."""

    def again_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        """How long to wait after so many attempts, this one included; None: the message is dead."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """2, 4, 8 … seconds, and a little more so that what failed together does not come back together."""

    max_attempts: int = 5
    max_backoff: timedelta = timedelta(minutes=5)
    first: timedelta = timedelta(seconds=2)
    jitter: float = 0.1
    """At most this part of the pause is added to it."""
    chance: Callable[[], float] = field(default=random.random, repr=False)
    """Gives numbers from 0 to 1."""

    def __post_init__(self) -> None:
        """Check what a person may have written."""
        if self.max_attempts < 1:
            raise InvalidSetting(f"max_attempts is {self.max_attempts!r}; it must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise InvalidSetting(f"jitter is {self.jitter!r}; it must be a number from 0 to 1")

    def again_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        """Twice as long each time, up to the longest; None when that was the last attempt, or another can't help."""
        if refusal.permanent or attempts >= self.max_attempts:
            return None
        # Beyond 2**62 nothing gets longer, but numbers get too large.
        pause = self.first.total_seconds() * 2.0 ** min(attempts - 1, 62)
        pause = min(pause * (1 + self.jitter * self.chance()), self.max_backoff.total_seconds())
        return timedelta(seconds=pause)
