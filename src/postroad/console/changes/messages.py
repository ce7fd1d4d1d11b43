"""Changes to messages: retry, drop, restore, skip, poison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from postroad.admin import Count, Filter, State
from postroad.console.access import Right
from postroad.console.changes.plan import Change, Given, Link, Plan, about, command
from postroad.errors import InvalidSetting
from postroad.wording import one_line

if TYPE_CHECKING:
    from postroad.admin import Admin, MessageRow

__all__ = ["CHANGES"]

SAMPLE: Final = 10
_NO_DEAD: Final = "no dead message matches any more: they were retried, dropped or canceled meanwhile"


async def _retry(admin: Admin, given: Given) -> Plan:
    which, number, sample = await _dead(admin, given)
    return Plan(
        would=f"{_many(number, which, 'dead message')} would be retried, at once and with all attempts",
        number=number,
        thing="dead message",
        nothing=_NO_DEAD,
        act=lambda by, expected: admin.retry(which, by, expected=expected),
        done="{} will be retried".format,
        command=command("dead", "retry", *map(str, which.ids), **_options(which)),
        sample=sample,
        undo=_poison_again(which),
        back=_back(which),
    )


async def _drop(admin: Admin, given: Given) -> Plan:
    which, number, sample = await _dead(admin, given)
    return Plan(
        would=f"{_many(number, which, 'dead message')} would be dropped: they are never published",
        number=number,
        thing="dead message",
        nothing=_NO_DEAD,
        act=lambda by, expected: admin.drop(which, by, expected=expected),
        done="dropped {}".format,
        command=command("dead", "drop", *map(str, which.ids), **_options(which)),
        sample=sample,
        undo=Link("Undo: restore them", "do/restore", _query(which)),
        back=_back(which),
    )


async def _restore(admin: Admin, given: Given) -> Plan:
    which = replace(_selected(given), state=State.DROPPED)
    number = await admin.preview_restore(which)
    page = await admin.messages(which, SAMPLE)
    return Plan(
        would=f"{_many(number, which, 'dropped message')} would be dead again, and can be retried then",
        number=number,
        thing="dropped message",
        nothing="no dropped message matches any more: retention has deleted them, or they were restored meanwhile",
        act=lambda by, expected: admin.restore(which, by, expected=expected),
        done="restored {}; they are dead, and can be retried".format,
        command=command("dead", "restore", *map(str, which.ids), **_options(which)),
        sample=page.messages,
        undo=Link("Undo: drop them again", "do/drop", _query(which)),
        back=_back(which),
    )


async def _skip(admin: Admin, given: Given) -> Plan:
    id, sink = given.id(), given.text("sink")
    rows = await admin.preview_skip(id, sink)
    return Plan(
        would=f"message {id} would be skipped at {_places(rows)}: it is never published there",
        number=Count(len(rows)),
        thing="sink",
        act=lambda by, expected: admin.skip(Filter(ids=(id,), sink=sink), by, expected=expected),
        done=lambda sinks: f"skipped message {id} at {sinks}",
        command=command("message", "skip", str(id), sink=sink),
        warning="This can't be undone. It is for a message that was published by other means.",
        sample=rows,
        back=Link("Back to the message", f"message/{id}"),
    )


async def _poison(admin: Admin, given: Given) -> Plan:
    id, sink, holds = given.id(), given.text("sink"), given.flag("hold_key")
    rows = await admin.preview_poison(id, sink)
    later = ", and later messages of its key would be held" if holds else ""
    return Plan(
        would=f"message {id} would be dead at {_places(rows)}: it is not attempted any more{later}",
        number=Count(len(rows)),
        thing="sink",
        act=lambda by, expected: admin.poison(Filter(ids=(id,), sink=sink), by, holds_key=holds, expected=expected),
        done=lambda sinks: f"message {id} is dead at {sinks}",
        command=command("message", "poison", str(id), sink=sink, hold_key=holds),
        sample=rows,
        undo=Link("Undo: retry it", "do/retry", _query(Filter(ids=(id,), sink=sink))),
        back=Link("Back to the message", f"message/{id}"),
    )


CHANGES: Final = (
    Change(name="retry", title="Retry dead messages", right=Right.OPERATE, plan=_retry, reason_required=False),
    Change(name="drop", title="Drop dead messages", right=Right.OPERATE, plan=_drop),
    Change(name="restore", title="Restore dropped messages", right=Right.OPERATE, plan=_restore, reason_required=False),
    Change(name="skip", title="Skip a message", right=Right.ADMINISTER, plan=_skip),
    Change(name="poison", title="Poison a message", right=Right.OPERATE, plan=_poison),
)


async def _dead(admin: Admin, given: Given) -> tuple[Filter, Count, list[MessageRow]]:
    """The dead messages that are chosen, how many there are, and the newest of them."""
    which = replace(_selected(given), state=State.DEAD)
    number = await admin.preview_dead(which)
    page = await admin.messages(which, SAMPLE)
    return which, number, list(page.messages)


def _selected(given: Given) -> Filter:
    which = given.filter(state=None)
    if which.is_empty and not which.all:
        raise InvalidSetting("no messages are selected; choose some, or all")
    return which


def _many(number: Count, which: Filter, thing: str) -> str:
    """A count by the pattern of the error is a lower bound where it stopped; other counts are estimated."""
    return about(number, thing, lower_bound=which.error_pattern is not None)


def _options(which: Filter) -> dict[str, Any]:
    """The options of the command line that select the same."""
    chosen = {name: getattr(which, name) for name in ("key", "type", "topic", "error", "error_pattern", "sink")}
    return chosen | {"all": which.all}


def _query(which: Filter) -> dict[str, Any]:
    """The query that selects the same."""
    chosen: dict[str, Any] = {name: value for name, value in _options(which).items() if value}
    if which.ids:
        chosen["id"] = [str(id) for id in which.ids]
    return chosen


def _poison_again(which: Filter) -> Link | None:
    """The way back from a retry: only one message can be poisoned at a time."""
    if len(which.ids) != 1:
        return None
    return Link(
        "Undo: poison it", "do/poison", {"id": str(which.ids[0])} | ({"sink": which.sink} if which.sink else {})
    )


def _back(which: Filter) -> Link:
    return Link("Back to the message", f"message/{which.ids[0]}") if len(which.ids) == 1 else Link("Trouble", "trouble")


def _places(rows: Any) -> str:
    return ", ".join(f"sink {one_line(row.sink)!r} ({row.state})" for row in rows)
