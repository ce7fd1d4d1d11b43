"""The trace that a message belongs to, as W3C Trace Context: what is trusted of the headers of others, and the span
that is current in this process.

OpenTelemetry is never imported here: where the application has not imported it, no span can be current.
"""

from __future__ import annotations

import re
import sys
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from contextvars import Context

__all__ = [
    "NO_CONTEXT",
    "STATE_HEADER",
    "TRACE_HEADER",
    "TraceContext",
    "context_without_span",
    "current_context",
    "trace_id_of",
    "trusted_context",
]

TRACE_HEADER: Final = "traceparent"
STATE_HEADER: Final = "tracestate"

LONGEST_STATE: Final = 512  # what every service should pass on
# Version, trace id, parent id, flags; a later version may add more behind another dash.
_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
# They go into logs, databases and the headers of brokers: printable ASCII.
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]{1,255}")
_STATE: Final = re.compile(rf"[\x20-\x7e]{{1,{LONGEST_STATE}}}")


class TraceContext(NamedTuple):
    """The values of the two headers."""

    traceparent: str | None = None
    tracestate: str | None = None


NO_CONTEXT: Final = TraceContext()


def trusted_context(traceparent: str | None, tracestate: str | None = None) -> TraceContext:
    """The headers as they came, if `traceparent` conforms to the standard; without a `tracestate` that does not, or
    that is longer than 512 characters.
    """
    if traceparent is None or trace_id_of(traceparent) is None:
        return NO_CONTEXT
    if not _PRINTABLE.fullmatch(parent := traceparent.strip(" \t")):
        return NO_CONTEXT
    return TraceContext(parent, _usable(tracestate))


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id, if the header conforms to the standard."""
    found = _PARENT.fullmatch(traceparent.strip(" \t")) if traceparent is not None else None
    if found is None or (found[1] == "00" and found[3]):
        return None
    return found[2]


def current_context() -> TraceContext:
    """The context of OpenTelemetry's current span, if there is one."""
    get_span = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get_span is None:
        return NO_CONTEXT
    span = get_span().get_span_context()
    if not span.is_valid:
        return NO_CONTEXT
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    return TraceContext(parent, _usable(span.trace_state.to_header()) if span.trace_state else None)


def context_without_span() -> Context:
    """A copy of the current context in which no span is current: for tasks that outlive the block that starts them."""
    context, api = copy_context(), sys.modules.get("opentelemetry.context")
    if api is not None:
        context.run(api.attach, api.Context())
    return context


def _usable(tracestate: str | None) -> str | None:
    if tracestate is None or not _STATE.fullmatch(kept := tracestate.strip(" \t")):
        return None
    return kept
