"""What a relay knows of one endpoint: whether it works, and whose fault it is when a message fails there. Pure.

An endpoint that answers 500 may be down, or may fail on one message only. What it answers to others tells:

- It has taken another message since this one was sent, or since this one failed before: the message is at fault, and
  its refusal counts an attempt.
- It has not: the endpoint is at fault, nothing is counted, and until it takes a message it is tried with one at a time.
- A message that has failed so three times is set aside, so that it does not stop what is behind it for ever.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Endpoint"]

SET_ASIDE_AFTER: Final = 3
MOST_FAILURES: Final = 10_000
"""Of more messages than this, the failures that are longest ago are forgotten."""


class _Failure(NamedTuple):
    times: int
    confirmed: int
    """How many messages the endpoint had taken by then."""


class Endpoint:
    """One URL. `now` is always a monotonic time."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The URL without what may be secret: errors show it, and it is the name of the route."""
        self.confirmed = 0
        """How many messages it has taken."""
        self.failing: str | None = None
        """Why it does not work, as far as is known; None while it does."""
        self.gone: str | None = None
        """Why nothing is sent to it any more."""
        self._not_before = 0.0
        self._wait_reason = ""
        self._failures: dict[int, _Failure] = {}

    def waits(self, now: float) -> float:
        """Seconds until something may be sent to it."""
        return max(0.0, self._not_before - now)

    def takes_nothing(self, now: float) -> str | None:
        """Why nothing is sent to it now; None if something is."""
        if self.gone is not None:
            return self.gone
        wait = self.waits(now)
        return f"{self._wait_reason}; it asks to wait {wait:,.0f} s more (Retry-After)" if wait else None

    def confirm(self, position: int, messages: int = 1) -> None:
        """It has taken messages, of which this is the first."""
        self.confirmed += messages
        self.failing = None
        if self._failures:
            self._failures.pop(position, None)

    def fail(self, reason: str) -> None:
        """It did not take a message."""
        self.failing = reason

    def wait(self, reason: str, until: float) -> None:
        """It asks to be left alone until then."""
        self.failing = self._wait_reason = reason
        self._not_before = max(self._not_before, until)

    def leave(self, reason: str) -> None:
        """It wants nothing any more."""
        self.failing = self.gone = reason

    def works(self) -> None:
        """What it did not take was the fault of messages."""
        self.failing = None

    def takes_others(self, position: int, confirmed_before: int) -> bool:
        """Whether it has taken another message since this one was sent, or since this one failed before: then this one
        is at fault. `confirmed_before` is `confirmed` when it was sent.
        """
        last = self._failures.get(position)
        if self.confirmed == (confirmed_before if last is None else min(last.confirmed, confirmed_before)):
            return False
        self._note(position, 0)
        return True

    def is_hopeless(self, position: int) -> bool:
        """Count a failure that is not known to be this message's fault; True if it has had enough of them."""
        last = self._failures.get(position)
        times = 1 if last is None else last.times + 1
        self._note(position, times)
        return times >= SET_ASIDE_AFTER

    def _note(self, position: int, times: int) -> None:
        self._failures.pop(position, None)
        if len(self._failures) >= MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[position] = _Failure(times, self.confirmed)
