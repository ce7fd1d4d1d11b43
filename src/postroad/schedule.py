"""What is to be sent later: when it is due, as a caller may say it, and what canceling it answers.

Nothing here does I/O. Whatever is wrong with a time is found here, before anything is written.
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
# What the databases take, and every time zone can show: what is outside is due at once, or never.
_FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Cancellation(Enum):
    """What `Outbox.cancel` answers. Only CANCELED is true, so that `if outbox.cancel(...)` means what it says."""

    CANCELED = "canceled"
    """It was published nowhere and will not be, provided that the caller's transaction commits."""
    TOO_LATE = "too late"
    """It was published, is being published or is about to be; or an operator has dropped or skipped it."""
    UNKNOWN = "unknown"
    """There is none: never added, added by a transaction that is not committed, or gone from the tables again."""

    def __bool__(self) -> bool:
        return self is Cancellation.CANCELED


class Later(NamedTuple):
    """A row that is written now and enters the log when it is due. One of the two times is given."""

    row: NewRow
    at: int | None
    """Microseconds since 1970."""
    after: int | None
    """Microseconds from when it is written, by the database's clock."""


def later(message: Message, row: NewRow) -> Later:
    """The row of a message that says when it is to be delivered, and when that is. Raises InvalidMessage."""
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
        raise InvalidMessage(f"deliver_at is {value!r:.80}, which names no moment without a time zone; {right}")
    return value


def _checked_delay(value: Any) -> timedelta:
    try:
        return duration("deliver_in", value)
    except InvalidSetting:
        raise InvalidMessage(
            f"deliver_in is {value!r:.80}; it must be a timedelta from 0 to 36,500 days, "
            "or a number with its unit, such as '50ms', '5s', '10m', '12h', '7d'"
        ) from None
