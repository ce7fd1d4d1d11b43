"""Re-publishing messages that a sink has already delivered."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from postroad.message import new_id
from postroad.received import identity_of
from postroad.stores.admin.audit import AuditedChange, arguments_of
from postroad.stores.admin.contract import Count, Done, RewindPreview
from postroad.stores.admin.inspect import estimate
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.session import Rows, to_microseconds
from postroad.stores.admin.slots import check_carrier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.admin.contract import By, OnProgress, Rewind
    from postroad.stores.admin.session import AdminDatabase, Query

__all__ = ["position_at", "preview_details", "preview_rewind", "rewind_sink"]

BATCH: Final = 10_000
"""Rows of the log that are searched at a time. Each batch makes the relays reload the lanes."""
SAMPLE: Final = 5_000
"""If there are more rows than this, a preview is estimated from this many."""
KNOWN_SAMPLE: Final = 1_000
"""So many messages of a preview are looked up in the inbox of each consumer."""
MOST_COMMON: Final = 10
"""So many types and keys are named in a preview."""


async def preview_rewind(query: Query, rewind: Rewind) -> Count:
    """How many messages `rewind_sink` would publish again now."""
    await check_sink(query, rewind.sink)
    await check_carrier(query, rewind.sink, "published again")
    begin, end = await _bounds(query, rewind)
    ((matching, seen, through),) = await query("count_rewind", *_values(rewind, begin, end, SAMPLE))
    if seen < SAMPLE:
        return Count(matching)
    return estimate(matching, looked_at=through - begin + 1, of=end - begin + 1, exact=False)


async def preview_details(query: Query, rewind: Rewind) -> RewindPreview:
    """What is among them: types, keys, and how many the consumers of this database would ignore."""
    count = await preview_rewind(query, rewind)
    begin, end = await _bounds(query, rewind)
    rows = await query("sample_rewind", *_values(rewind, begin, end, SAMPLE))
    types = Counter(type for _, type, _, _ in rows)
    keys = Counter(key for _, _, key, _ in rows if key is not None)
    return RewindPreview(
        count=count,
        sampled=len(rows),
        types=types.most_common(MOST_COMMON),
        number_of_keys=len(keys),
        keys=keys.most_common(MOST_COMMON),
        ignored=[] if rewind.new_ids or not rows else await _ignored(query, rows[:KNOWN_SAMPLE], count),
    )


async def _ignored(query: Query, rows: Sequence[Sequence[Any]], count: Count) -> list[tuple[str, Count]]:
    identities = [identity_of(str(id), source) for id, _, _, source in rows]
    exact = count.exact and count.number == len(rows)
    return [
        (consumer, Count(number if exact else round(number / len(rows) * count.number), exact=exact))
        for consumer, number in await query("known_identities", identities)
    ]


async def rewind_sink(
    database: AdminDatabase, rewind: Rewind, by: By, on_progress: OnProgress | None, expected: int | None = None
) -> Done:
    """Have delivered messages published again, in batches."""
    change = AuditedChange("rewind", arguments_of(rewind), by, expected)
    name = datetime.now(UTC).isoformat(timespec="seconds")
    async with database.read() as query:
        await check_sink(query, rewind.sink)
        await check_carrier(query, rewind.sink, "published again")
        position, end = await _bounds(query, rewind)
    while True:
        async with database.write() as query:
            await query("lock_retention")
            await query("lock_for_change", rewind.sink)
            await change.confirm(partial(_count, query, rewind, position, end))
            rows = await query("find_rewind", *_values(rewind, position, end, BATCH))
            again = change.within([(lane, place, key) for lane, place, key, matches in rows if matches])
            if again:
                await query("rewind", rewind.sink, Rows(again))
                ids = [(place, new_id() if rewind.new_ids else None) for _, place, _ in again]
                await query("add_rewound", rewind.sink, name, Rows(ids))
            await change.record(query, len(again), {(rewind.sink, lane) for lane, _, _ in again})
        if on_progress is not None:
            on_progress(change.changed)
        if len(rows) < BATCH:
            return Done(change.changed)
        position = rows[-1][1] + 1


async def _count(query: Query, rewind: Rewind, begin: int, end: int) -> int:
    """How many messages a rewind would publish again: all rows of the log from `begin` on are read."""
    ((matching, _, _),) = await query("count_rewind", *_values(rewind, begin, end, end))
    return int(matching)


async def _bounds(query: Query, rewind: Rewind) -> tuple[int, int]:
    """The first and the last position that a rewind looks at."""
    ((first, last, _, _),) = await query("log_ends", rewind.sink)
    if last is None:
        return 1, 0
    end = last if rewind.until is None else min(last, rewind.until)
    if isinstance(rewind.to, datetime):
        return await position_at(query, to_microseconds(rewind.to), first, last), end
    return max(first, rewind.to), end


async def position_at(query: Query, microseconds: int, first: int, last: int) -> int:
    """The position from which on rows were added at this time or later.

    A binary search, because there is no index on the time at which rows were added.
    """
    while first < last:
        middle = (first + last) // 2
        ((newest,),) = await query("created_at", middle)
        if newest is not None and newest < microseconds:
            first = middle + 1
        else:
            last = middle
    return first


def _values(rewind: Rewind, begin: int, end: int, rows: int) -> tuple[Any, ...]:
    since = to_microseconds(rewind.to) if isinstance(rewind.to, datetime) else None
    return (rewind.sink, begin, end, rewind.key, rewind.type, rows, since)
