"""Writers that store payloads elsewhere, a sweeper that deletes everything unused at once, and SIGKILL for all of them.

No committed message is without its payload, and after the last sweep no payload is without its message.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from postroad.admin import By, open_admin
from postroad.codecs import PayloadStore, payload_store
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

ROLES = ("writer", "writer", "writer", "sweeper", "sweeper")
KILLS = 12
ENOUGH = 150


class Process:
    """One of them, started again whenever it was killed."""

    def __init__(self, role: str, database: str, store: str) -> None:
        self._command = [sys.executable, "-m", "tests.scenarios.payload_services", role, database, store]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        assert self._process.poll() is None, "it ended by itself; what it printed says why"
        self._process.kill()
        self._process.wait()


@contextmanager
def running(database: str, store: str) -> Iterator[list[Process]]:
    processes = [Process(role, database, store) for role in ROLES]
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()


async def test_no_committed_message_loses_its_payload(postgresql15: PostgreSQL, tmp_path: Path) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    store = f"file://{tmp_path}/payloads"
    payloads = payload_store(store)
    dice = random.Random(20)
    with running(log.url, store) as processes:
        async with asyncio.timeout(240):
            for kill in range(KILLS):
                await committed(log, (kill + 1) * ENOUGH // KILLS)
                victim = dice.choice(processes)
                victim.kill()
                victim.start()
    wanted = {row[0] for row in await log.execute("select headers ->> 'dataref' from postroad.outbox")}
    assert len(wanted) >= ENOUGH
    lost = wanted - await stored(payloads)
    assert lost == set(), f"{len(lost)} of {len(wanted)} committed messages are without their payloads"
    async with open_admin(log.url) as admin:
        await admin.sweep_payloads(payloads, timedelta(0), By("anna", "the last sweep"))
    assert await stored(payloads) == wanted


async def committed(log: PostgreSQLLog, messages: int) -> None:
    while (await log.execute("select count(*) from postroad.outbox"))[0][0] < messages:  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.05)


async def stored(payloads: PayloadStore) -> set[str]:
    return {each.path async for page in payloads.older_than(timedelta(0)) for each in page}
