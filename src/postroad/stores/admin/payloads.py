"""Deletes payloads that are stored elsewhere and that no message refers to: old ones, and those of rolled-back adds.

A payload is put after its message's row was inserted. So when it is listed, its transaction has an id, and the sweep
waits for the end of every transaction that had one by then, and only then looks for the rows. Without the wait it would
delete the payload of a transaction that commits a moment later.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

from postroad.codecs.claim_check import id_in
from postroad.errors import StoreUnavailable
from postroad.stores.admin.audit import AuditedChange
from postroad.stores.admin.contract import Count, Done

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from postroad.codecs.payload_store import PayloadStore, StoredPayload
    from postroad.stores.admin.contract import By, OnProgress
    from postroad.stores.admin.session import AdminDatabase

__all__ = ["preview_sweep", "sweep"]

WAIT_SECONDS: Final = 600.0
"""How long a sweep waits for transactions that were open when it listed payloads."""
POLL_SECONDS: Final = 0.2


async def preview_sweep(database: AdminDatabase, store: PayloadStore, older_than: timedelta) -> Count:
    number = 0
    async for page in store.older_than(older_than):
        number += len(await _unused(database, page))
    return Count(number)


async def sweep(
    database: AdminDatabase,
    store: PayloadStore,
    older_than: timedelta,
    by: By,
    on_progress: OnProgress | None,
    *,
    expected: int | None = None,
) -> Done:
    arguments = {"older_than_seconds": older_than.total_seconds(), "store": repr(store)}
    change = AuditedChange("payloads_sweep", arguments, by, expected)

    async def count() -> int:
        return (await preview_sweep(database, store, older_than)).number

    await change.confirm(count)
    async for page in store.older_than(older_than):
        if not await _unused(database, page):
            continue
        await _until_decided(database)
        unused = await _unused(database, page)
        await store.delete(unused)
        if unused:
            async with database.write() as query:
                await change.record(query, len(unused), set())
        if on_progress is not None:
            on_progress(change.changed)
    return Done(change.changed)


async def _until_decided(database: AdminDatabase) -> None:
    """Wait until every transaction that may have put a payload up to now has ended."""
    async with database.write() as query:
        ((horizon,),) = await query("payload_horizon")
    until = time.monotonic() + WAIT_SECONDS
    while True:
        async with database.read() as query:
            ((decided,),) = await query("payloads_decided", horizon)
        if decided:
            return
        if time.monotonic() > until:
            raise StoreUnavailable(
                f"a transaction that was open when the payloads were listed has not ended for {WAIT_SECONDS:g} s, and "
                "may still commit messages that refer to them; no more is deleted. Sweep again when it has ended; "
                "pg_stat_activity has it, with the oldest xact_start"
            )
        await asyncio.sleep(POLL_SECONDS)


async def _unused(database: AdminDatabase, page: Sequence[StoredPayload]) -> list[str]:
    """Which of these no message refers to. Objects that postroad has not stored are left alone."""
    ids = {path: UUID(id) for path, _ in page if (id := id_in(path)) is not None}
    if not ids:
        return []
    async with database.read() as query:
        used = {row[0] for row in await query("payloads_in_use", sorted(ids.values()))}
    return [path for path in ids if path not in used]
