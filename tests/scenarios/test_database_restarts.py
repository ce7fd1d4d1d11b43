"""The database goes away under a running relay, and comes back: sometimes to before what the relay remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor, Page, PageLimit
from postroad.stores.postgresql import PostgreSQLStore
from tests.conftest import serving
from tests.logs import OUTBOX, Arrivals, PostgreSQLLog, numbered
from tests.services.postgresql import PostgreSQL

SETTINGS = RelaySettings(lanes=1, poll_interval="1ms", max_idle_backoff="5ms", outage_backoff="50ms")


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """One of its own, because it is crashed and its settings are changed."""
    with serving(lambda: PostgreSQL(15, durable=False)) as server:
        yield server


class Gated(PostgreSQLStore):
    """A store whose only lane can be kept from looking for messages, which it does after it has saved its cursor."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._gate = asyncio.Event()
        self._gate.set()
        self._waiting = asyncio.Event()

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        if not self._gate.is_set():
            self._waiting.set()
            await self._gate.wait()
        return await super().read(lease, cursor, limit)

    async def shut(self) -> None:
        """From here on the relay has saved all that it knows, and knows nothing new."""
        self._waiting.clear()
        self._gate.clear()
        await asyncio.wait_for(self._waiting.wait(), 60)

    def let_go(self) -> None:
        self._gate.set()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restarted_server_is_found_again(server: PostgreSQL, mode: Any) -> None:
    log = await PostgreSQLLog.fresh(server)
    broker = Arrivals()
    relay = Relay(log.store, broker, settings=SETTINGS)
    running = asyncio.create_task(relay.run())
    await log.add(*numbered(1))
    await broker.until(1)
    await asyncio.to_thread(server.restart, mode)
    await log.add(*numbered(2))
    await broker.until(2)
    relay.stop()
    assert (await running).lanes_lost == 0


async def test_a_crash_that_takes_committed_rows_back(server: PostgreSQL) -> None:
    """Rows committed with synchronous_commit = off are published, and a crash takes them back: their positions and
    transaction ids are given to new rows. A relay that went on from memory would take those for dealt with.
    """
    log = await PostgreSQLLog.fresh(server)
    for setting in ("wal_writer_delay = '10s'", "bgwriter_lru_maxpages = 0", "checkpoint_timeout = '1h'"):
        await log.execute(f"alter system set {setting}")
    server.restart()
    broker = Arrivals()
    store = Gated(log.url)
    relay = Relay(store, broker, settings=SETTINGS)
    running = asyncio.create_task(relay.run())
    number = 0
    for _ in range(20):
        number += 1000
        await log.add(*numbered(number))
        await broker.until(number)
        connection = await asyncpg.connect(log.url, server_settings={"synchronous_commit": "off"})
        async with connection.transaction():
            # Many positions in little WAL: a page of it that is full would be written at once.
            sequence = "pg_get_serial_sequence('postroad.outbox', 'position')"
            await connection.execute(f"select nextval({sequence}) from generate_series(1, 100)")
            await OUTBOX.add_many(connection, numbered(number + 1))
        end = await connection.fetchval("select max(position) from postroad.outbox")
        connection.terminate()
        await broker.until(number + 1)
        await store.shut()
        await asyncio.to_thread(server.restart, "immediate")
        await log.add(*numbered(number + 2))
        (row,) = await log.execute("select position from postroad.outbox where payload = $1", str(number + 2).encode())
        store.let_go()
        await broker.until(number + 2)
        if row[0] <= end:
            break  # the case this test is for has happened; else the server had saved the rows in time
    else:
        pytest.fail("in 20 crashes no position was given again")
    relay.stop()
    await running
