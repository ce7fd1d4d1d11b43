"""Telling PostgreSQL's errors apart, as asyncpg, psycopg, libpq and SQLAlchemy raise them."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import IdTaken, NotOwner
from postroad.stores.dialects.base import DatabaseErrors
from postroad.stores.migrations import not_migrated

if TYPE_CHECKING:
    from postroad.errors import PostroadError

__all__ = ["PostgreSQLErrors"]

# Connection exceptions, a server that shuts down or starts, and the timeouts of idle and of long transactions, which
# close the connection.
_LOST: Final = ("08", "57P0", "25P03", "25P04")
_CONFLICTS: Final = ("40001", "40P01")  # a serialization failure, a deadlock
_LOCK_TIMEOUT: Final = "55P03"
_ABORTED: Final = "25P02"
_NO_TABLE, _NO_FUNCTION, _NO_SCHEMA = "42P01", "42883", "3F000"  # by number: the words may be in any language
_RECONNECT: Final = "8s2b"  # SQLAlchemy's code for a connection that was lost earlier in the transaction

# A lock that another transaction has; connection exceptions; a server that starts, stops or recovers; one without room
# for another connection.
_TRANSIENT: Final = (_LOCK_TIMEOUT, "08000", "08001", "08003", "08004", "08006", "57P01", "57P02", "57P03", "53")
# libpq has no SQLSTATE for a connection that was not made, only words.
_TRANSIENT_WORDS: Final = (
    "connection refused",
    "the database system is",
    "not yet accepting connections",
    "temporary failure in name resolution",
    "timeout expired",
    "timed out",
    "server closed the connection",
    "connection reset",
    "no route to host",
    "network is unreachable",
    "too many clients",
    "too many connections",
    "remaining connection slots",
    "is the server running",
    "couldn't get a connection",
    "the connection is lost",
    "the connection is closed",
)
# A server that answers "FATAL:" and none of these has refused the login or the database. With several addresses libpq
# reports all of their failures in one text, and another address may have refused the connection.
_REFUSED: Final = "fatal:"
_NO_REFUSAL: Final = (
    "the database system is",
    "not yet accepting connections",
    "too many clients",
    "too many connections",
    "remaining connection slots",
)
_NO_TLS: Final = "rejected SSL upgrade"
"""asyncpg's error about a server without TLS, where the settings ask for it."""


class PostgreSQLErrors(DatabaseErrors):
    """By SQLSTATE where there is one, and else by class and words."""

    def is_retryable(self, error: BaseException) -> bool:
        return _sqlstate(error).startswith((*_LOST, *_CONFLICTS)) or _is_closed(error)

    def is_lock_timeout(self, error: BaseException) -> bool:
        return _sqlstate(error) == _LOCK_TIMEOUT

    def is_aborted(self, error: BaseException) -> bool:
        return _sqlstate(error) == _ABORTED

    def is_final(self, error: BaseException) -> bool:
        if type(error).__name__ == "ClientConfigurationError":  # asyncpg's, raised in the context of a missing file
            return True
        words = str(error).lower() if _is_operational(error) else ""
        return _REFUSED in words and not any(each in words for each in _NO_REFUSAL)

    def is_transient(self, error: BaseException) -> bool:
        state = str(getattr(error, "sqlstate", None) or "")
        if state:
            return state.startswith(_TRANSIENT)
        match error:
            case ssl.SSLError() | PermissionError():
                return False
            case socket.gaierror():
                return error.errno == socket.EAI_AGAIN
            case OSError() | TimeoutError():
                return _NO_TLS not in str(error)
        if _is_operational(error):
            words = str(error).lower()
            return any(each in words for each in _TRANSIENT_WORDS)
        return _is_pool_timeout(error) or _is_closed(error)

    def as_ours(self, error: BaseException, schema: str) -> PostroadError | None:
        state, words = _sqlstate(error), str(error)
        match state:
            case "PR409":
                return IdTaken(f"{_message_and_hint(error)}; roll back, or add this one with an id of its own")
            case "PR403":
                return NotOwner(_message_and_hint(error))
        if state == _NO_TABLE and f"{schema}.outbox" in words:
            return not_migrated(schema)
        if (
            (state == _NO_TABLE and any(f"{schema}.{table}" in words for table in ("scheduled", "inbox")))
            or (state == _NO_FUNCTION and f"{schema}." in words)
            or (state == _NO_SCHEMA and schema in words)
        ):
            return not_migrated(schema, None)
        return None


def _sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")


def _is_operational(error: BaseException) -> bool:
    return any(base.__name__ == "OperationalError" for base in type(error).__mro__)


def _is_pool_timeout(error: BaseException) -> bool:
    """Whether no connection of SQLAlchemy's pool became free in time. psycopg's is an OperationalError."""
    return (type(error).__module__, type(error).__name__) == ("sqlalchemy.exc", "TimeoutError")


def _is_closed(error: BaseException) -> bool:
    """Whether a driver, or SQLAlchemy, reports that the connection is gone, without an error of the server."""
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
            return not _sqlstate(error)
        case ("psycopg" | "psycopg2", "InterfaceError"):
            return "connection already closed" in str(error)
    return False


def _message_and_hint(error: Any) -> str:
    """Without what drivers write around them."""
    diagnostics = getattr(error, "diag", None)  # psycopg's
    if diagnostics is not None:
        parts = (diagnostics.message_primary, diagnostics.message_hint)
    else:
        parts = (getattr(error, "message", None) or str(error), getattr(error, "hint", None))
    return ". ".join(part.rstrip(".") for part in parts if part)
