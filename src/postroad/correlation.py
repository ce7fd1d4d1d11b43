"""The correlation id of a request. An id from outside is used if it is well-formed, and ignored otherwise.

The middlewares of web frameworks read the headers and call these functions.
"""

from __future__ import annotations

import re
from typing import Final

from postroad.message import new_id

__all__ = ["CORRELATION_HEADER", "TRACE_HEADER", "request_correlation_id", "trusted_traceparent"]

CORRELATION_HEADER: Final = "x-correlation-id"
TRACE_HEADER: Final = "traceparent"

# It goes into logs, databases and the headers of brokers and answers: printable ASCII, no longer than AMQP can carry.
_ID: Final = re.compile(r"[\x20-\x7e]{1,255}")
# W3C Trace Context: version, trace id, parent id, flags; a later version may add more behind another dash.
_TRACE: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def request_correlation_id(given: str | None, traceparent: str | None) -> str:
    """The id that the caller gave, else its trace id, else a new id."""
    if given is not None and _ID.fullmatch(given := given.strip(" \t")):
        return given
    return _trace_id(traceparent) or str(new_id())


def trusted_traceparent(traceparent: str | None) -> str | None:
    """The header as it came, if it conforms to W3C Trace Context and is no longer than an id may be."""
    if traceparent is None or _trace_id(traceparent) is None or not _ID.fullmatch(kept := traceparent.strip(" \t")):
        return None
    return kept


def _trace_id(traceparent: str | None) -> str | None:
    found = _TRACE.fullmatch(traceparent.strip(" \t")) if traceparent is not None else None
    if found is None or (found[1] == "00" and found[3]):
        return None
    return found[2]
