"""Lanes: which relay owns which lane, how long its lease lasts, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.console.context import Context
    from postroad.console.database import Look

__all__ = ["lanes", "view"]


async def lanes(context: Context) -> Response:
    """The page."""
    return context.page("lanes.html", **view(await context.database.poller.latest()))


def view(look: Look) -> dict[str, Any]:
    """What the live part of the page shows."""
    snapshot = look.snapshot
    if snapshot is None:
        return {"look": look, "sinks": [], "relays": [], "owners": {}, "at": None}
    owners = {relay.owner: relay for relay in snapshot.relays}
    return {
        "look": look,
        "sinks": snapshot.report.sinks,
        "relays": snapshot.relays,
        "owners": owners,
        "at": snapshot.report.at,
    }
