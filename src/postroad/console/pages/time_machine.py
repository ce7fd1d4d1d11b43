"""Time machine: how far back a sink would be rewound, and what would be published again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from postroad.admin import Rewind
from postroad.console.changes.plan import about
from postroad.console.pages.change import given_to
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.admin import RewindPreview
    from postroad.console.changes.plan import Given
    from postroad.console.context import Context

__all__ = ["beginning", "time_machine"]

MOST_HOURS: Final = 168


async def time_machine(context: Context) -> Response:
    """The page."""
    admin, given = await context.database.admin(), given_to(context)
    sinks = await admin.sinks()
    to = beginning(given, datetime.now(UTC))
    found: RewindPreview | None = None
    if to is not None and sinks:
        sink = given.text("sink") or sinks[0]
        asked = Rewind(sink=sink, to=to, key=given.text("key"), type=given.text("type"), new_ids=given.flag("new_ids"))
        found = await admin.preview_rewind_details(asked)
    rewind = [pair for pair in given.query() if pair[0] not in {"to", "ago"}]
    return context.page(
        "time_machine.html",
        given=given,
        sinks=sinks,
        to=to,
        found=found,
        many="" if found is None else about(found.count, "message"),
        most=MOST_HOURS,
        rewind=None if to is None else [*rewind, ("to", to.isoformat(timespec="seconds"))],
    )


def beginning(given: Given, now: datetime) -> datetime | None:
    """From when on: the time that was given, or so many hours ago."""
    time, ago = given.time("to"), given.text("ago")
    if time is not None or ago is None:
        return time
    if not (ago.isascii() and ago.isdigit() and 1 <= int(ago) <= MOST_HOURS):
        raise InvalidSetting(f"ago is {ago!r}; it must be a number of hours from 1 to {MOST_HOURS}")
    return now - timedelta(hours=int(ago))
