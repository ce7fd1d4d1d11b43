"""Changes to messages, keys and sinks.

Each transaction locks the lanes first, so that no relay writes them meanwhile; then it makes the change, writes the
audit line and raises the lanes' versions. Large changes run in batches, one transaction each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from postroad.errors import InvalidSetting
from postroad.lifecycle import State
from postroad.message import slot_of
from postroad.stores.admin.audit import AuditedChange, arguments_of
from postroad.stores.admin.contract import Done, Filter
from postroad.stores.admin.inspect import deferred_values, rows_by_id
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.session import Rows
from postroad.stores.leases import NOWHERE, sink_removed, still_served, wrong_destination

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from postroad.stores.admin.contract import By, MessageRow, OnProgress
    from postroad.stores.admin.session import AdminDatabase, Query

__all__ = ["change_dead", "hold_or_release", "pause_or_resume", "poison", "remove_sink", "retarget", "skip"]

BATCH: Final = 1000
SKIPPABLE: Final = (State.RETRYING, State.HELD, State.DEAD)
LONGEST_ERROR: Final = 2000

Place = tuple[str, int]
"""A sink and a position."""


# -- messages --------------------------------------------------------------------------------------------------------


async def change_dead(
    database: AdminDatabase, command: str, which: Filter, by: By, on_progress: OnProgress | None
) -> Done:
    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        return await query(command, Rows(places))

    return await _change_messages(database, command, which, by, move=move, states=[State.DEAD], on_progress=on_progress)


async def poison(
    database: AdminDatabase, which: Filter, by: By, on_progress: OnProgress | None, *, holds_key: bool
) -> Done:
    error = (f"poisoned by {by.who}" + (f": {by.reason}" if by.reason else ""))[:LONGEST_ERROR]

    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        moved = [*await query("poison", Rows(places), error, holds_key)]
        moved += await _decide_ahead(query, places, State.DEAD, error, blocks=holds_key)
        if moved:
            await query("add_poison_attempt", Rows([(sink, position) for sink, _, position in moved]), error)
        return moved

    return await _change_messages(
        database, "poison", which, by, move=move, states=[State.RETRYING, State.HELD], on_progress=on_progress
    )


async def skip(
    database: AdminDatabase, which: Filter, by: By, on_progress: OnProgress | None, *, command: str = "skip"
) -> Done:
    async def move(query: Query, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
        moved = await query("skip", Rows(places))
        return [*moved, *await _decide_ahead(query, places, State.SKIPPED, None, blocks=False)]

    return await _change_messages(database, command, which, by, move=move, states=SKIPPABLE, on_progress=on_progress)


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
    command: str,
    which: Filter,
    by: By,
    *,
    move: Callable[[Query, Sequence[Place]], Awaitable[Sequence[Sequence[Any]]]],
    states: Sequence[State],
    on_progress: OnProgress | None,
) -> Done:
    """Move messages on, batch by batch. `move` returns sink, lane and position of those that it moved."""
    if which.is_empty and not which.all:
        raise InvalidSetting("the filter selects no messages; give a field of it, or all")
    async with database.read() as query:
        await check_sink(query, which.sink)
    change = AuditedChange(command, arguments_of(which), by)
    unchanged: dict[State, int] = {}
    batches = _named(database, which) if which.ids else _found(database, which, states)
    async for batch in batches:
        async with database.write() as query:
            await query("lock_for_change", which.sink)
            moved = await move(query, batch)
            await change.record(query, len(moved), {(sink, lane) for sink, lane, _ in moved})
            if which.ids and len(moved) < len(batch):
                for state in await _states_of(query, which, set(batch) - {(s, p) for s, _, p in moved}):
                    unchanged[state] = unchanged.get(state, 0) + 1
        if on_progress is not None:
            on_progress(change.changed)
    return Done(change.changed, unchanged)


async def _named(database: AdminDatabase, which: Filter) -> AsyncIterator[list[Place]]:
    """The places of messages that are named by id."""
    for ids in _batches(which.ids):
        async with database.read() as query:
            rows = await rows_by_id(query, msgspec.structs.replace(which, ids=ids))
        if rows:
            yield [(row.sink, row.position) for row in rows]


async def _found(database: AdminDatabase, which: Filter, states: Sequence[State]) -> AsyncIterator[list[Place]]:
    """The places of deferred messages that match, oldest first."""
    after: Place = ("", 0)
    while True:
        async with database.read() as query:
            sink, position = after
            found = await query("find_deferred", *deferred_values(which, states), position, sink, BATCH)
        places = [(sink, position) for sink, position in found]
        if places:
            yield places
            after = places[-1]
        if len(places) < BATCH:
            return


async def _states_of(query: Query, which: Filter, places: set[Place]) -> list[State]:
    rows: list[MessageRow] = await rows_by_id(query, Filter(ids=which.ids, sink=which.sink))
    return [row.state for row in rows if (row.sink, row.position) in places]


def _batches(ids: Iterable[UUID]) -> list[list[UUID]]:
    distinct = list(dict.fromkeys(ids))
    return [distinct[begin : begin + BATCH] for begin in range(0, len(distinct), BATCH)]


# -- keys ------------------------------------------------------------------------------------------------------------


async def hold_or_release(database: AdminDatabase, sink: str, key: str, by: By, *, hold: bool) -> Done:
    slot = slot_of(key, UUID(int=0))
    async with database.write() as query:
        await check_sink(query, sink)
        lanes = await query("lock_for_change", sink)
        lane = next(int(lane) for _, lane, first, last in lanes if first <= slot <= last)
        if hold:
            changed = await query("hold", sink, key, slot, by.who, by.reason)
            if changed:
                await query("hold_deferred", sink, lane, key)
        else:
            changed = await query("release", sink, key)
        command = "hold" if hold else "release"
        await AuditedChange(command, {"sink": sink, "key": key}, by).record(query, len(changed), {(sink, lane)})
    return Done(len(changed))


# -- sinks -----------------------------------------------------------------------------------------------------------


async def pause_or_resume(database: AdminDatabase, sink: str, by: By, *, pause: bool) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        lanes = {(name, lane) for name, lane, _, _ in await query("lock_for_change", sink)}
        changed = await (query("pause", sink, by.who, by.reason) if pause else query("resume", sink))
        if not changed:
            return Done(0)
        await AuditedChange("pause" if pause else "resume", {"sink": sink}, by).record(query, len(lanes), lanes)
    return Done(len(lanes))


async def retarget(database: AdminDatabase, sink: str, destination: str, by: By) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        kept = await _lock_unserved(query, sink)
        if kept == destination:
            return Done(0)
        if destination == NOWHERE:
            raise wrong_destination(sink, kept, destination)
        lanes = {(name, lane) for name, lane, _, _ in await query("lock_for_change", sink)}
        await query("release_lanes", sink)
        await query("retarget", sink, destination)
        arguments = {"sink": sink, "from": kept, "to": destination}
        await AuditedChange("sink retarget", arguments, by).record(query, len(lanes), lanes)
    return Done(len(lanes))


async def remove_sink(database: AdminDatabase, sink: str, by: By) -> Done:
    async with database.write() as query:
        await check_sink(query, sink)
        kept = await _lock_unserved(query, sink)
        lanes = await query("lock_for_change", sink)
        for table in database.sink_tables:
            await query(f"remove_{table}", sink)
        await AuditedChange("sink remove", {"sink": sink, "destination": kept}, by).record(query, len(lanes), set())
    return Done(len(lanes))


async def _lock_unserved(query: Query, sink: str) -> str | None:
    """Lock the sink, so that no relay takes its lanes until the transaction ends. Returns its destination.

    Raises NotFound while a relay serves it.
    """
    found = await query("lock_sink", sink)
    if not found:
        raise sink_removed(sink)
    ((relays, lanes),) = await query("count_serving", sink)
    if relays or lanes:
        raise still_served(sink, relays)
    destination: str | None = found[0][0]
    return destination
