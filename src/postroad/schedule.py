"""Scheduled messages: when they are due, and the result of canceling one. No I/O and no clock.

Times are checked here, before anything is written.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.errors import InvalidMessage, InvalidSetting
from postroad.kinds import duration

if TYPE_CHECKING:
    from postroad.message import Message, NewRow

__all__ = ["Cancellation", "Later", "later"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The range that databases store and every time zone can show: earlier is due at once, later never.
_FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Cancellation(Enum):
    """The result of `Outbox.cancel`. Only CANCELED is true, so `if outbox.cancel(...)` does what it looks like."""

    CANCELED = "canceled"
    """It was not published and will not be, provided that the caller's transaction commits."""
    TOO_LATE = "too late"
    """It was published, or may be at this moment; or an operator has dropped or skipped it."""
    UNKNOWN = "unknown"
    """There is no such message: never added, not yet committed, or already deleted by retention."""

    def __bool__(self) -> bool:
        return self is Cancellation.CANCELED


class Later(NamedTuple):
    """A row that is written now and moved into the log when it is due. One of the two times is set."""

    row: NewRow
    at: int | None
    """Microseconds since 1970."""
    after: int | None
    """Microseconds after it is written, by the database's clock."""


def later(message: Message, row: NewRow) -> Later:
    """The row of a message with `deliver_at` or `deliver_in`, and when it is due. Raises InvalidMessage."""
    at, after = message.deliver_at, message.deliver_in
    if at is not None and after is not None:
        raise InvalidMessage(f"deliver_at is {at!r:.80} and deliver_in is {after!r:.80}; give one of them, not both")
    if at is not None:
        return Later(row, (min(max(_checked_time(at), _FIRST), _LAST) - _EPOCH) // _MICROSECOND, None)
    return Later(row, None, _checked_delay(after) // _MICROSECOND)


def _checked_time(value: Any) -> datetime:
    right = "it must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"
    if not isinstance(value, datetime):
        raise InvalidMessage(f"deliver_at is {value!r:.80}; {right}")
    if value.utcoffset() is None:
        raise InvalidMessage(f"deliver_at is {value!r:.80}, which has no time zone; {right}")
    return value


def _checked_delay(value: Any) -> timedelta:
    try:
        return duration("deliver_in", value)
    except InvalidSetting:
        raise InvalidMessage(
            f"deliver_in is {value!r:.80}; it must be a timedelta from 0 to 36,500 days, "
            "or a number with its unit, such as '50ms', '5s', '10m', '12h', '7d'"
        ) from None
