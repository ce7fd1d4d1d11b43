"""The correlation id of a request. An id from outside is used if it is well-formed, and ignored otherwise.

The middlewares of web frameworks read the headers and call these functions.
"""

from __future__ import annotations

import re
from typing import Final

from postroad.message import new_id
from postroad.trace_context import trace_id_of

__all__ = ["CORRELATION_HEADER", "request_correlation_id"]

CORRELATION_HEADER: Final = "x-correlation-id"

# It goes into logs, databases and the headers of brokers and answers: printable ASCII, no longer than AMQP can carry.
_ID: Final = re.compile(r"[\x20-\x7e]{1,255}")


def request_correlation_id(given: str | None, traceparent: str | None) -> str:
    """The id that the caller gave, else its trace id, else a new id."""
    if given is not None and _ID.fullmatch(given := given.strip(" \t")):
        return given
    return trace_id_of(traceparent) or str(new_id())
