"""A relay in each of four workers of a FastAPI application: they share the lanes, and a killed one is not missed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lanes import pending
from tests.logs import PostgreSQLLog
from tests.queues import arrivals, with_queue
from tests.services.postgresql import PostgreSQL
from tests.services.server import free_port
from tests.traffic import Traffic

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def log(postgresql15: PostgreSQL) -> PostgreSQLLog:
    return await PostgreSQLLog.fresh(postgresql15)


@contextmanager
def application(log: PostgreSQLLog, to: str) -> Iterator[subprocess.Popen[bytes]]:
    options = ["--workers", "4", "--port", str(free_port()), "--log-level", "warning"]
    with subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "tests.application:app", *options],
        env=os.environ | {"POSTROAD_DATABASE": log.url, "POSTROAD_TO": to},
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


async def owners(log: PostgreSQLLog) -> dict[int, int]:
    """Each worker's process, and how many lanes it has."""
    rows = await log.execute(
        "select pid, count(*) from postroad.lanes join postroad.relays using (owner) group by pid, owner"
    )
    return {row["pid"]: row["count"] for row in rows}


async def until_owners(log: PostgreSQLLog, *expected: int, gone: int | None = None) -> dict[int, int]:
    async with asyncio.timeout(60):
        while sorted((found := await owners(log)).values()) != list(expected) or gone in found:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def until_carried(log: PostgreSQLLog) -> None:
    async with asyncio.timeout(60):
        while await pending(log.url):  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.05)


async def test_four_workers_carry_together_and_one_that_is_killed_is_not_missed(log: PostgreSQLLog, vhost: str) -> None:
    await with_queue(vhost)
    traffic = Traffic(5_000, keys=100)
    with application(log, vhost) as process:
        workers = await until_owners(log, 1, 1, 1, 1)
        assert process.pid not in workers
        await traffic.add_to(log)
        await until_carried(log)
        victim = min(workers)
        os.kill(victim, signal.SIGKILL)
        # uvicorn starts another worker, which gets the share of the one that died.
        await until_owners(log, 1, 1, 1, 1, gone=victim)
        async with traffic.growing(log):
            await asyncio.sleep(0.3)
        await until_carried(log)
        process.terminate()
        await asyncio.to_thread(process.wait, 60)
    assert not traffic.check(await arrivals(vhost)), "nothing was under way when the worker was killed"
    rows = await log.execute("select pid from postroad.relays")
    assert [row["pid"] for row in rows] == [victim], "all others have left"
