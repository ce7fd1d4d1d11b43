"""Changes to sinks: pause, resume, adopt a replication slot, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.admin import Count, totals
from postroad.console.access import Right
from postroad.console.changes.plan import Change, Given, Link, Plan, about, command
from postroad.wording import one_line

if TYPE_CHECKING:
    from postroad.admin import Admin, SinkReport

__all__ = ["CHANGES"]

_BACK: Final = Link("Lanes", "lanes")
_NOW: Final = Link("Now", "")


async def _pause(admin: Admin, given: Given) -> Plan:
    sink = await given.sink(admin)
    report = await admin.sink(sink)
    return Plan(
        would=f"sink {one_line(sink)!r} would be paused: its messages wait, and its relays keep running",
        number=Count(0 if report.paused else len(report.lanes)),
        thing="lane",
        nothing=f"sink {one_line(sink)!r} is paused already",
        act=lambda by, _: admin.pause(sink, by),
        done=lambda lanes: f"sink {one_line(sink)!r} is paused ({lanes})",
        command=command("pause", sink),
        undo=Link("Undo: resume it", "do/resume", {"sink": sink}),
        back=_NOW,
    )


async def _resume(admin: Admin, given: Given) -> Plan:
    sink = await given.sink(admin)
    report = await admin.sink(sink)
    return Plan(
        would=f"sink {one_line(sink)!r} would be resumed, with {_undelivered(report)} to send",
        number=Count(len(report.lanes) if report.paused else 0),
        thing="lane",
        nothing=f"sink {one_line(sink)!r} is not paused",
        act=lambda by, _: admin.resume(sink, by),
        done=lambda lanes: f"sink {one_line(sink)!r} is resumed ({lanes})",
        command=command("resume", sink),
        undo=Link("Undo: pause it again", "do/pause", {"sink": sink}),
        back=_NOW,
    )


async def _adopt_slot(admin: Admin, given: Given) -> Plan:
    sink = await given.sink(admin)
    slot = await admin.preview_adopt_slot(sink)
    adopted = f"the replication slot {one_line(slot.name)!r} as it is now"
    return Plan(
        would=f"sink {one_line(sink)!r} would follow {adopted}, and be resumed",
        number=Count(1),
        thing="lane",
        act=lambda by, _: admin.adopt_slot(sink, by),
        done=lambda _: f"sink {one_line(sink)!r} follows {adopted}",
        command=command("sink", "adopt-slot", sink),
        warning=f"This can't be undone: {_undelivered(await admin.sink(sink))} will count as carried by the slot.",
        back=_NOW,
    )


async def _remove(admin: Admin, given: Given) -> Plan:
    sink = await given.sink(admin)
    report = await admin.preview_remove_sink(sink)
    place = one_line(report.destination or "(unknown)")
    only = len(await admin.sinks()) == 1
    last = " It is the only sink: retention deletes nothing until there is another." if only else ""
    return Plan(
        would=f"sink {one_line(sink)!r}, which delivers to {place}, would be removed",
        number=Count(1),
        thing="lane",
        act=lambda by, _: admin.remove_sink(sink, by),
        done=lambda lanes: f"removed sink {one_line(sink)!r} ({lanes})",
        command=command("sink", "remove", sink),
        warning=f"This can't be undone: {_undelivered(report)} will never be delivered there.{last}",
        back=_BACK,
    )


CHANGES: Final = (
    Change(name="pause", title="Pause a sink", right=Right.OPERATE, plan=_pause, reason_required=False),
    Change(name="resume", title="Resume a sink", right=Right.OPERATE, plan=_resume, reason_required=False),
    Change(name="adopt-slot", title="Adopt a replication slot", right=Right.ADMINISTER, plan=_adopt_slot),
    Change(name="remove-sink", title="Remove a sink", right=Right.ADMINISTER, plan=_remove),
)


def _undelivered(report: SinkReport) -> str:
    return about(totals([report]).undelivered, "undelivered message")
