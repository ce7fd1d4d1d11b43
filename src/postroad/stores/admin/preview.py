"""What a change would do, for an operator who is asked to confirm it. Nothing here changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from postroad.errors import NotFound
from postroad.lifecycle import Mover, State, may_move
from postroad.setting import nearest
from postroad.sink_filter import takes
from postroad.stores.admin.change import check_retarget
from postroad.stores.admin.contract import Count, Filter, FilterPreview, KeyPreview
from postroad.stores.admin.inspect import NEWEST, count_messages, list_messages, message_history, waiting_of_key
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.slots import check_carrier, published_sinks
from postroad.stores.admin.status import status_report
from postroad.stores.leases import NOWHERE, sink_removed, still_served, wrong_destination

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from postroad.sink_filter import SinkFilter
    from postroad.stores.admin.contract import MessageRow, SinkReport
    from postroad.stores.admin.session import Query

__all__ = [
    "no_message",
    "preview_dead",
    "preview_hold",
    "preview_move",
    "preview_refilter",
    "preview_restore",
    "preview_retarget",
    "preview_skip_key",
    "sink_report",
    "unserved_sink",
]

_COMPARED: Final = 100_000
"""A new filter is compared with the old one for this many of the newest messages."""


async def preview_dead(query: Query, which: Filter) -> Count:
    return await _preview(query, which, State.DEAD, "retried or dropped")


async def preview_restore(query: Query, which: Filter) -> Count:
    return await _preview(query, which, State.DROPPED, "restored")


async def _preview(query: Query, which: Filter, state: State, verb: str) -> Count:
    """How many messages in this state are selected. Raises NotFound for one that is named by id and has another."""
    await check_sink(query, which.sink)
    await published_sinks(query, which.sink, verb)
    for id in which.ids:
        await _at_sinks(query, id, which.sink, {state}, verb)
    return await count_messages(query, msgspec.structs.replace(which, state=state, all=False))


async def preview_move(query: Query, id: UUID, sink: str | None, target: State, verb: str) -> Sequence[MessageRow]:
    """The message at each sink where an operator may move it to this state."""
    await check_sink(query, sink)
    states = {state for state in State if may_move(state, target, Mover.OPERATOR)}
    return await _at_sinks(query, id, sink, states, verb)


async def _at_sinks(
    query: Query, id: UUID, sink: str | None, states: Collection[State], verb: str
) -> Sequence[MessageRow]:
    message = await message_history(query, id, payload_bytes=0)
    if message is None:
        raise no_message(id)
    published = await published_sinks(query, sink, verb)
    rows = [each.row for each in message.sinks if sink in {None, each.row.sink} and each.row.sink in published]
    possible = [row for row in rows if row.state in states]
    if not possible:
        where = ", ".join(f"{row.state} at sink {row.sink!r}" for row in rows) or "not in the log of a sink yet"
        needed = " or ".join(state for state in State if state in states)
        raise NotFound(f"message {id} is {where}; only a message that is {needed} can be {verb}")
    return possible


def no_message(id: UUID) -> NotFound:
    """The error for an id that no message has."""
    return NotFound(f"there is no message {id}; it was never committed, or it was delivered and deleted since")


async def preview_hold(query: Query, sink: str, key: str) -> KeyPreview:
    await check_sink(query, sink)
    await check_carrier(query, sink, "held")
    if (await list_messages(query, Filter(sink=sink, key=key), 1, below=None)).messages:
        return KeyPreview(await waiting_of_key(query, sink, key), known=True, similar=None)
    recent = await list_messages(query, Filter(sink=sink), NEWEST, below=None)
    keys = {row.key for row in recent.messages if row.key is not None}
    return KeyPreview(0, known=False, similar=nearest(key, keys))


async def preview_skip_key(query: Query, sink: str, key: str) -> int:
    await check_sink(query, sink)
    await check_carrier(query, sink, "skipped")
    states = (State.RETRYING, State.HELD, State.DEAD)
    counts = [await count_messages(query, Filter(sink=sink, key=key, state=state)) for state in states]
    return sum(count.number for count in counts)


async def unserved_sink(query: Query, sink: str) -> SinkReport:
    """A sink that no relay serves. Raises NotFound if one does."""
    report = await sink_report(query, sink)
    if report.relays:
        raise still_served(sink, report.relays)
    return report


async def sink_report(query: Query, sink: str) -> SinkReport:
    await check_sink(query, sink)
    for report in (await status_report(query)).sinks:
        if report.sink == sink:
            return report
    raise sink_removed(sink)


async def preview_retarget(query: Query, sink: str, destination: str) -> SinkReport:
    """A sink whose destination could be changed to this one."""
    report = await unserved_sink(query, sink)
    if report.destination == destination:
        raise NotFound(f"sink {sink!r} delivers to {destination} already")
    if destination == NOWHERE:
        raise wrong_destination(sink, report.destination, destination)
    check_retarget(sink, destination)
    return report


async def preview_refilter(query: Query, sink: str, filter: SinkFilter) -> FilterPreview:
    """What changes for a sink that gets this filter. Raises NotFound if it has it, or while a relay serves the sink."""
    report = await unserved_sink(query, sink)
    before = report.filter
    if before == filter:
        raise NotFound(f"sink {sink!r} takes {filter} already")
    rows = await query("kinds_of_messages", sink, _COMPARED)
    searched, passed, dropped, first = 0, 0, 0, None
    for topic, type, source, is_passed, number, position in rows:
        headers = msgspec.json.encode({"source": source}).decode()
        was, will = (takes(each.text, topic, type, headers) for each in (before, filter))
        searched += number
        if is_passed and will and not was:
            passed, first = passed + number, min(position, position if first is None else first)
        if not is_passed and was and not will:
            dropped += number
    return FilterPreview(
        sink=sink,
        before=before,
        after=filter,
        searched=searched,
        all_searched=searched < _COMPARED,
        passed=passed,
        first_passed=first,
        dropped=dropped,
    )
