"""The stream of a page that is open: server-sent events with the live part of the page, whenever it has changed.

All streams of a database share its poller, and all viewers who see the same share what was rendered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from postroad.console.pages import lanes, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.responses import Response

    from postroad.console.context import Context
    from postroad.console.database import Look

__all__ = ["live"]

STREAM_SECONDS: Final = 600.0
"""How long a stream lasts. The browser opens the next one by itself, and the user is asked for again."""

_VIEWS: Final[dict[str, tuple[str, Callable[[Look], dict[str, Any]]]]] = {
    "now": ("now_live.html", now.view),
    "lanes": ("lanes_live.html", lanes.view),
}


async def live(context: Context) -> Response:
    """The stream."""
    name = context.request.path_params["view"]
    if name not in _VIEWS:
        raise HTTPException(404, f"there is no live view {name!r}; there are {', '.join(_VIEWS)}")
    return StreamingResponse(_events(context, name), media_type="text/event-stream")


async def _events(context: Context, name: str) -> AsyncIterator[str]:
    deadline = asyncio.get_running_loop().time() + STREAM_SECONDS
    looks = context.database.poller.looks()
    before = None
    try:
        async for look in looks:
            text = _rendered(context, name, look)
            yield _event(text) if text != before else ":\n\n"
            before = text
            if asyncio.get_running_loop().time() > deadline:
                return
    finally:
        await looks.aclose()  # the poller stops with its last viewer


def _rendered(context: Context, name: str, look: Look) -> str:
    template, view = _VIEWS[name]
    seen_by = (name, context.user.role, context.request.scope.get("root_path", ""))
    if seen_by not in look.fragments:
        look.fragments[seen_by] = context.fragment(template, **view(look))
    return look.fragments[seen_by]


def _event(text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() if line.strip())
    return f"event: fragment\n{lines}\n"
