"""One relay works and others stand by, each a process, on real servers: what a held lock does not mean."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.lanes import pending
from tests.logs import PostgreSQLLog, log_fixture, numbered
from tests.queues import arrivals, with_queue
from tests.relays import relay
from tests.services.server import stop

OPTIONS = ("--lock-id", "4711", "--lease", "2s")


log = log_fixture("postgresql15")


async def until_carried(log: PostgreSQLLog) -> None:
    async with asyncio.timeout(120):
        while await pending(log.url):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.05)


async def until_owned_by(log: PostgreSQLLog, process: int) -> None:
    owners = "select distinct pid from postroad.lanes left join postroad.relays using (owner)"
    async with asyncio.timeout(60):
        while [row["pid"] for row in await log.execute(owners)] != [process]:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)


async def test_a_held_lock_does_not_prolong_the_lease_of_one_that_is_frozen(
    log: PostgreSQLLog, vhost: str, tmp_path: Path
) -> None:
    await with_queue(vhost)
    with relay(log, vhost, tmp_path / "a", *OPTIONS) as first:
        await first.until_logged("lock_taken")
        with relay(log, vhost, tmp_path / "b", *OPTIONS) as second:
            await second.until_logged("lock_held_by_other", "(postroad liveness)")
            await log.add(*numbered(*range(50)))
            await until_carried(log)
            stop(first.process)
            await second.until_logged("acting_without_lock")
            await until_owned_by(log, second.process.pid)
            await log.add(*numbered(*range(50, 100)))
            await until_carried(log)
            first.process.send_signal(signal.SIGCONT)
            await until_owned_by(log, first.process.pid)
            await log.add(*numbered(*range(100, 150)))
            await until_carried(log)
            assert await first.ended_by(signal.SIGTERM) == 0
            await second.until_logged("lock_taken")
            await until_owned_by(log, second.process.pid)
            await log.add(*numbered(*range(150, 200)))
            await until_carried(log)
        assert len(first.logged("lock_released")) == 1
    assert sorted(await arrivals(vhost)) == list(range(200))
