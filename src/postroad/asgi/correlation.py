"""One correlation id per request, for FastAPI, Starlette and every other ASGI application.

    app.add_middleware(CorrelationMiddleware)

It imports no framework. Everything that the request adds, streamed answers and background tasks included, gets the id,
and the answer says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.correlation import CORRELATION_HEADER, request_correlation_id
from postroad.message import correlated
from postroad.trace_context import STATE_HEADER, TRACE_HEADER, trusted_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["CorrelationMiddleware"]

_HEADER = CORRELATION_HEADER.encode()
_ANSWERS = frozenset({"http.response.start", "websocket.accept"})


class CorrelationMiddleware:
    """Runs each request inside `correlated(...)`, with the id it came with or a new one."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        traceparent = _header(scope, TRACE_HEADER)
        id = request_correlation_id(_header(scope, CORRELATION_HEADER), traceparent)

        async def send_with_id(event: Event) -> None:
            if event["type"] in _ANSWERS:
                others = [(name, value) for name, value in event.get("headers", ()) if name.lower() != _HEADER]
                event = {**event, "headers": [*others, (_HEADER, id.encode())]}
            await send(event)

        trace = trusted_context(traceparent, _header(scope, STATE_HEADER))
        with correlated(id, **trace._asdict()):
            await self.app(scope, receive, send_with_id)


def _header(scope: Scope, wanted: str) -> str | None:
    """The header of that name, read as HTTP does; of `tracestate` there may be several, which are one list."""
    encoded = wanted.encode()
    found = [bytes(value).decode("latin-1") for name, value in scope["headers"] if name.lower() == encoded]
    return ",".join(found if wanted == STATE_HEADER else found[:1]) if found else None
