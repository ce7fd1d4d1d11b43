"""Whether a database that could not be reached is worth waiting for: it is starting, or the network is not up yet.

Wrong credentials, a missing database or a certificate that is not trusted will not mend themselves. Every driver has
its way to say which it is; this is the one place that tells them apart.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from postroad.causes import chain
from postroad.stores.connections.passing import says_closed

__all__ = ["is_transient"]

# A lock that another transaction has; connection exceptions; a server that starts, stops or recovers; one without room
# for another connection.
_STATES: Final = ("55P03", "08000", "08001", "08003", "08004", "08006", "57P01", "57P02", "57P03", "53")
# libpq has no SQLSTATE for a connection that was not made, only words.
_WORDS: Final = (
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
"""What asyncpg says of a server without TLS, which was asked for."""


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed a little later, without anything being changed."""
    for each in chain(error, contexts=True):
        if _is_final(each):
            return False
        if _says_so(each):
            return True
    return False


def _is_final(error: BaseException) -> bool:
    """Whether this decides it, whatever lies behind: asyncpg can't use its settings, or a server refused the client."""
    if type(error).__name__ == "ClientConfigurationError":  # raised in the context of a missing file
        return True
    words = str(error).lower() if _is_operational(error) else ""
    return _REFUSED in words and not any(each in words for each in _NO_REFUSAL)


def _is_operational(error: BaseException) -> bool:
    return any(base.__name__ == "OperationalError" for base in type(error).__mro__)


def _says_so(error: BaseException) -> bool:
    state = str(getattr(error, "sqlstate", None) or "")
    if state:
        return state.startswith(_STATES)
    match error:
        case ssl.SSLError() | PermissionError():
            return False
        case socket.gaierror():
            return error.errno == socket.EAI_AGAIN
        case OSError() | TimeoutError():
            return _NO_TLS not in str(error)
    if _is_operational(error):
        words = str(error).lower()
        return any(each in words for each in _WORDS) or words.startswith("database is locked")
    return type(error).__name__ == "PoolTimeout" or says_closed(error)
