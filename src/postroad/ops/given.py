"""What operators type: ids, moments, ages. What can't be understood is refused before any database is asked.

A moment is read as everything is shown, in UTC, unless it says its zone.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING

from postroad.errors import InvalidSetting
from postroad.kinds import duration

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

__all__ = ["did_you_mean", "older_than", "read_digits", "read_moment", "read_place", "read_text"]

_A_MOMENT = "a time such as '2026-03-01 04:30' (UTC) or '2026-03-01T04:30+02:00', or how long ago, such as '2h'"
_LARGEST_POSITION = 2**63 - 1
_FEW = 10


def read_digits(text: str) -> str:
    """The hexadecimal digits of a message's id, or of its beginning or its end."""
    digits = text.strip().lower().replace("-", "")
    if not re.fullmatch(r"[0-9a-f]{4,32}", digits):
        raise InvalidSetting(
            f"ID is {text!r}; it must be a message's id, such as '01a1e1a4-b273-7de5-a691-9ab476c02dc7', "
            "or at least 4 digits from its end or its beginning, such as '2dc7'"
        )
    return digits


def read_text(option: str, text: str) -> str:
    """A text that a database can hold."""
    if not text.strip():
        raise InvalidSetting(f"{option} is empty; it must be a text, or be left out")
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes on the command line that were no UTF-8
        raise InvalidSetting(f"{option} is {text!r}, which is no valid text") from None
    if "\0" in text:
        raise InvalidSetting(f"{option} is {text!r}; it must not contain a NUL character")
    return text


def read_moment(option: str, text: str, now: datetime) -> datetime:
    """A time, or how long ago."""
    found = _moment(text, now)
    if found is None:
        raise InvalidSetting(f"{option} is {text!r}; it must be {_A_MOMENT}")
    return found


def read_place(option: str, text: str, now: datetime) -> datetime | int:
    """A time, how long ago, or a position: a number alone."""
    number = text.strip()
    if re.fullmatch(r"[0-9]{1,19}", number) and int(number) <= _LARGEST_POSITION:
        return int(number)
    found = _moment(text, now)
    if found is None:
        raise InvalidSetting(f"{option} is {text!r}; it must be a position, which is a whole number, or {_A_MOMENT}")
    return found


def _moment(text: str, now: datetime) -> datetime | None:
    try:
        return now - duration("ago", text)
    except InvalidSetting:
        pass
    except OverflowError:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def older_than(text: str) -> timedelta:
    """An age."""
    return duration("--older-than", text)


def did_you_mean(name: str, names: Iterable[str], *, show_all: bool = True) -> str:
    """The nearest of the names that there are; or, where they are few, all of them."""
    known = sorted(names)
    near = get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if not show_all:
        return "nor one like it"
    if not known:
        return "there is none yet"
    more = f" and {len(known) - _FEW:,} more" if len(known) > _FEW else ""
    return f"there {'is' if len(known) == 1 else 'are'} {', '.join(map(repr, known[:_FEW]))}{more}"
