"""When a refused message is retried, and when it is dead. Pure but for the jitter, which a test can replace.

A policy is asked once per failed attempt. An outage never gets here: it counts no attempt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from postroad.backoff import ExponentialBackoff
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.errors import Refusal

__all__ = ["Backoff", "RetryPolicy"]


class RetryPolicy(Protocol):
    """Decides when a refused message is retried. Pass your own to a Relay: `Relay(..., retry=...)`."""

    def retry_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        """How long to wait after so many failed attempts, this one included; None: the message is dead."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """2, 4, 8 … seconds, plus jitter, so that messages that failed together are not all retried together."""

    max_attempts: int = 5
    max_backoff: timedelta = timedelta(minutes=5)
    first: timedelta = timedelta(seconds=2)
    jitter: float = 0.1
    """At most this part of the pause is added to it."""
    chance: Callable[[], float] = field(default=random.random, repr=False)
    """Returns a number from 0 to 1."""

    def __post_init__(self) -> None:
        """Raise InvalidSetting for numbers that make no sense."""
        if self.max_attempts < 1:
            raise InvalidSetting(f"max_attempts is {self.max_attempts!r}; it must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise InvalidSetting(f"jitter is {self.jitter!r}; it must be a number from 0 to 1")

    def retry_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        """Twice as long each time, up to `max_backoff`; None after the last attempt or a permanent refusal."""
        if refusal.permanent or attempts >= self.max_attempts:
            return None
        longest = self.max_backoff.total_seconds()
        pause = ExponentialBackoff(longest, self.first.total_seconds()).after(attempts)
        return timedelta(seconds=min(pause * (1 + self.jitter * self.chance()), longest))
