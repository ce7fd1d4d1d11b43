"""What of a status report needs attention: what is wrong, since when, and what to do. Pure: no I/O and no clock."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroad.lifecycle import State
from postroad.stores.admin.answers import Action, Remedy
from postroad.stores.admin.contract import totals
from postroad.wording import advice_on_route, age, count, moment, one_line, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.stores.admin.contract import ConsumerReport, SinkReport, StatusReport, Totals

__all__ = ["Notice", "NoticeKind", "notices"]

STALLED_SECONDS: Final = 120
"""A sink with this lag that has published nothing for two minutes is stalled."""

OVERDUE_SECONDS: Final = 60
"""A scheduled message that is this late is reported."""

UNSERVED_SECONDS: Final = 86_400
"""Retention keeps all messages for a sink that no relay serves; from this time on that is said."""

_LONGEST: Final = 200
_STALLED: Final = "its broker may be unavailable: read the logs of its relays, which are in"
_UNCONFIRMED: Final = (
    "the program that reads its replication slot confirms nothing: read that program's log, and compare its "
    "configuration with what the command debezium prints"
)


class NoticeKind(StrEnum):
    """What a notice is about."""

    PAUSED = "paused"
    SLOT_LOST = "slot lost"
    """The replication slot that the sink follows is not the one that it followed."""
    SLOT_UNREAD = "slot unread"
    """No program reads the replication slot that the sink follows."""
    NO_RELAY = "no relay"
    """Messages wait, and no relay serves the sink."""
    IDLE = "idle"
    """No relay serves the sink, and no message waits."""
    STALLED = "stalled"
    """A relay serves the sink, and nothing is published."""
    ROUTE_BLOCKED = "route blocked"
    FAILING = "failing"
    DEAD = "dead"
    COPIES = "copies"
    """Copies of messages that died in other sinks wait for this one."""
    UNROUTABLE = "unroutable"
    KEY_HELD = "key held"
    OVERDUE = "overdue"
    SCHEDULED = "scheduled"
    CONSUMER_DEAD = "consumer dead"
    DEAD_LETTERS = "dead letters"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that needs attention, or is good to know."""

    kind: NoticeKind
    problem: bool
    """Whether something is wrong. Otherwise it is good to know, and nothing needs to be done."""
    text: str
    """What is the case, and since when: one sentence, safe to print."""
    since: Any = None
    """A time; None: not known."""
    advice: str = ""
    """What to do, in words, before what does it."""
    remedy: Remedy | None = None
    """What does it."""
    sink: str | None = None
    consumer: str | None = None


def notices(report: StatusReport) -> Sequence[Notice]:
    """The problems first, then what is good to know; each in the order of the report."""
    found = [
        *(notice for sink in report.sinks for notice in _of_sink(sink, report)),
        *_scheduled(report),
        *(notice for consumer in report.consumers for notice in _of_consumer(consumer, report)),
    ]
    return sorted(found, key=lambda notice: not notice.problem)


def _only(sink: SinkReport, report: StatusReport) -> str | None:
    """The sink, if there are others."""
    return sink.sink if len(report.sinks) > 1 else None


def _why(text: str | None) -> str:
    return f": {without_secrets(text, _LONGEST)}" if text else ""


# -- sinks -----------------------------------------------------------------------------------------------------------


