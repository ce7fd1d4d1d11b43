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
    # Only a page without groups says that something else is wrong, and a look costs more than all groups.
    problems = () if groups else (await context.database.poller.latest()).problems
    return context.page("trouble.html", groups=groups, sink=sink, problems=problems, dead=State.DEAD)
