"""What operators do. Every change locks the lanes first, so that none of them writes meanwhile; it is noted in the
audit, and the lanes' versions are raised, in the same transaction. Large changes go in batches, each whole by itself.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

import msgspec

from postroad.errors import InvalidSetting
from postroad.lifecycle import State
from postroad.message import new_id, slot_of
from postroad.stores.asking import Rows
from postroad.stores.leases import NOWHERE, sink_removed, still_served, wrong_destination
from postroad.stores.looking import (
    Looking,
    as_microseconds,
    estimate,
    rows_by_id,
    trouble_values,
)
from postroad.stores.operating import Count, Done, Filter, KeyCount

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from postroad.stores.asking import Ask
    from postroad.stores.base import Cleaned
    from postroad.stores.operating import By, MessageRow, Progressed, Rewind

__all__ = ["Changing"]

BATCH: Final = 1000
SAMPLE: Final = 5_000
"""From so many rows it is estimated what a cleanup or a rewind would do, when there are more."""
REWIND_BATCH: Final = 10_000
"""Rows of the log that are looked at; each batch makes the lanes load again."""
SKIPPABLE: Final = (State.RETRYING, State.HELD, State.DEAD)
RESTS: Final = 9.0
"""So many times as long as a batch of a cleanup took, nothing is deleted."""

Place = tuple[str, int]
"""A sink, and a position or a lane."""


class Changing(Looking):
    """The second half of `Operating`."""

    @abstractmethod
    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        """A batch of retention, as a store does it."""

    removals: ClassVar[tuple[str, ...]] = (
        "remove_deferred", "remove_attempts", "remove_progress", "remove_delivered", "remove_holds", "remove_pauses",
        "remove_ahead", "remove_rewound", "remove_relays", "remove_lanes", "remove_sink",
    )  # fmt: skip
    """The queries that leave nothing of a sink."""

    # -- messages ----------------------------------------------------------------------------------------------------

    async def retry(self, which: Filter, by: By, *, progress: Progressed | None = None) -> Done:
        return await self._change("retry", which, by, _retry, states=[State.DEAD], progress=progress)

    async def drop(self, which: Filter, by: By, *, progress: Progressed | None = None) -> Done:
        return await self._change("drop", which, by, _drop, states=[State.DEAD], progress=progress)

    async def poison(
        self, which: Filter, by: By, *, holds_key: bool = False, progress: Progressed | None = None
    ) -> Done:
        error = f"poisoned by {by.who}" + (f": {by.reason}" if by.reason else "")

        async def poison(ask: Ask, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
            moved = [*await ask("poison", Rows(places), error[:2000], holds_key)]
            moved += await _decide_ahead(ask, places, State.DEAD, error[:2000], blocks=holds_key)
            if moved:
                await ask("note_poison", Rows([(sink, position) for sink, _, position in moved]), error[:2000])
            return moved

        return await self._change("poison", which, by, poison, states=[State.RETRYING, State.HELD], progress=progress)

    async def skip(self, which: Filter, by: By, *, progress: Progressed | None = None) -> Done:
        return await self._change("skip", which, by, _skip, states=SKIPPABLE, progress=progress)

    async def skip_key(self, sink: str, key: str, by: By) -> Done:
        which = Filter(sink=sink, key=key)
        return await self._change("skip_key", which, by, _skip, states=SKIPPABLE)

    async def _change(
        self,
        command: str,
        which: Filter,
        by: By,
        apply: Callable[[Ask, Sequence[Place]], Awaitable[Sequence[Sequence[Any]]]],
        *,
        states: Sequence[State],
        progress: Progressed | None = None,
    ) -> Done:
        """Let `apply` move messages on, batch by batch. It gives sink, lane and position of those that it moved."""
        if which.is_empty and not which.all:
            raise InvalidSetting("the filter names no messages; say which, or say that all are meant")
        await self._check_sink(which.sink)
        noting = _Noting(command, _arguments(which), by)
        unmoved: dict[State, int] = {}
        places = self._named(which) if which.ids else self._found(which, states)
        async for batch in places:
            async with self.session(changes=True) as ask:
                await ask("lock_for_change", which.sink)
                moved = await apply(ask, batch)
                await noting.note(ask, len(moved), {(sink, lane) for sink, lane, _ in moved})
                if which.ids and len(moved) < len(batch):
                    for state in await self._states_of(ask, which, set(batch) - {(s, p) for s, _, p in moved}):
                        unmoved[state] = unmoved.get(state, 0) + 1
            if progress is not None:
                progress(noting.changed)
        return Done(noting.changed, unmoved)

    async def _named(self, which: Filter) -> AsyncIterator[list[Place]]:
        """The places of the messages that are named by their ids."""
        for some in _chunks(which.ids):
            async with self.session() as ask:
                rows = await rows_by_id(ask, msgspec.structs.replace(which, ids=some))
            if rows:
                yield [(row.sink, row.position) for row in rows]

    async def _found(self, which: Filter, states: Sequence[State]) -> AsyncIterator[list[Place]]:
        """The places of messages in trouble, the oldest first."""
        after: Place = ("", 0)
        while True:
            async with self.session() as ask:
                sink, position = after
                found = await ask("find_trouble", *trouble_values(which, states), position, sink, BATCH)
            places = [(sink, position) for sink, position in found]
            if places:
                yield places
                after = places[-1]
            if len(places) < BATCH:
                return

    async def _states_of(self, ask: Ask, which: Filter, places: set[Place]) -> list[State]:
        rows: list[MessageRow] = await rows_by_id(ask, Filter(ids=which.ids, sink=which.sink))
        return [row.state for row in rows if (row.sink, row.position) in places]

    # -- keys and sinks ----------------------------------------------------------------------------------------------

    async def hold(self, sink: str, key: str, by: By) -> Done:
        await self._check_sink(sink)
        async with self.session(changes=True) as ask:
            lane = _lane_of(await ask("lock_for_change", sink), key)
            held = await ask("hold", sink, key, _slot(key), by.who, by.reason)
            if held:
                await ask("hold_trouble", sink, lane, key)
                await _Noting("hold", {"sink": sink, "key": key}, by).note(ask, 1, {(sink, lane)})
        return Done(len(held))

    async def release(self, sink: str, key: str, by: By) -> Done:
        await self._check_sink(sink)
        async with self.session(changes=True) as ask:
            lane = _lane_of(await ask("lock_for_change", sink), key)
            released = await ask("release", sink, key)
            if released:
                await _Noting("release", {"sink": sink, "key": key}, by).note(ask, 1, {(sink, lane)})
        return Done(len(released))

    async def pause(self, sink: str, by: By) -> Done:
        return await self._switch("pause", sink, by, by.who, by.reason)

    async def resume(self, sink: str, by: By) -> Done:
        return await self._switch("resume", sink, by)

    async def _switch(self, command: str, sink: str, by: By, *values: str | None) -> Done:
        await self._check_sink(sink)
        async with self.session(changes=True) as ask:
            lanes = {(name, lane) for name, lane, _, _ in await ask("lock_for_change", sink)}
            if not await ask(command, sink, *values):
                return Done(0)
            await _Noting(command, {"sink": sink}, by).note(ask, len(lanes), lanes)
        return Done(len(lanes))

    async def retarget(self, sink: str, destination: str, by: By) -> Done:
        await self._check_sink(sink)
        async with self.session(changes=True) as ask:
            kept = await self._lock_unserved(ask, sink)
            if kept == destination:
                return Done(0)
            if destination == NOWHERE:
                raise wrong_destination(sink, kept, destination)
            lanes = {(name, lane) for name, lane, _, _ in await ask("lock_for_change", sink)}
            await ask("free_sink", sink)
            await ask("retarget", sink, destination)
            arguments = {"sink": sink, "from": kept, "to": destination}
            await _Noting("sink retarget", arguments, by).note(ask, len(lanes), lanes)
        return Done(len(lanes))

    async def remove_sink(self, sink: str, by: By) -> Done:
        await self._check_sink(sink)
        async with self.session(changes=True) as ask:
            kept = await self._lock_unserved(ask, sink)
            lanes = await ask("lock_for_change", sink)
            for query in self.removals:
                await ask(query, sink)
            await _Noting("sink remove", {"sink": sink, "destination": kept}, by).note(ask, len(lanes), set())
        return Done(len(lanes))

    async def _lock_unserved(self, ask: Ask, sink: str) -> str | None:
        """Keep relays from a sink that none of them serves until the transaction ends; where it delivers to."""
        found = await ask("lock_sink", sink)
        if not found:
            raise sink_removed(sink)
        ((relays, lanes),) = await ask("serving", sink)
        if relays or lanes:
            raise still_served(sink, relays)
        destination: str | None = found[0][0]
        return destination

    async def _check_sink(self, sink: str | None) -> None:
        if sink is not None and sink not in (there := await self.sinks()):
            names = ", ".join(map(repr, there)) or "none yet: the first relay of a sink creates it"
            raise InvalidSetting(f"sink is {sink!r}, which is not there; there is {names}")

    # -- the log -----------------------------------------------------------------------------------------------------

    async def would_clean_up(self, older_than: timedelta) -> Count:
        async with self.session() as ask:
            ((first, last, behind, _),) = await ask("log_ends", None)
            if last is None:
                return Count(0)
            age = older_than // timedelta(microseconds=1)
            ((matching, seen, through),) = await ask("count_old", first, SAMPLE, age)
            if seen < SAMPLE:
                return Count(matching)
            ((_, _, now),) = await ask("scheduled_report", 1)
            end = min(behind, await _position_at(ask, now - age, first, last))
            return estimate(matching, looked_at=through - first + 1, of=end - first + 1, exact=False)

    async def cleanup(self, older_than: timedelta, by: By, *, progress: Progressed | None = None) -> Done:
        noting = _Noting("cleanup", {"older_than_seconds": older_than.total_seconds()}, by)
        return await self._delete(noting, older_than, progress=progress)

    async def _delete(
        self, noting: _Noting, older_than: timedelta, key: str | None = None, *, progress: Progressed | None
    ) -> Done:
        """Walk through the log, batch by batch, and delete what retention may."""
        after = 0
        while True:
            began = time.monotonic()
            cleaned = await self.delete_passed(after=after, older_than=older_than, batch=BATCH, key=key)
            if cleaned.deleted:
                async with self.session(changes=True) as ask:
                    await noting.note(ask, cleaned.deleted, set())
            if progress is not None:
                progress(noting.changed)
            if not cleaned.busy and (not cleaned.more or cleaned.through == after):
                return Done(noting.changed)
            after = cleaned.through
            await asyncio.sleep(0.05 if cleaned.busy else RESTS * (time.monotonic() - began))

    async def count_of_key(self, key: str) -> KeyCount:
        delivered = undelivered = after = 0
        async with self.session() as ask:
            ((scheduled,),) = await ask("count_scheduled_of_key", key)
            while True:
                ((had, missing, seen, through),) = await ask("count_of_key", after, REWIND_BATCH, key)
                delivered, undelivered = delivered + had, undelivered + missing
                if seen < REWIND_BATCH:
                    return KeyCount(delivered, undelivered, scheduled)
                after = through

    async def forget(self, key: str, by: By, *, progress: Progressed | None = None) -> Done:
        noting = _Noting("forget", {}, by)
        async with self.session(changes=True) as ask:
            await ask("forget_in_audit", key, await noting.line(ask, 0))
        return await self._delete(noting, timedelta(0), key, progress=progress)

    async def would_rewind(self, rewind: Rewind) -> Count:
        await self._check_sink(rewind.sink)
        async with self.session() as ask:
            begin, end = await _bounds(ask, rewind)
            ((matching, seen, through),) = await ask("count_rewind", *_rewind_values(rewind, begin, end, SAMPLE))
            if seen < SAMPLE:
                return Count(matching)
            return estimate(matching, looked_at=through - begin + 1, of=end - begin + 1, exact=False)

    async def rewind(self, rewind: Rewind, by: By, *, progress: Progressed | None = None) -> Done:
        await self._check_sink(rewind.sink)
        noting = _Noting("rewind", _arguments(rewind), by)
        name = datetime.now(UTC).isoformat(timespec="seconds")
        async with self.session() as ask:
            position, end = await _bounds(ask, rewind)
        while True:
            async with self.session(changes=True) as ask:
                await ask("delete_nothing")
                await ask("lock_for_change", rewind.sink)
                rows = await ask("find_rewind", *_rewind_values(rewind, position, end, REWIND_BATCH))
                again = [(lane, place, key) for lane, place, key, goes in rows if goes]
                if again:
                    await ask("rewind", rewind.sink, Rows(again))
                    ids = [(place, new_id() if rewind.new_ids else None) for _, place, _ in again]
                    await ask("note_rewound", rewind.sink, name, Rows(ids))
                await noting.note(ask, len(again), {(rewind.sink, lane) for lane, _, _ in again})
            if progress is not None:
                progress(noting.changed)
            if len(rows) < REWIND_BATCH:
                return Done(noting.changed)
            position = rows[-1][1] + 1


class _Noting:
    """What one command has done so far, and the number of its first line in the audit."""

    def __init__(self, command: str, arguments: dict[str, Any], by: By) -> None:
        self._command = command
        self._arguments = msgspec.json.encode(arguments).decode()
        self._by = by
        self._number: int | None = None
        self.changed = 0

    async def note(self, ask: Ask, changed: int, lanes: set[Place]) -> None:
        """Within the transaction that does it: note it, and let the owners of the lanes find out."""
        if not changed:
            return
        await self.line(ask, changed)
        if lanes:
            await ask("raise_version", Rows(sorted(lanes)))
        self.changed += changed

    async def line(self, ask: Ask, changed: int) -> int:
        """A line in the audit; the number of the command's first one."""
        row = (self._by.who, self._command, self._arguments, self._by.reason, changed, self._number)
        ((number,),) = await ask("note_audit", *row)
        self._number = self._number or int(number)
        return self._number


