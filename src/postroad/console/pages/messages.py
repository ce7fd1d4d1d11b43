"""Messages: a list, newest first, with a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.admin import Filter, State
from postroad.console.pages.change import given_to

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.console.context import Context

__all__ = ["messages"]

PAGE: Final = 50


async def messages(context: Context) -> Response:
    """The page."""
    admin, given = await context.database.admin(), given_to(context)
    which = given.filter()
    which = Filter(all=True) if which == Filter() else which
    below = given.text("below")
    page = await admin.messages(which, PAGE, below=int(below) if below and below.isdecimal() else None)
    older = min((row.position for row in page.messages), default=None) if len(page.messages) == PAGE else None
    query = [pair for pair in given.query() if pair[0] != "below"]
    return context.page(
        "messages.html",
        page=page,
        given=given,
        sinks=await admin.sinks(),
        states=list(State),
        older=None if older is None else context.link("messages", [*query, ("below", str(older))]),
    )
