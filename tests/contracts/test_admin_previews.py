"""What a rewind would publish again, in detail, and what lanes do, on SQLite and two versions of PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from postroad.brokers.memory import MemoryBroker
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import Count, LaneReport, Rewind
from tests.contracts.test_admin import EVERYTHING, ops, run_relay, running
from tests.contracts.test_admin_causation import process
from tests.logs import Arrivals, Log, SQLiteLog, log_fixture, numbered

__all__ = ["log", "ops"]

log = log_fixture("sqlite", "postgresql15", "postgresql18")


async def test_types_keys_and_what_inboxes_would_ignore(log: Log, ops: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.add(*numbered(1, 2, 3, key="k"), *numbered(4), *numbered(5))
    await run_relay(log, Arrivals())
    await log.add(*numbered(6))
    for position in (1, 2):
        row = next(row for row in (await ops.messages(EVERYTHING)).messages if row.position == position)
        identity = (await ops.causation(row.id)).identity
        assert identity is not None
        await process(log, "mailer", identity)
    await process(log, "other", "/else 1")
    preview = await ops.preview_rewind_details(Rewind(sink="default", to=1))
    assert (preview.count, preview.sampled, preview.exact) == (Count(5), 5, True)
    assert list(preview.types) == [("test.number", 5)]
    assert (preview.number_of_keys, preview.keys[0]) == (3, ("k", 3))
    assert list(preview.ignored) == [("mailer", Count(2))]
    assert list((await ops.preview_rewind_details(Rewind(sink="default", to=1, new_ids=True))).ignored) == []
    assert (await ops.preview_rewind_details(Rewind(sink="default", to=1, key="k4"))).count == Count(1)
    assert (await ops.preview_rewind_details(Rewind(sink="default", to=99))).sampled == 0
    monkeypatch.setattr("postroad.stores.admin.rewind.KNOWN_SAMPLE", 2)
    preview = await ops.preview_rewind_details(Rewind(sink="default", to=1))
    assert list(preview.ignored) == [("mailer", Count(5, exact=False))], "an estimate, and it says so"


async def test_lanes_have_an_epoch_and_nap(log: Log, ops: Admin) -> None:
    async def lanes() -> list[LaneReport]:
        return [lane for sink in (await ops.status()).sinks for lane in sink.lanes]

    async with running(log, MemoryBroker(), poll_interval="100ms", max_idle_backoff="10s"), asyncio.timeout(60):
        while not await lanes() or any(lane.owner is None for lane in await lanes()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if not isinstance(log, SQLiteLog):  # which has no naps
            while any(lane.nap_seconds is None for lane in await lanes()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        owned = await lanes()
        assert [lane.epoch for lane in owned] == [1, 1]
        assert all(lane.lease_seconds is not None for lane in owned)
    left = await lanes()
    assert [(lane.owner, lane.lease_seconds, lane.nap_seconds) for lane in left] == [(None, None, None)] * 2
