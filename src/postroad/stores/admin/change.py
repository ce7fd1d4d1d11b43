"""Changes to messages, keys and sinks.

Each transaction locks the lanes first, so that no relay writes them meanwhile; then it makes the change, writes the
audit line and raises the lanes' versions. Large changes run in batches, one transaction each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from postroad.errors import InvalidSetting
from postroad.lifecycle import State
from postroad.message import slot_of
from postroad.sink_filter import SinkFilter
from postroad.stores.admin.audit import AuditedChange, arguments_of
from postroad.stores.admin.contract import Done, Filter, totals
from postroad.stores.admin.inspect import find_deferred, rows_by_id, waiting_of_key
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.session import Rows
from postroad.stores.admin.slots import check_carrier, check_resumable, published_sinks
from postroad.stores.admin.status import status_report
from postroad.stores.leases import NOWHERE, sink_removed, still_served, wrong_destination
from postroad.stores.replication import slot_of_destination

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

    from postroad.stores.admin.contract import By, MessageRow, OnProgress
    from postroad.stores.admin.session import AdminDatabase, Query

__all__ = [
    "change_dead",
    "check_retarget",
    "hold_or_release",
    "pause_or_resume",
    "poison",
    "refilter",
    "remove_sink",
    "restore",
    "retarget",
    "skip",
]

BATCH: Final = 1000
POISONABLE: Final = (State.WAITING, State.RETRYING, State.HELD)
SKIPPABLE: Final = (*POISONABLE, State.DEAD)
"""Of these, a message that is waiting is found by id only."""
LONGEST_ERROR: Final = 2000

Place = tuple[str, int]
"""A sink and a position."""
_BEGINNING: Place | None = ("", 0)


# -- messages --------------------------------------------------------------------------------------------------------


async def change_dead(
    database: AdminDatabase,
    command: str,
    which: Filter,
    by: By,
    on_progress: OnProgress | None,
    *,
    expected: int | None = None,
) -> Done:
    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        return await query(command, Rows(places))

    change = AuditedChange(command, arguments_of(which), by, expected)
    return await _change_messages(database, which, change, move=move, states=[State.DEAD], on_progress=on_progress)


async def restore(
    database: AdminDatabase, which: Filter, by: By, on_progress: OnProgress | None, *, expected: int | None = None
) -> Done:
    """Make dropped messages dead. Retention is kept away: it deletes dropped messages, and would not see the change."""

    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        return await query("restore_dropped", Rows(places))

    change = AuditedChange("restore", arguments_of(which), by, expected)
    return await _change_messages(
        database, which, change, move=move, states=[State.DROPPED], on_progress=on_progress, retention=True
    )


async def poison(
    database: AdminDatabase,
    which: Filter,
    by: By,
    on_progress: OnProgress | None,
    *,
    holds_key: bool,
    expected: int | None = None,
) -> Done:
    error = (f"poisoned by {by.who}" + (f": {by.reason}" if by.reason else ""))[:LONGEST_ERROR]

    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        moved = [*await query("poison", Rows(places), error, holds_key)]
        moved += await _decide_ahead(query, places, State.DEAD, error, blocks=holds_key)
        if moved:
            await query("add_poison_attempt", Rows([(sink, position) for sink, _, position in moved]), error)
        return moved

    change = AuditedChange("poison", arguments_of(which), by, expected)
    return await _change_messages(database, which, change, move=move, states=POISONABLE, on_progress=on_progress)


async def skip(
    database: AdminDatabase,
    which: Filter,
    by: By,
    on_progress: OnProgress | None,
    *,
    command: str = "skip",
    expected: int | None = None,
) -> Done:
    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        moved = await query("skip", Rows(places))
        return [*moved, *await _decide_ahead(query, places, State.SKIPPED, None, blocks=False)]

    change = AuditedChange(command, arguments_of(which), by, expected)
    return await _change_messages(database, which, change, move=move, states=SKIPPABLE, on_progress=on_progress)


async def _decide_ahead(
    query: Query, places: Sequence[Place], state: State, error: str | None, *, blocks: bool
) -> Sequence[Sequence[Any]]:
    """Give a state to those of the messages that their lanes have not read yet; the lanes will not publish them."""
    decided = await query("decide_ahead", Rows(places), state.value, error, blocks)
    if decided:
        await query("add_ahead", Rows([tuple(row) for row in decided]))
    return decided


async def _change_messages(
    database: AdminDatabase,
    which: Filter,
    change: AuditedChange,
    *,
    move: Callable[[Query, Sequence[Place]], Awaitable[Sequence[Sequence[Any]]]],
    states: Sequence[State],
    on_progress: OnProgress | None,
    retention: bool = False,
) -> Done:
    """Move messages on, batch by batch. `move` returns sink, lane and position of those that it moved.

    `retention`: retention must not run meanwhile.
    """
    if which.is_empty and not which.all:
        raise InvalidSetting("the filter selects no messages; give a field of it, or all")
    async with database.read() as query:
        await check_sink(query, which.sink)
        published = await published_sinks(query, which.sink, "decided about")
    unchanged: dict[State, int] = {}
    batches = _named(database, which) if which.ids else _found(database, which, states)
    async for found in batches:
        if not (batch := [place for place in found if place[0] in published]):
            continue
        async with database.write() as query:
            if retention:
                await query("lock_retention")
            await query("lock_for_change", which.sink)
            await change.confirm(partial(_count, query, which, states, published))
            moved = await move(query, chosen) if (chosen := change.within(batch)) else []
            await change.record(query, len(moved), {(sink, lane) for sink, lane, _ in moved})
            if which.ids and len(moved) < len(batch):
                for state in await _states_of(query, which, set(batch) - {(s, p) for s, _, p in moved}):
                    unchanged[state] = unchanged.get(state, 0) + 1
        if on_progress is not None:
            on_progress(change.changed)
    return Done(change.changed, unchanged)


async def _count(query: Query, which: Filter, states: Sequence[State], published: Collection[str]) -> int:
    """How many messages a change would move now."""
    if which.ids:
        rows = await rows_by_id(query, which)
        return sum(row.state in states and row.sink in published for row in rows)
    number, after = 0, _BEGINNING
    while after is not None:
        places, after = await find_deferred(query, which, states, after, BATCH)
        number += sum(sink in published for sink, _ in places)
    return number


async def _named(database: AdminDatabase, which: Filter) -> AsyncIterator[list[Place]]:
    """The places of messages that are named by id."""
    for ids in _batches(which.ids):
        async with database.read() as query:
            rows = await rows_by_id(query, msgspec.structs.replace(which, ids=ids))
        if rows:
            yield [(row.sink, row.position) for row in rows]


async def _found(database: AdminDatabase, which: Filter, states: Sequence[State]) -> AsyncIterator[list[Place]]:
    """The places of deferred messages that match, oldest first."""
    after = _BEGINNING
    while after is not None:
        async with database.read() as query:
            places, after = await find_deferred(query, which, states, after, BATCH)
        if places:
            yield places


async def _states_of(query: Query, which: Filter, places: set[Place]) -> list[State]:
    rows: list[MessageRow] = await rows_by_id(query, Filter(ids=which.ids, sink=which.sink))
    return [row.state for row in rows if (row.sink, row.position) in places]


def _batches(ids: Iterable[UUID]) -> list[list[UUID]]:
    distinct = list(dict.fromkeys(ids))
    return [distinct[begin : begin + BATCH] for begin in range(0, len(distinct), BATCH)]


# -- keys ------------------------------------------------------------------------------------------------------------


async def hold_or_release(
    database: AdminDatabase, sink: str, key: str, by: By, *, hold: bool, expected: int | None = None
) -> Done:
    slot = slot_of(key, UUID(int=0))
    change = AuditedChange("hold" if hold else "release", {"sink": sink, "key": key}, by, expected)
    async with database.write() as query:
        await check_sink(query, sink)
        await check_carrier(query, sink, "held")
        lanes = await query("lock_for_change", sink)
        lane = next(int(lane) for _, lane, first, last in lanes if first <= slot <= last)
        if hold:
            await change.confirm(partial(waiting_of_key, query, sink, key))
            changed = await query("hold", sink, key, slot, by.who, by.reason)
            if changed:
                await query("hold_deferred", sink, lane, key)
        else:
            changed = await query("release", sink, key)
        await change.record(query, len(changed), {(sink, lane)})
    return Done(len(changed))


# -- sinks -----------------------------------------------------------------------------------------------------------


async def pause_or_resume(database: AdminDatabase, sink: str, by: By, *, pause: bool) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        lanes = {(name, lane) for name, lane, _, _ in await query("lock_for_change", sink)}
        if not pause:
            await check_resumable(query, sink)
        changed = await (query("pause", sink, by.who, by.reason) if pause else query("resume", sink))
        if not changed:
            return Done(0)
        await AuditedChange("pause" if pause else "resume", {"sink": sink}, by).record(query, len(lanes), lanes)
    return Done(len(lanes))


async def retarget(database: AdminDatabase, sink: str, destination: str, by: By) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        kept, _ = await _lock_unserved(query, sink)
        if kept == destination:
            return Done(0)
        if destination == NOWHERE:
            raise wrong_destination(sink, kept, destination)
        check_retarget(sink, destination)
        lanes = {(name, lane) for name, lane, _, _ in await query("lock_for_change", sink)}
        await query("release_lanes", sink)
        if slot_of_destination(kept) is not None:
            await query("remove_replication_slots", sink)
        await query("retarget", sink, destination)
        arguments = {"sink": sink, "from": kept, "to": destination}
        await AuditedChange("sink retarget", arguments, by).record(query, len(lanes), lanes)
    return Done(len(lanes))


async def refilter(database: AdminDatabase, sink: str, filter: SinkFilter, by: By) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        await check_carrier(query, sink, "filtered")
        _, kept = await _lock_unserved(query, sink)
        if kept == filter.text:
            return Done(0)
        lanes = {(name, lane) for name, lane, _, _ in await query("lock_for_change", sink)}
        await query("release_lanes", sink)
        await query("refilter", sink, filter)
        arguments = {"sink": sink, "from": str(SinkFilter.of_text(kept)), "to": str(filter)}
        await AuditedChange("sink filter", arguments, by).record(query, len(lanes), lanes)
    return Done(len(lanes))


def check_retarget(sink: str, destination: str) -> None:
    """Raise InvalidSetting for a sink that would begin to follow a replication slot."""
    if slot_of_destination(destination) is not None:
        raise InvalidSetting(
            f"sink {sink!r} can't deliver to {destination} from now on: the slot's reader would have to carry what the "
            "sink has not delivered. Let a sink of its own follow the slot: a relay with a new sink and "
            f"{destination} as its destination"
        )


async def remove_sink(database: AdminDatabase, sink: str, by: By, expected: int | None = None) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        kept, _ = await _lock_unserved(query, sink)
        lanes = await query("lock_for_change", sink)
        change = AuditedChange("sink remove", {"sink": sink, "destination": kept}, by, expected)
        await change.confirm(partial(_undelivered, query, sink))
        for table in database.sink_tables:
            await query(f"remove_{table}", sink)
        await change.record(query, len(lanes), set())
    return Done(len(lanes))


async def _undelivered(query: Query, sink: str) -> int:
    report = await status_report(query)
    return totals([each for each in report.sinks if each.sink == sink]).undelivered.number


async def _lock_unserved(query: Query, sink: str) -> tuple[str | None, str | None]:
    """Lock the sink, so that no relay takes its lanes until the transaction ends. Returns its destination and filter.

    Raises NotFound while a relay serves it.
    """
    found = await query("lock_sink", sink)
    if not found:
        raise sink_removed(sink)
    ((relays, lanes),) = await query("count_serving", sink)
    if relays or lanes:
        raise still_served(sink, relays)
    destination, filter = found[0]
    return destination, filter
