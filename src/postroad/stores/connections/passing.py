"""Whether an error passes by itself: the connection is gone, or two transactions were in each other's way.

Every driver, and every layer around it, has its way to say so.
"""

from __future__ import annotations

from postroad.causes import chain

__all__ = ["is_aborted", "is_lock_timeout", "is_passing", "says_closed"]

_LOST = ("08", "57P0", "25P03", "25P04")  # connection exceptions, a server that shuts down or starts, and timeouts
# of idle and of long transactions, which end the connection
_CONFLICTS = ("40001", "40P01")  # a serialization failure, a deadlock
_LOCK_TIMEOUT = "55P03"
_ABORTED = "25P02"
# SQLite: another connection has locked the file, or the file can't be written.
_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")
_RECONNECT = "8s2b"  # SQLAlchemy's code for a connection that was lost earlier in the transaction


def is_passing(error: BaseException) -> bool:
    """The same work may well succeed when it is done again."""
    return any(
        _state(each).startswith((*_LOST, *_CONFLICTS))
        or str(getattr(each, "sqlite_errorname", "")).startswith(_SQLITE)
        or says_closed(each)
        for each in chain(error, contexts=True)
    )


def is_lock_timeout(error: BaseException) -> bool:
    """Another transaction has locked a row for longer than `lock_timeout`."""
    return any(_state(each) == _LOCK_TIMEOUT for each in chain(error, contexts=True))


def is_aborted(error: BaseException) -> bool:
    """A statement has failed earlier in the transaction."""
    return any(_state(each) == _ABORTED for each in chain(error, contexts=True))


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def says_closed(error: BaseException) -> bool:
    """Whether a driver, or SQLAlchemy, says by itself that the connection is gone, without a word from the server."""
    if getattr(error, "connection_invalidated", False) is True or getattr(error, "code", None) == _RECONNECT:
        return True
    return any(_is_closed_error(base, error) for base in type(error).__mro__)


def _is_closed_error(cls: type, error: BaseException) -> bool:
    match cls.__module__.partition(".")[0], cls.__name__:
        case ("asyncpg", "InterfaceError"):  # which is also raised for mistakes
            return "closed" in str(error)
        case ("asyncpg", "InternalClientError"):  # the server's last message came when none was expected
            return True
        case ("psycopg" | "psycopg2", "OperationalError"):
            return not _state(error)
        case ("psycopg" | "psycopg2", "InterfaceError"):
            return "connection already closed" in str(error)
    return False
