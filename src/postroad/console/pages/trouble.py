"""Trouble: what fails, in groups by the pattern of the error; a group can be retried or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.admin import State

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.console.context import Context

__all__ = ["trouble"]


async def trouble(context: Context) -> Response:
    """The page."""
    admin = await context.database.admin()
    sink = context.request.query_params.get("sink") or None
    groups = await admin.trouble(sink)
    look = await context.database.poller.latest()
    return context.page("trouble.html", groups=groups, sink=sink, look=look, dead=State.DEAD)
