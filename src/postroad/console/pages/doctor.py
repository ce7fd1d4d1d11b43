"""Doctor: every check of `postroad doctor` that needs no broker.

All who open the page within some seconds share one examination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.admin import Level

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroad.console.context import Context

__all__ = ["doctor"]

_ORDER: Final = (Level.ERROR, Level.WARNING, Level.OK, Level.SKIPPED)


async def doctor(context: Context) -> Response:
    """The page."""
    found = await context.database.doctor.latest()
    levels = {level: [each for each in found.findings if each.level is level] for level in _ORDER}
    return context.page("doctor.html", levels=levels, Level=Level, at=found.at)
