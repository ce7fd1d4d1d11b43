"""Changes to the log: rewind a sink, delete delivered messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from postroad.admin import Rewind
from postroad.console.access import Right
from postroad.console.changes.plan import Change, Given, Link, Plan, about, command, parse_time
from postroad.kinds import duration_text
from postroad.wording import one_line, time_text

if TYPE_CHECKING:
    from postroad.admin import Admin

__all__ = ["CHANGES"]


async def _rewind(admin: Admin, given: Given) -> Plan:
    until = given.position("until")
    which = Rewind(
        sink=await given.sink(admin),
        to=_place(given.needed("to")),
        until=await admin.end_of_log() if until is None else until,
        key=given.text("key"),
        type=given.text("type"),
        new_ids=given.flag("new_ids"),
    )
    number = await admin.preview_rewind(which)
    since = f"position {which.to:,}" if isinstance(which.to, int) else time_text(which.to)
    ids = "new ids: inboxes handle them again" if which.new_ids else "the same ids: inboxes ignore those that they know"
    to = given.needed("to") if isinstance(which.to, int) else which.to.isoformat()
    again = f"would be published again to sink {one_line(which.sink)!r}"
    return Plan(
        would=f"{about(number, 'message')} {again}, from {since} on, with {ids}",
        number=number,
        thing="message",
        nothing=f"no retained message that was delivered to sink {one_line(which.sink)!r} matches",
        grows=True,
        fixed={"until": str(which.until)},
        act=lambda by, _: admin.rewind(which, by),
        done="{} will be published again".format,
        command=command("rewind", to=to, sink=which.sink, key=which.key, type=which.type, new_ids=which.new_ids),
        warning="This can't be undone: what was published again can't be taken back.",
        back=Link("Time machine", "time-machine", {"sink": which.sink}),
    )


async def _cleanup(admin: Admin, given: Given) -> Plan:
    span, now = given.duration("older_than"), datetime.now(UTC)
    before = given.time("before") or now - span
    age = max(now - before, timedelta())
    number = await admin.preview_cleanup(age)
    return Plan(
        would=f"{about(number, 'message')} older than {duration_text(span)} would be deleted from the log",
        number=number,
        thing="message",
        nothing=f"no message is older than {duration_text(span)} and delivered to every sink",
        grows=True,
        fixed={"before": before.isoformat()},
        act=lambda by, _: admin.cleanup(age, by),
        done="deleted {}".format,
        command=command("cleanup", older_than=duration_text(span)),
        warning="This can't be undone. Messages that a sink has not had stay, whatever their age.",
        back=Link("Time machine", "time-machine"),
    )


CHANGES: Final = (
    Change(name="rewind", title="Rewind a sink", right=Right.ADMINISTER, plan=_rewind),
    Change(name="cleanup", title="Delete delivered messages", right=Right.ADMINISTER, plan=_cleanup),
)


def _place(text: str) -> datetime | int:
    return int(text) if text.isascii() and text.isdigit() else parse_time("to", text)
