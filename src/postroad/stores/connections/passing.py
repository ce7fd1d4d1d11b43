"""Whether an error passes by itself: the connection is gone, or two transactions were in each other's way.

Every driver, and every layer around it, has its way to say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_lock_timeout", "is_passing"]

_LOST = ("08", "57P0")  # connection exceptions, and a server that shuts down or starts
_CONFLICTS = ("40001", "40P01")  # a serialization failure, a deadlock
_LOCK_TIMEOUT = "55P03"


def is_passing(error: BaseException) -> bool:
    """The same work may well succeed when it is done again."""
    return any(_state(each).startswith((*_LOST, *_CONFLICTS)) or _says_closed(each) for each in _layers(error))


def is_lock_timeout(error: BaseException) -> bool:
    """Somebody else has locked a row for longer than `lock_timeout`."""
    return any(_state(each) == _LOCK_TIMEOUT for each in _layers(error))


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _says_closed(error: BaseException) -> bool:
    """What a driver says of itself, without a word of the server's."""
    match type(error).__module__.partition(".")[0], type(error).__name__:
        case ("asyncpg", "InterfaceError"):  # which is also raised for mistakes
            return "closed" in str(error)
        case ("psycopg" | "psycopg2", "OperationalError"):
            return not _state(error)
    return False


def _layers(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was made from or came after: a roll-back on a lost connection fails as well."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
