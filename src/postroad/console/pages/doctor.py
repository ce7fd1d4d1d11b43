"""Doctor: every check of `postroad doctor` that needs no broker, made when the page is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.admin import Level, examine

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.console.context import Context

__all__ = ["doctor"]

_ORDER: Final = (Level.ERROR, Level.WARNING, Level.OK, Level.SKIPPED)
WATCH_SECONDS: Final = 0.2


async def doctor(context: Context) -> Response:
    """The page."""
    database = context.database
    findings = await examine(database.url, schema=database.schema, watch_seconds=WATCH_SECONDS)
    levels = {level: [each for each in findings if each.level is level] for level in _ORDER}
    return context.page("doctor.html", levels=levels, Level=Level)