async def _retry(ask: Ask, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
    return await ask("retry", Rows(places))


async def _drop(ask: Ask, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
    return await ask("drop", Rows(places))


async def _skip(ask: Ask, places: Sequence[Place]) -> Sequence[Sequence[Any]]:
    return [*await ask("skip", Rows(places)), *await _decide_ahead(ask, places, State.SKIPPED, None, blocks=False)]


async def _decide_ahead(
    ask: Ask, places: Sequence[Place], state: State, error: str | None, *, blocks: bool
) -> Sequence[Sequence[Any]]:
    """Of these messages, those that their lanes have not read yet: they will be passed over."""
    decided = await ask("decide_ahead", Rows(places), state.value, error, blocks)
    if decided:
        await ask("note_ahead", Rows([tuple(row) for row in decided]))
    return decided


async def _bounds(ask: Ask, rewind: Rewind) -> tuple[int, int]:
    """The first and the last position that a rewind looks at."""
    ((first, last, _, _),) = await ask("log_ends", rewind.sink)
    if last is None:
        return 1, 0
    if isinstance(rewind.to, datetime):
        return await _position_at(ask, as_microseconds(rewind.to), first, last), last
    return max(first, rewind.to), last


async def _position_at(ask: Ask, microseconds: int, first: int, last: int) -> int:
    """Where the log's rows begin to be as young as that. Halving, because there is no index on when rows were added."""
    while first < last:
        middle = (first + last) // 2
        ((youngest,),) = await ask("created_at", middle)
        if youngest is not None and youngest < microseconds:
            first = middle + 1
        else:
            last = middle
    return first


def _rewind_values(rewind: Rewind, begin: int, end: int, rows: int) -> tuple[Any, ...]:
    since = as_microseconds(rewind.to) if isinstance(rewind.to, datetime) else None
    return (rewind.sink, begin, end, rewind.key, rewind.type, rows, since)


def _slot(key: str) -> int:
    return slot_of(key, UUID(int=0))


def _lane_of(lanes: Sequence[Sequence[Any]], key: str) -> int:
    slot = _slot(key)
    return next(int(lane) for _, lane, first, last in lanes if first <= slot <= last)


def _arguments(asked: Filter | Rewind) -> dict[str, Any]:
    """What was asked for, without what was not."""
    return {name: value for name, value in msgspec.structs.asdict(asked).items() if value not in (None, (), False)}


def _chunks(ids: Iterable[UUID]) -> list[list[UUID]]:
    all_ids = list(dict.fromkeys(ids))
    return [all_ids[begin : begin + BATCH] for begin in range(0, len(all_ids), BATCH)]
