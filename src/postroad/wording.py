"""How times, lengths of time, numbers of things and texts from outside are written for people. Pure.

The same words are used by the command line and by the answers of `Admin`, which a console shows too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from postroad.safe_text import harmless, without_passwords

__all__ = ["advice_on_route", "age", "count", "moment", "one_line", "time_text", "without_secrets"]

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


# -- texts -----------------------------------------------------------------------------------------------------------


def one_line(text: str, most: int | None = None) -> str:
    """The text as one line without control characters; a text longer than `most` is cut and ends in three dots."""
    line = harmless(text)
    return line if most is None or len(line) <= most else f"{line[: most - 3]}..."


def without_secrets(text: str, most: int | None = None) -> str:
    """An error or a reason as one line. It may quote a URL, so passwords in it are masked."""
    return one_line(without_passwords(text), most)


def advice_on_route(route: str) -> str:
    """What to do about a blocked route: the URL of an endpoint, or a name of the broker's."""
    if route.startswith(("http://", "https://")):
        return "find out why this endpoint does not answer with 2xx"
    return "bind a queue to this route, create its topic, or make room in it"


# -- times and numbers -----------------------------------------------------------------------------------------------


def time_text(time: datetime | None) -> str:
    """A time, always in UTC."""
    return "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def age(span: timedelta | float) -> str:
    """A length of time, in at most two units."""
    seconds = int(span.total_seconds() if isinstance(span, timedelta) else span)
    for at, (size, unit) in enumerate(_UNITS):
        if abs(seconds) >= size:
            whole, rest = divmod(abs(seconds), size)
            smaller, small_unit = _UNITS[min(at + 1, len(_UNITS) - 1)]
            second = f" {rest // smaller}{small_unit}" if rest // smaller and size != smaller else ""
            return f"{'-' if seconds < 0 else ''}{whole}{unit}{second}"
    return "0s"


def moment(time: datetime, now: datetime) -> str:
    """A time, and how far it is from now: `2026-03-01 04:30:00Z (2m ago)`."""
    distance = f"in {age(time - now)}" if time > now else f"{age(now - time)} ago"
    return f"{time_text(time)} ({distance})"


def count(number: int, thing: str) -> str:
    """A number of things: `1 message`, `2,000 messages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
