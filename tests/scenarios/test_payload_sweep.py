"""`postroad payloads sweep`, as a user runs it, on payloads in S3: it asks, it counts, it is killed, and run again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from postroad import Message, Outbox
from postroad.codecs import ClaimCheck, PayloadStore, payload_store
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL
from tests.services.s3 import S3

WAIT_SECONDS = 120
AT_ONCE = timedelta(0)


class Shop:
    """A database, a bucket with the payloads of its messages, and the command line."""

    def __init__(self, log: PostgreSQLLog, bucket: str) -> None:
        self.log, self.url = log, f"s3://{bucket}/payloads"
        self.payloads: PayloadStore = payload_store(self.url)
        self._outbox = Outbox(source="/shop", codecs=[ClaimCheck(self.url, above=100)])

    async def add(self, messages: int, *, commit: bool) -> None:
        connection = await asyncpg.connect(self.log.url)
        transaction = connection.transaction()
        await transaction.start()
        await self._outbox.add_many(connection, [Message(os.urandom(200), type="large") for _ in range(messages)])
        await (transaction.commit if commit else transaction.rollback)()
        await connection.close()

    async def stored(self) -> set[str]:
        return {each.path async for page in self.payloads.older_than(AT_ONCE) for each in page}

    async def wanted(self) -> set[str]:
        return {row[0] for row in await self.log.execute("select headers ->> 'dataref' from postroad.outbox")}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "postroad", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """The settings as a user gives them; S3's credentials are among the others."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        return own | {"POSTROAD_DATABASE": self.log.url}

    async def postroad(self, *arguments: str, answer: str = "") -> tuple[int, str]:
        def run() -> tuple[int, str]:
            done = subprocess.run(
                self.command(*arguments), env=self.environment, input=answer,
                capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
            )  # fmt: skip
            return done.returncode, done.stdout + done.stderr

        return await asyncio.to_thread(run)

    async def sweep(self, *options: str, older: str = "0s") -> tuple[int, str]:
        return await self.postroad("payloads", "sweep", "--store", self.url, "--older-than", older, *options)


@pytest.fixture
async def shop(postgresql15: PostgreSQL, s3: S3) -> Shop:
    return Shop(await PostgreSQLLog.fresh(postgresql15), s3.create_bucket())


def started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not await reached():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


async def test_a_sweep_by_hand(shop: Shop) -> None:
    await shop.add(2, commit=True)
    await shop.add(3, commit=False)
    everything, wanted = await shop.stored(), await shop.wanted()
    assert len(everything) == 5
    code, printed = await shop.sweep(older="14d")
    assert code == 0, printed
    assert f"no payload in {shop.url} is older than 14d" in printed
    code, printed = await shop.sweep("--dry-run")
    assert (code, await shop.stored()) == (0, everything)
    assert "3 payloads older than 0 would be deleted" in printed
    code, printed = await shop.sweep()
    assert code != 0, "without a terminal it does nothing unless --yes is given"
    assert await shop.stored() == everything
    code, printed = await shop.sweep("--yes")
    assert (code, printed.strip()) == (0, "deleted 3 payloads")
    assert await shop.stored() == wanted
    code, printed = await shop.postroad("audit", "--json")
    [line] = json.loads(printed)
    assert (line["command"], line["changed"], line["arguments"]["store"]) == ("payloads_sweep", 3, shop.url)


async def test_a_sweep_that_is_killed_is_finished_by_the_next(shop: Shop) -> None:
    await shop.add(5, commit=True)
    await shop.add(300, commit=False)
    wanted = await shop.wanted()
    command = shop.command("payloads", "sweep", "--store", shop.url, "--older-than", "0s", "--yes")
    with started(command, shop.environment) as process:

        async def began() -> bool:
            assert process.poll() is None, "it ended before it was killed"
            return len(await shop.stored()) < 305

        await until(began)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=WAIT_SECONDS)
    left = await shop.stored()
    assert wanted < left, "some are left to delete, and no committed message has lost its payload"
    code, printed = await shop.sweep("--yes")
    assert code == 0, printed
    assert await shop.stored() == wanted


async def test_a_store_that_cannot_be_used_is_an_error_without_a_traceback(shop: Shop) -> None:
    for store, words in (
        ("s3://there-is-none/payloads", "NoSuchBucket"),
        ("ftp://nowhere/payloads", "it must be a URL such as"),
    ):
        code, printed = await shop.postroad("payloads", "sweep", "--store", store, "--yes")
        assert code != 0
        assert words in printed
        assert "Traceback" not in printed
