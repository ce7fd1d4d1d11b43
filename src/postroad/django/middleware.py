"""One correlation id per request, for Django, under WSGI and ASGI alike.

Everything that the view adds gets the id, and the response has it. A streamed body is made after the middleware has
ended: what is added while it streams needs a `correlated` of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from postroad.correlation import CORRELATION_HEADER, request_correlation_id
from postroad.message import correlated
from postroad.trace_context import STATE_HEADER, TRACE_HEADER, trusted_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    from postroad.trace_context import TraceContext

    View = Callable[[HttpRequest], HttpResponseBase]
    AsyncView = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

__all__ = ["CorrelationMiddleware"]


class CorrelationMiddleware:
    """Runs each request inside `correlated(...)`, with the id it came with or a new one."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: View | AsyncView) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)  # Django asks the middleware itself which of the two it is

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        traceparent = request.headers.get(TRACE_HEADER)
        id = request_correlation_id(request.headers.get(CORRELATION_HEADER), traceparent)
        trace = trusted_context(traceparent, request.headers.get(STATE_HEADER))
        if self._is_async:
            return self._answer_async(request, id, trace)
        with correlated(id, **trace._asdict()):
            response = cast("View", self._get_response)(request)
        response.headers[CORRELATION_HEADER] = id
        return response

    async def _answer_async(self, request: HttpRequest, id: str, trace: TraceContext) -> HttpResponseBase:
        with correlated(id, **trace._asdict()):
            response = await cast("AsyncView", self._get_response)(request)
        response.headers[CORRELATION_HEADER] = id
        return response