def _of_sink(sink: SinkReport, report: StatusReport) -> Iterator[Notice]:
    sums, name = totals([sink]), one_line(sink.sink)
    yield from _slot(sink, sums)
    if sink.pause is not None and (sink.slot is None or sink.slot.lost is None):
        by = f"by {one_line(sink.pause.who)} since {moment(sink.pause.since, report.at)}{_why(sink.pause.reason)}"
        yield Notice(
            kind=NoticeKind.PAUSED,
            problem=True,
            text=f"sink {name!r} is paused, {by}",
            since=sink.pause.since,
            advice="resume it with",
            remedy=Remedy(action=Action.RESUME, sink=sink.sink),
            sink=sink.sink,
        )
    yield from _serving(sink, sums, report)
    yield from _routes(sink, report)
    yield from _refused(sink, sums, report)
    if sink.copies and sink.copies_since is not None:
        since = moment(sink.copies_since, report.at)
        late = (report.at - sink.copies_since).total_seconds() >= OVERDUE_SECONDS
        yield Notice(
            kind=NoticeKind.COPIES,
            problem=late,
            text=f"sink {name!r}: {_copies(sink.copies)} to be published, the first since {since}",
            since=sink.copies_since,
            advice="" if sink.relays else "its relays publish them; start one with",
            remedy=None if sink.relays else Remedy(action=Action.START_RELAY, sink=sink.sink),
            sink=sink.sink,
        )
    for held in sink.held_keys:
        by = f"by {one_line(held.who)} since {moment(held.since, report.at)}{_why(held.reason)}"
        yield Notice(
            kind=NoticeKind.KEY_HELD,
            problem=True,
            text=f"sink {name!r}: key {one_line(held.key, _LONGEST)!r} is held {by}",
            since=held.since,
            advice="release it with",
            remedy=Remedy(action=Action.RELEASE, key=held.key, sink=_only(sink, report)),
            sink=sink.sink,
        )


def _slot(sink: SinkReport, sums: Totals) -> Iterator[Notice]:
    """Whether the replication slot that the sink follows is there, and is read."""
    slot, name = sink.slot, one_line(sink.sink)
    if slot is None:
        return
    if slot.lost is not None:
        yield Notice(
            kind=NoticeKind.SLOT_LOST,
            problem=True,
            text=(
                f"sink {name!r} is paused, because {one_line(slot.lost)}: {count(sums.pending, 'message')} may not "
                "have been carried"
            ),
            advice="have them carried, then",
            remedy=Remedy(action=Action.ADOPT_SLOT, sink=sink.sink),
            sink=sink.sink,
        )
    elif not slot.active:
        state = "there is no" if slot.active is None else "no program reads the"
        yield Notice(
            kind=NoticeKind.SLOT_UNREAD,
            problem=sums.pending > 0,
            text=f"sink {name!r}: {state} replication slot {one_line(slot.name)!r}, which carries its messages",
            advice="start the program that reads it",
            sink=sink.sink,
        )


def _serving(sink: SinkReport, sums: Totals, report: StatusReport) -> Iterator[Notice]:
    """Whether a relay serves the sink, and publishes."""
    name, waiting = one_line(sink.sink), sums.pending + sums.failing + sums.held
    served = moment(sink.served_at, report.at)
    stopped = sink.pause is not None or sink.paused
    if not sink.relays:
        forgotten = (report.at - sink.served_at).total_seconds() >= UNSERVED_SECONDS
        yield Notice(
            kind=NoticeKind.NO_RELAY if waiting or forgotten else NoticeKind.IDLE,
            problem=waiting > 0 or forgotten,
            text=f"sink {name!r}: {_unserved(sums, waiting, served, forgotten=forgotten)}",
            since=sink.served_at,
            advice="remove it, if it is not needed any more, or start a relay with" if forgotten else "start one with",
            remedy=Remedy(action=Action.START_RELAY, sink=sink.sink),
            sink=sink.sink,
        )
    elif not stopped and sums.lag_seconds > STALLED_SECONDS and not any(sink.published_per_minute[-2:]):
        yield Notice(
            kind=NoticeKind.STALLED,
            problem=True,
            text=(
                f"sink {name!r}: {count(sums.pending, 'message')} pending for {age(sums.lag_seconds)} and none "
                "published, although a relay serves it"
            ),
            advice=_STALLED if sink.slot is None else _UNCONFIRMED,
            remedy=Remedy(action=Action.LIST_RELAYS) if sink.slot is None else None,
            sink=sink.sink,
        )


def _copies(number: int) -> str:
    return "1 copy of a dead message is" if number == 1 else f"{number:,} copies of dead messages are"


def _unserved(sums: Totals, waiting: int, served: str, *, forgotten: bool) -> str:
    if not waiting and not forgotten:
        return "no relay is running, and no message waits"
    number = f"{'' if sums.exact else 'about '}{count(waiting, 'message')}"
    wait = f"{number} {'waits' if waiting == 1 else 'wait'}" if waiting else "no message waits"
    kept = ", and retention keeps all messages" if forgotten else ""
    return f"no relay has served it since {served}; {wait}{kept}"


