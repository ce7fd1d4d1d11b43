"""The database goes away under a running relay, and comes back: sometimes to before what the relay remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from postroad.config import RelaySettings
from postroad.relay import Relay
from tests.conftest import serving
from tests.logs import OUTBOX, Arrivals, PostgreSQLLog, numbered
from tests.services.postgresql import PostgreSQL

SETTINGS = RelaySettings(lanes=2, poll_interval="1ms", max_idle_backoff="5ms", outage_backoff="50ms")


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """One of its own, because it is crashed and its settings are changed."""
    with serving(lambda: PostgreSQL(15)) as server:
        yield server


async def settled(log: PostgreSQLLog, position: int) -> None:
    """Nothing is left that the relay would have to save: what it remembers, it takes for saved."""
    async with asyncio.timeout(60):
        while (await log.execute("select min(position) from postroad.lanes"))[0][0] < position:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


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
    relay = Relay(log.store, broker, settings=SETTINGS)
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
        await settled(log, end)
        await asyncio.to_thread(server.restart, "immediate")
        await log.add(*numbered(number + 2))
        (row,) = await log.execute("select position from postroad.outbox where payload = $1", str(number + 2).encode())
        await broker.until(number + 2)
        if row[0] <= end:
            break  # the case this test is for has happened; else the server had saved the rows in time
    else:
        pytest.fail("in 20 crashes no position was given again")
    relay.stop()
    await running
