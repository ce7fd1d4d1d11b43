"""Changes to messages: retry, drop, restore, skip, poison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from postroad.admin import Count, Filter, State
from postroad.console.access import Right
from postroad.console.changes.plan import Change, Given, Link, Plan, about, command
from postroad.errors import InvalidSetting, NotFound
from postroad.wording import count, one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from postroad.admin import Admin, MessageRow

__all__ = ["CHANGES"]

SAMPLE: Final = 10
MOST_NAMED: Final = 50
"""The way back from a change of up to so many messages names them: proxies take addresses of 8,000 bytes at most."""
_NO_DEAD: Final = "no dead message matches any more: they were retried, dropped or canceled meanwhile"


async def _retry(admin: Admin, given: Given) -> Plan:
    which, number, rows = await _chosen(admin, given, State.DEAD, admin.preview_dead)
    named = _named(which, number, rows)
    label = "Undo: poison it" if number == Count(1) else "Undo: poison them"
    return Plan(
        would=f"{_many(number, which, 'dead message')} would be retried, at once and with all attempts",
        number=number,
        thing="dead message",
        nothing=_NO_DEAD,
        act=lambda by, expected: admin.retry(which, by, expected=expected),
        done="{} will be retried".format,
        command=command("dead", "retry", *map(str, which.ids), **_options(which)),
        sample=rows[:SAMPLE],
        undo=None if named is None else Link(label, "do/poison", named),
        back=_back(which),
    )


async def _drop(admin: Admin, given: Given) -> Plan:
    which, number, rows = await _chosen(admin, given, State.DEAD, admin.preview_dead)
    query = await _those_alone(admin, which, number, rows, State.DROPPED)
    return Plan(
        would=f"{_many(number, which, 'dead message')} would be dropped: they are never published",
        number=number,
        thing="dead message",
        nothing=_NO_DEAD,
        act=lambda by, expected: admin.drop(which, by, expected=expected),
        done="dropped {}".format,
        command=command("dead", "drop", *map(str, which.ids), **_options(which)),
        sample=rows[:SAMPLE],
        undo=None if query is None else Link("Undo: restore them", "do/restore", query),
        back=_back(which),
    )


async def _restore(admin: Admin, given: Given) -> Plan:
    which, number, rows = await _chosen(admin, given, State.DROPPED, admin.preview_restore)
    query = await _those_alone(admin, which, number, rows, State.DEAD)
    return Plan(
        would=f"{_many(number, which, 'dropped message')} would be dead again, and can be retried then",
        number=number,
        thing="dropped message",
        nothing="no dropped message matches any more: retention has deleted them, or they were restored meanwhile",
        act=lambda by, expected: admin.restore(which, by, expected=expected),
        done="restored {}; they are dead, and can be retried".format,
        command=command("dead", "restore", *map(str, which.ids), **_options(which)),
        sample=rows[:SAMPLE],
        undo=None if query is None else Link("Undo: drop them again", "do/drop", query),
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
    ids, sink, holds = given.ids() or (given.id(),), given.text("sink"), given.flag("hold_key")
    which, rows = Filter(ids=ids, sink=sink), await _possible(admin, ids, sink)
    several = len(ids) > 1
    later = ", and later messages of its key would be held" if holds else ""
    one = f"message {ids[0]} would be dead at {_places(rows)}: it is not attempted any more{later}"
    many = f"{count(len(rows), 'message')} would be dead: they are not attempted any more{later}"
    return Plan(
        would=many if several else one,
        number=Count(len(rows)),
        thing="message" if several else "sink",
        act=lambda by, expected: admin.poison(which, by, holds_key=holds, expected=expected),
        done="dead now: {}".format if several else lambda sinks: f"message {ids[0]} is dead at {sinks}",
        command=command("message", "poison", "ID" if several else str(ids[0]), sink=sink, hold_key=holds),
        sample=rows[:SAMPLE],
        undo=Link("Undo: retry them" if several else "Undo: retry it", "do/retry", _query(which)),
        back=_back(which),
    )


async def _possible(admin: Admin, ids: Sequence[UUID], sink: str | None) -> list[MessageRow]:
    """The messages at the sinks where they can be poisoned. Raises NotFound if there are none."""
    rows: list[MessageRow] = []
    reason: NotFound | None = None
    for id in ids:
        try:
            rows += await admin.preview_poison(id, sink)
        except NotFound as error:  # it was published meanwhile
            reason = error
    if not rows and reason is not None:
        raise reason
    return rows


CHANGES: Final = (
    Change(name="retry", title="Retry dead messages", right=Right.OPERATE, plan=_retry, reason_required=False),
    Change(name="drop", title="Drop dead messages", right=Right.OPERATE, plan=_drop),
    Change(name="restore", title="Restore dropped messages", right=Right.OPERATE, plan=_restore, reason_required=False),
    Change(name="skip", title="Skip a message", right=Right.ADMINISTER, plan=_skip),
    Change(name="poison", title="Poison a message", right=Right.OPERATE, plan=_poison),
)


async def _chosen(
    admin: Admin, given: Given, state: State, preview: Callable[[Filter], Awaitable[Count]]
) -> tuple[Filter, Count, list[MessageRow]]:
    """The messages in this state that are chosen, how many there are, and the newest of them.

    Of several that are named, those that have another state by now are left out.
    """
    which = replace(_selected(given), state=state)
    if len(which.ids) > 1:
        there = await admin.messages(which, len(which.ids) * MOST_NAMED)
        which = replace(which, ids=tuple({row.id: None for row in there.messages}) or which.ids)
    number = await preview(which)
    page = await admin.messages(which, MOST_NAMED + 1)
    return which, number, list(page.messages)


def _named(which: Filter, number: Count, rows: Sequence[MessageRow]) -> dict[str, Any] | None:
    """The query that selects these messages, all that a change is about; None if they are too many to be named."""
    if number != Count(len(rows)) or len(rows) > MOST_NAMED:
        return None
    sinks = {row.sink for row in rows}
    return _query(
        Filter(ids=list(dict.fromkeys(row.id for row in rows)), sink=sinks.pop() if len(sinks) == 1 else which.sink)
    )


async def _those_alone(
    admin: Admin, which: Filter, number: Count, rows: Sequence[MessageRow], goal: State
) -> dict[str, Any] | None:
    """The query that selects the messages of a change after it.

    None if it would select others, too, which match and were in that state before.
    """
    if (named := _named(which, number, rows)) is not None or await admin.count(replace(which, state=goal)) != Count(0):
        return named
    return _query(which)


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
    chosen |= {name: time.isoformat() for name in ("since", "before") if (time := getattr(which, name)) is not None}
    if which.ids:
        chosen["id"] = [str(id) for id in which.ids]
    return chosen


def _back(which: Filter) -> Link:
    return Link("Back to the message", f"message/{which.ids[0]}") if len(which.ids) == 1 else Link("Trouble", "trouble")


def _places(rows: Any) -> str:
    return ", ".join(f"sink {one_line(row.sink)!r} ({row.state})" for row in rows)