def _routes(sink: SinkReport, report: StatusReport) -> Iterator[Notice]:
    if sink.blocked is not None:
        blocked = sink.blocked
        waits = "waits" if blocked.messages == 1 else "wait"
        yield Notice(
            kind=NoticeKind.ROUTE_BLOCKED,
            problem=True,
            text=(
                f"sink {one_line(sink.sink)!r}: {count(blocked.messages, 'message')} {waits} for a blocked route, such "
                f"as {one_line(blocked.route, _LONGEST)!r}, since {moment(blocked.since, report.at)}"
            ),
            since=blocked.since,
            advice=f"{advice_on_route(blocked.route)}; see",
            remedy=Remedy(action=Action.LIST_MESSAGES, state=State.HELD, sink=_only(sink, report)),
            sink=sink.sink,
        )


def _refused(sink: SinkReport, sums: Totals, report: StatusReport) -> Iterator[Notice]:
    name = one_line(sink.sink)

    def since(time: Any) -> str:
        return "" if time is None else f", since {moment(time, report.at)}"

    if sums.dead:
        yield Notice(
            kind=NoticeKind.DEAD,
            problem=True,
            text=f"sink {name!r}: {count(sums.dead, 'dead message')}{since(sink.dead_since)}",
            since=sink.dead_since,
            advice="see",
            remedy=Remedy(action=Action.LIST_DEAD, sink=_only(sink, report)),
            sink=sink.sink,
        )
    if sums.failing:
        yield Notice(
            kind=NoticeKind.FAILING,
            problem=not sink.relays,
            text=f"sink {name!r}: {count(sums.failing, 'message')} refused, to be retried{since(sink.failing_since)}",
            since=sink.failing_since,
            advice="see",
            remedy=Remedy(action=Action.LIST_MESSAGES, state=State.RETRYING, sink=_only(sink, report)),
            sink=sink.sink,
        )
    if sums.unroutable:
        yield Notice(
            kind=NoticeKind.UNROUTABLE,
            problem=False,
            text=f"sink {name!r}: {count(sums.unroutable, 'message')} dropped because no consumer had subscribed",
            advice="see",
            remedy=Remedy(action=Action.LIST_MESSAGES, state=State.DROPPED, sink=_only(sink, report)),
            sink=sink.sink,
        )


# -- scheduled messages and consumers --------------------------------------------------------------------------------


def _scheduled(report: StatusReport) -> Iterator[Notice]:
    due = report.next_scheduled_at
    if not report.scheduled.number or due is None:
        return
    late = (report.at - due).total_seconds() >= OVERDUE_SECONDS
    number = f"{'' if report.scheduled.exact else 'about '}{count(report.scheduled.number, 'scheduled message')}"
    yield Notice(
        kind=NoticeKind.OVERDUE if late else NoticeKind.SCHEDULED,
        problem=late,
        text=f"{number}, the first due at {moment(due, report.at)}",
        since=due if late else None,
        advice="any relay of this database moves them into the log; start one with" if late else "",
        remedy=Remedy(action=Action.START_RELAY) if late else None,
    )


def _of_consumer(consumer: ConsumerReport, report: StatusReport) -> Iterator[Notice]:
    name, last = one_line(consumer.consumer), consumer.last_heartbeat_at
    if consumer.died and not consumer.alive and last is not None:
        yield Notice(
            kind=NoticeKind.CONSUMER_DEAD,
            problem=True,
            text=f"consumer {name!r}: none is alive, the last heartbeat was at {moment(last, report.at)}",
            since=last,
            advice="start it again; see",
            remedy=Remedy(action=Action.LIST_CONSUMERS),
            consumer=consumer.consumer,
        )
    if consumer.dead_letters.number:
        letters, since = consumer.dead_letters, consumer.dead_letters_since
        first = "" if since is None else f", the first at {moment(since, report.at)}"
        number = f"{'' if letters.exact else 'at least '}{count(letters.number, 'dead letter')}"
        yield Notice(
            kind=NoticeKind.DEAD_LETTERS,
            problem=True,
            text=f"consumer {name!r}: {number} within a day{first}",
            since=since,
            advice="see",
            remedy=Remedy(action=Action.LIST_DEAD_LETTERS),
            consumer=consumer.consumer,
        )
