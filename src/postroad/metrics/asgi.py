"""Metrics and probes as an ASGI application, for a server that runs already: FastAPI, Starlette and others.

    app.mount("/postroad", metrics_app(metrics))    # /postroad/metrics, /postroad/livez, /postroad/readyz

It has no access control: mount it where only the monitoring comes. It imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.metrics.answers import answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from postroad.metrics.collect import Metrics

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

__all__ = ["metrics_app"]


def metrics_app(metrics: Metrics) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The application. Where it is mounted, its root is `/metrics`, too.

    A mounted application has no lifespan: enter `async with metrics:` in that of the application it is mounted in.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"metrics_app serves HTTP only, not {scope['type']!r}")
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/") or "/metrics"
        found = await answer(metrics, scope["method"], path)
        headers = [
            (b"content-type", found.content_type.encode()),
            (b"content-length", str(len(found.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": found.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else found.body})

    return app
