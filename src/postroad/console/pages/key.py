"""Key: at each sink its messages in order, with the one that blocks the others; who holds it, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.console.pages.change import given_to
from postroad.console.pages.message import answer_view
from postroad.errors import NotFound

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.admin import KeyWindow
    from postroad.console.context import Context

__all__ = ["key"]

SHOWN: Final = 50


async def key(context: Context) -> Response:
    """The page; without a key, the keys that are held."""
    admin, given = await context.database.admin(), given_to(context)
    name, sink = given.text("key"), given.text("sink")
    if name is None:
        return context.page("keys.html", held=await admin.held_keys(None))
    sinks = [sink] if sink is not None else await admin.sinks()
    windows: list[KeyWindow] = []
    for each in sinks:
        try:
            windows.append(await admin.key_window(each, name, SHOWN))
        except NotFound:  # no relay has served the sink yet
            continue
    views = [(window, answer_view(window.answer)) for window in windows]
    return context.page("key.html", key=name, windows=views, several=len(views) > 1)
