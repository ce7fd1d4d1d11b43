"""Whether a database that could not be reached is worth waiting for: it is starting, or the network is not up yet.

Wrong credentials, a missing database or a certificate that is not trusted will not mend themselves. Every driver has
its way to say which it is; this is the one place that tells them apart.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_transient"]

# Connection exceptions; a server that starts, stops or recovers; one without room for another connection.
_STATES: Final = ("08000", "08001", "08003", "08004", "08006", "57P01", "57P02", "57P03", "53")
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
    "is the server running",
    "couldn't get a connection",
)

_NO_TLS: Final = "rejected SSL upgrade"
"""What asyncpg says of a server without TLS, which was asked for."""


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed a little later, without anything being changed."""
    return any(map(_says_so, _layers(error)))


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
    if any(base.__name__ == "OperationalError" for base in type(error).__mro__):
        words = str(error).lower()
        return any(each in words for each in _WORDS) or words.startswith("database is locked")
    return type(error).__name__ == "PoolTimeout"


def _layers(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
