"""Pages by size: whatever the sizes are, each message arrives once and whole, and no page exceeds its limit.

PostgreSQL reads a page with one of two statements, depending on the sizes on the page before; the store remembers that
from one example to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from postroad import Message
from postroad.stores.base import Lease
from postroad.stores.cursor import PageLimit
from postroad.stores.postgresql import PostgreSQLStore
from tests.lanes import take_lanes
from tests.logs import OUTBOX, PostgreSQLLog
from tests.services.postgresql import PostgreSQL

HEADER = len('{"source":"/tests"}')

small, mixed = st.sampled_from([0, 5, 30, 31]), st.sampled_from([5, 30, 31, 300, 4000])
sizes = st.one_of(st.lists(small, min_size=20, max_size=40), st.lists(mixed, max_size=25))
limits = st.builds(
    PageLimit,
    rows=st.sampled_from([1, 2, 5, 1000]),
    payload_bytes=st.sampled_from([1, 250, 251, 5_000, 1 << 20]),
)


class Log:
    """A log and a store that stay open, and an empty lane for each example."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.runner = runner
        self.connection: Any = runner.run(asyncpg.connect(url, server_settings={"synchronous_commit": "off"}))
        self.store = PostgreSQLStore(url)
        runner.run(self.store.open())

    async def lane(self) -> Lease:
        await self.connection.execute("truncate postroad.outbox, postroad.lanes")
        return (await take_lanes(self.store, "s", uuid4(), lanes=1, start="oldest"))[0]

    def close(self) -> None:
        self.connection.terminate()
        self.runner.run(self.store.close())


@pytest.fixture
def log(postgresql15: PostgreSQL) -> Iterator[Log]:
    with asyncio.Runner() as runner:
        log = Log(runner, runner.run(PostgreSQLLog.fresh(postgresql15)).url)
        yield log
        log.close()


def expected(payloads: list[bytes], limit: PageLimit) -> list[list[bytes]]:
    """The pages as the contract has them: each ends with the message that reaches either number."""
    pages: list[list[bytes]] = [[]]
    for payload in payloads:
        if len(pages[-1]) >= limit.rows or sum(len(each) + HEADER for each in pages[-1]) >= limit.payload_bytes:
            pages.append([])
        pages[-1].append(payload)
    return pages if payloads else []


async def pages(log: Log, lane: Lease, limit: PageLimit) -> list[list[bytes]]:
    """The payloads of all pages that a lane reads."""
    found, cursor = [], lane.cursor
    while True:
        page = await log.store.read(lane, cursor, limit)
        cursor = page.after
        if page.messages:
            found.append([message.payload for message in page.messages])
        elif not page.before.catching_up:
            return found


@given(sizes=sizes, limit=limits)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def _check(log: Log, late: bool, sizes: list[int], limit: PageLimit) -> None:
    async def check() -> None:
        lane = await log.lane()
        payloads = [(b"%d " % number).ljust(size, b"x")[:size] for number, size in enumerate(sizes)]
        messages = [Message(payload, type="t", key="k") for payload in payloads]
        async with log.connection.transaction():
            if messages:
                await OUTBOX.add_many(log.connection, messages)
            if late:
                await _pass(log, lane)
        lane = (await log.store.load(lane)).lease
        assert await pages(log, lane, limit) == expected(payloads, limit)

    log.runner.run(check())


async def _pass(log: Log, lane: Lease) -> None:
    """Move the lane's cursor past everything that was added and is not committed."""
    async with PostgreSQLLog(log.store._url).connected() as other, other.transaction():
        await OUTBOX.add(other, b"", type="t", key="k")
    page = await log.store.read(lane, lane.cursor, PageLimit(1, 1 << 20))
    await log.store.settle(lane, page.after)


@pytest.mark.parametrize("late", [False, True], ids=["next rows", "late rows"])
def test_pages_end_where_the_contract_says_whatever_the_sizes(log: Log, late: bool) -> None:
    _check(log, late)


def test_large_messages_cost_more_only_while_they_last(log: Log) -> None:
    async def check() -> None:
        lane = await log.lane()
        cursor, limit, large = lane.cursor, PageLimit(10, 1_000), []
        for size in (10, 500, 10, 10):
            async with log.connection.transaction():
                await OUTBOX.add(log.connection, b"x" * size, type="t")
            for _ in range(2):  # the second finds nothing, which tells nothing about sizes
                page = await log.store.read(lane, cursor, limit)
                cursor = page.after
                large.append(bool(log.store._large))
        assert large == [False, False, True, True, False, False, False, False]

    log.runner.run(check())
