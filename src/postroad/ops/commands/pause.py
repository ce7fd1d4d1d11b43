"""`postroad pause` and `postroad resume`: stop and start publishing to a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.admin import Count
from postroad.ops.parsing import SinkName  # noqa: TC001 - options are read from annotations
from postroad.ops.runner import Plan, Planning, changes

if TYPE_CHECKING:
    from postroad.admin import Admin
    from postroad.ops.settings import Settings

__all__ = ["pause", "resume"]


@changes(reason_required=False)
def pause(*, settings: Settings, sink: SinkName) -> Planning:
    """Publish nothing to a sink until `postroad resume`. Messages wait; running relays keep running."""

    async def plan(admin: Admin) -> Plan:
        return Plan(
            changes=await _lanes(admin, sink, paused=False),
            nothing=f"sink {sink!r} is paused already",
            would=f"sink {sink!r} would be paused",
            act=lambda admin, by, _: admin.pause(sink, by),
            thing="lane",
            done=lambda lanes: f"sink {sink!r} is paused ({lanes})",
        )

    return plan


@changes(reason_required=False)
def resume(*, settings: Settings, sink: SinkName) -> Planning:
    """Publish to a paused sink again."""

    async def plan(admin: Admin) -> Plan:
        return Plan(
            changes=await _lanes(admin, sink, paused=True),
            nothing=f"sink {sink!r} is not paused",
            would=f"sink {sink!r} would be resumed",
            act=lambda admin, by, _: admin.resume(sink, by),
            thing="lane",
            done=lambda lanes: f"sink {sink!r} is resumed ({lanes})",
        )

    return plan


async def _lanes(admin: Admin, sink: str, *, paused: bool) -> Count:
    report = await admin.sink(sink)
    return Count(len(report.lanes) if report.paused is paused else 0)
