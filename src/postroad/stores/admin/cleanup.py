"""Deleting delivered messages: by age (`cleanup`), or all of a key (`forget`). Both follow the rules of retention."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from postroad.stores.admin.audit import AuditedChange
from postroad.stores.admin.contract import Count, Done, KeyCount
from postroad.stores.admin.inspect import estimate
from postroad.stores.admin.rewind import position_at

if TYPE_CHECKING:
    from postroad.stores.admin.contract import By, OnProgress
    from postroad.stores.admin.session import AdminDatabase, Query

__all__ = ["cleanup", "count_of_key", "forget", "preview_cleanup"]

BATCH: Final = 1000
SCAN_BATCH: Final = 10_000
"""Rows of the log that are searched for a key at a time."""
SAMPLE: Final = 5_000
"""If there are more rows than this, a preview is estimated from this many."""
PAUSE_FACTOR: Final = 9.0
"""After each batch, wait this many times as long as the batch took, so that deleting slows no other work down."""
BUSY_SECONDS: Final = 0.05
"""How long to wait while another cleanup holds the lock."""


async def preview_cleanup(query: Query, older_than: timedelta) -> Count:
    ((first, last, behind, _),) = await query("log_ends", None)
    if last is None:
        return Count(0)
    age = older_than // timedelta(microseconds=1)
    ((matching, seen, through),) = await query("count_old", first, SAMPLE, age)
    if seen < SAMPLE:
        return Count(matching)
    ((_, _, now),) = await query("scheduled_report", 1)
    end = min(behind, await position_at(query, now - age, first, last))
    return estimate(matching, looked_at=through - first + 1, of=end - first + 1, exact=False)


async def cleanup(
    database: AdminDatabase, older_than: timedelta, by: By, on_progress: OnProgress | None, expected: int | None = None
) -> Done:
    change = AuditedChange("cleanup", {"older_than_seconds": older_than.total_seconds()}, by, expected)

    async def count() -> int:
        async with database.read() as query:
            return (await preview_cleanup(query, older_than)).number

    await change.confirm(count)
    return await _delete(database, change, older_than, on_progress=on_progress)


async def count_of_key(query: Query, key: str) -> KeyCount:
    delivered = undelivered = after = 0
    ((scheduled,),) = await query("count_scheduled_of_key", key)
    while True:
        ((had, missing, seen, through),) = await query("count_of_key", after, SCAN_BATCH, key)
        delivered, undelivered = delivered + had, undelivered + missing
        if seen < SCAN_BATCH:
            return KeyCount(delivered, undelivered, scheduled)
        after = through


async def forget(
    database: AdminDatabase, key: str, by: By, on_progress: OnProgress | None, expected: int | None = None
) -> Done:
    change = AuditedChange("forget", {}, by, expected)

    async def count() -> int:
        async with database.read() as query:
            return (await count_of_key(query, key)).delivered

    await change.confirm(count)
    async with database.write() as query:
        await query("forget_in_audit", key, await change.add_line(query, 0))
    return await _delete(database, change, timedelta(0), key, on_progress=on_progress)


async def _delete(
    database: AdminDatabase,
    change: AuditedChange,
    older_than: timedelta,
    key: str | None = None,
    *,
    on_progress: OnProgress | None,
) -> Done:
    """Walk through the log in batches and delete what retention may delete."""
    after = 0
    while True:
        began = time.monotonic()
        cleaned = await database.delete_passed(after=after, older_than=older_than, batch=BATCH, key=key)
        if cleaned.deleted:
            async with database.write() as query:
                await change.record(query, cleaned.deleted, set())
        if on_progress is not None:
            on_progress(change.changed)
        if not cleaned.busy and (not cleaned.more or cleaned.through == after):
            return Done(change.changed)
        after = cleaned.through
        await asyncio.sleep(BUSY_SECONDS if cleaned.busy else PAUSE_FACTOR * (time.monotonic() - began))
