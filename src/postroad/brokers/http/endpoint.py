"""What a relay knows of one endpoint: whether it works, and whose fault it is when a message fails there. Pure.

An endpoint that answers 500 may be down, or may fail on one message only. What it answers to others tells:

- It has taken another message since this one was sent, or since this one failed before: it works, and a failure such as
  500 is the message's fault and counts an attempt.
- A failure that says that something was not available (503, a timeout) may come from a part of the endpoint that is
  down. It is the message's fault only if no other message failed so while the endpoint took several.
- It has taken none: the endpoint is at fault, nothing is counted, and until it takes a message it is tried with one at
  a time. Where there are other endpoints, it is left alone for a while that grows with the time it takes to fail.
- A message that has failed so three times is set aside, so that it does not stop what is behind it for ever.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["Endpoint", "Fault"]

SET_ASIDE_AFTER: Final = 3
ENOUGH_OTHERS: Final = 10
"""So many it must have taken while one message failed alone: if a part of it were down, one of these had met it."""
MOST_FAILURES: Final = 10_000
"""Of more messages than this, the failures that are longest ago are forgotten."""
LONGEST_PAUSE: Final = 600.0
COUNTED_PAUSE: Final = 60.0
MOST_DOUBLINGS: Final = 4
"""A pause is at most 16 times as long as the failure took, so an endpoint that hangs takes little of a lane's time."""


class Fault(Enum):
    """Whose fault it is that a message was not taken."""

    ENDPOINT = "it has taken no other message meanwhile"
    MESSAGE = "it takes others, and fails on this one"
    UNKNOWN = "it takes others, and a part of it may be down"


class _Failure(NamedTuple):
    times: int
    confirmed: int
    """How many messages the endpoint had taken by then."""
    unavailable: int
    """How many failures it had by then that say that something was not available."""
    alone_since: int
    """How many messages it had taken when this message began to be the only one that fails so."""
    aside: int
    """How often it has failed so while others were taken."""


class Endpoint:
    """One URL. `now` is always a monotonic time."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The URL without what may be secret: errors show it, and it is the name of the route."""
        self.under_way = 0
        """How many requests to it have no answer yet."""
        self.confirmed = 0
        """How many messages it has taken."""
        self.failures = 0
        """How often it did not take one."""
        self.failing: str | None = None
        """Why it does not work, as far as is known; None while it does."""
        self.gone: str | None = None
        """Why nothing is sent to it any more."""
        self._not_before = 0.0
        self._wait_reason = ""
        self._pauses = 0
        """How often it was paused since it last took a message."""
        self._unavailable = 0
        self._failures: dict[UUID, _Failure] = {}

    def waits(self, now: float) -> float:
        """Seconds until something may be sent to it."""
        return max(0.0, self._not_before - now)

    def takes_nothing(self, now: float) -> str | None:
        """Why nothing is sent to it now; None if something is."""
        if self.gone is not None:
            return self.gone
        wait = self.waits(now)
        if not wait:
            return None
        if self._pauses:
            return f"{self._wait_reason}; it is tried again in {wait:,.0f} s"
        return f"{self._wait_reason}; it asks to wait {wait:,.0f} s more (Retry-After)"

    @property
    def is_being_probed(self) -> bool:
        """Whether another call finds out now whether it works again after a pause."""
        return self._pauses > 0 and self.under_way > 0

    def confirm(self, id: UUID, messages: int = 1) -> None:
        """It has taken messages, of which this is the first."""
        self.confirmed += messages
        self.works()
        if self._failures:
            self._failures.pop(id, None)

    def fail(self, reason: str, *, unavailable: bool = False) -> None:
        """It did not take a message. `unavailable`: because something was not available, it or a part of it."""
        self.failing = reason
        self.failures += 1
        self._unavailable += unavailable

    def wait(self, reason: str, until: float) -> None:
        """It asks to be left alone until then."""
        self.fail(reason)
        self._wait_reason = reason
        self._pauses = 0
        self._not_before = max(self._not_before, until)

    def pause(self, now: float, took: float) -> None:
        """It takes nothing, and this is how long it took to fail: leave it alone for longer, each time."""
        if self._not_before > now:  # another call has done so, or it asks for that itself
            return
        self._pauses += 1
        self._wait_reason = self.failing or ""
        self._not_before = now + min(took * 2 ** min(self._pauses, MOST_DOUBLINGS), LONGEST_PAUSE)

    def leave(self, reason: str) -> None:
        """It wants nothing any more."""
        self.fail(reason)
        self.gone = reason

    def works(self) -> None:
        """It has taken a message, or what it did not take was the fault of messages."""
        self.failing = None
        if self._pauses:
            self._pauses, self._not_before = 0, 0.0

    def fault(self, id: UUID, confirmed_before: int, *, unavailable: bool) -> Fault:
        """Whose fault it is that it did not take a message. `confirmed_before` is `confirmed` when that was sent, and
        `unavailable` as for `fail`.
        """
        last = self._failures.get(id)
        if self.confirmed == (confirmed_before if last is None else min(last.confirmed, confirmed_before)):
            return Fault.ENDPOINT
        alone_since = self.confirmed
        if last is not None and self._unavailable == last.unavailable + 1:
            alone_since = last.alone_since
        is_guilty = not unavailable or self.confirmed - alone_since >= ENOUGH_OTHERS
        self._note(id, 0, self.confirmed if is_guilty else alone_since, 1 if last is None else last.aside + 1)
        return Fault.MESSAGE if is_guilty else Fault.UNKNOWN

    def is_hopeless(self, id: UUID) -> bool:
        """Count a failure that is not known to be this message's fault; True if it has had enough of them."""
        last = self._failures.get(id)
        times = 1 if last is None else last.times + 1
        self._note(id, times, self.confirmed)
        return times >= SET_ASIDE_AFTER

    def retry_in(self, id: UUID, took: float, *, counted: bool) -> float:
        """Seconds until a message that failed while others were taken is sent again: more each time, and more the
        longer it took to fail; at least a minute if that was counted, so that all its attempts are over in no less than
        some minutes.
        """
        pause = max(2.0 ** self._failures[id].aside, took * 4, COUNTED_PAUSE if counted else 0.0)
        return min(pause, LONGEST_PAUSE)

    def _note(self, id: UUID, times: int, alone_since: int, aside: int = 0) -> None:
        self._failures.pop(id, None)
        if len(self._failures) >= MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[id] = _Failure(times, self.confirmed, self._unavailable, alone_since, min(aside, 10))
