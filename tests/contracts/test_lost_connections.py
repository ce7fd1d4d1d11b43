"""Connections to PostgreSQL that were lost and made again, and what a lane knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from postroad import StoreUnavailable
from postroad.stores.postgresql import PostgreSQLStore
from tests.lanes import take_lanes
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

T = TypeVar("T")


@pytest.fixture
async def store(postgresql15: PostgreSQL) -> AsyncIterator[PostgreSQLStore]:
    log = await PostgreSQLLog.fresh(postgresql15)
    store = PostgreSQLStore(log.url)
    await store.open()
    yield store
    await store.close()


async def connected(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, as soon as there is a connection that works."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def test_what_was_loaded_before_a_crash_is_not_written_after_it(
    store: PostgreSQLStore, postgresql15: PostgreSQL
) -> None:
    """The server may have forgotten what came before it; also when no client was connected when it crashed."""
    (lease,) = await take_lanes(store)
    await asyncio.to_thread(postgresql15.restart, "immediate")
    await connected(store.leases.relays)
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            await store.settle(lease, lease.cursor)
    loaded = await connected(lambda: store.load(lease))
    await store.settle(loaded.lease, loaded.lease.cursor)


async def test_a_connection_that_is_made_later_makes_no_lane_forget(store: PostgreSQLStore) -> None:
    """After an outage as many are made as are needed at the same time; the others when more are needed."""
    (lease,) = await take_lanes(store)
    cut = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where application_name = 'postroad'"
    await PostgreSQLLog(store._url).execute(cut)
    loaded = await connected(lambda: store.load(lease))
    await asyncio.gather(*(store.leases.relays() for _ in range(10)), return_exceptions=True)
    await store.settle(loaded.lease, loaded.lease.cursor)
