"""A database that crashes is reported once by a relay and once by a consumer, however many tasks notice it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from postroad import Consumer, Received, Relay, RelaySettings, events
from postroad.brokers.memory import MemoryQueue
from postroad.events import Event
from postroad.outage_reports import FIRST_REPORT
from tests.conftest import serving
from tests.consumers import Numbered, put
from tests.logs import Arrivals, PostgreSQLLog, numbered
from tests.services.postgresql import PostgreSQL

LANES, CONCURRENCY = 4, 10
RETRIES = 30


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """One of its own, because it is crashed."""
    with serving(lambda: PostgreSQL(15, durable=False)) as server:
        yield server


class Kinds:
    """Counts events by their kind."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, kind: type[Event]) -> None:
        async with asyncio.timeout(120):
            while not any(isinstance(event, kind) for event in self.events):
                self._more.clear()
                await self._more.wait()

    def count(self, level: int) -> Counter[str]:
        """Of this level."""
        return Counter(event.name() for event in self.events if event.level == level)

    def one_outage(self, *kinds: type[events.StoreUnavailable | events.ConsumerWaiting]) -> bool:
        """Whether these reported one outage: at once, and again only after a while, if it lasted so long."""
        waited = [event.waited_s for event in self.events if isinstance(event, kinds)]
        return waited[:1] == [0] and all(later - earlier >= FIRST_REPORT for earlier, later in pairwise(waited))


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - of what has no event
            await asyncio.sleep(0.01)


async def test_a_relay_whose_database_crashes(server: PostgreSQL) -> None:
    log, kinds, broker = await PostgreSQLLog.fresh(server), Kinds(), Arrivals()
    settings = RelaySettings(lanes=LANES, outage_backoff="100ms", max_idle_backoff="50ms")
    relay = Relay(log.store, broker, settings=settings, listeners=[kinds])
    failures = Counter[str]()
    report = relay._outages.failed

    def failed(part: Any, error: Exception, retry_in: float) -> None:
        failures[part] += 1
        report(part, error, retry_in)

    relay._outages.failed = failed  # type: ignore[method-assign]
    running = asyncio.create_task(relay.run())
    await log.add(*numbered(*range(20)))
    await broker.until(*range(20))
    kinds.events.clear()
    await asyncio.to_thread(server.crash)
    await until(lambda: failures["lanes"] >= RETRIES)
    await asyncio.to_thread(server.start)
    await kinds.until(events.StoreRecovered)
    await log.add(*numbered(*range(20, 40)))
    await broker.until(*range(40))
    await kinds.until(events.ListenRestored)
    relay.stop()
    await running
    assert failures.total() > RETRIES
    assert kinds.one_outage(events.StoreUnavailable)
    assert kinds.count(logging.WARNING).keys() == {"store_unavailable", "liveness_session_lost", "listen_lost"}
    after = kinds.count(logging.INFO)
    after.pop("progress", None)  # it may have been due in the meantime
    assert after.pop("lanes_taken") <= LANES  # reclaimed, usually all of them at once
    assert after == {"store_recovered": 1, "listen_restored": 1, "relay_ended": 1}


async def test_a_consumer_whose_database_crashes(server: PostgreSQL) -> None:
    log, kinds, queue = await PostgreSQLLog.fresh(server), Kinds(), MemoryQueue()
    begun = 0

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        nonlocal begun
        begun += 1
        connection = await asyncpg.connect(log.url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            connection.terminate()

    it: Consumer[Any] = Consumer(
        queue, name="stock", begin=begin, ordering="none", concurrency=CONCURRENCY, listeners=[kinds]
    )
    in_handler = asyncio.Event()

    @it.on(Numbered)
    async def handle(event: Numbered, tx: Any, message: Received) -> None:
        in_handler.set()
        await tx.execute("select pg_sleep(0.01)")

    put(queue, *range(200))
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60):
        await in_handler.wait()
    run = it._run
    assert run is not None
    await asyncio.to_thread(server.crash)
    before = begun
    await until(lambda: begun >= before + RETRIES)
    await asyncio.to_thread(server.start)
    await kinds.until(events.ConsumerRecovered)
    await until(lambda: (done := run.summary).handled + done.duplicates == 200)
    it.stop()
    summary = await running
    assert (summary.failed, summary.dead) == (0, 0)
    warned = kinds.count(logging.WARNING)
    assert warned.pop("heartbeat_failed", 0) <= 1  # it may have been due in the meantime
    assert warned.keys() == {"consumer_waiting"}
    assert kinds.one_outage(events.ConsumerWaiting)
    after = kinds.count(logging.INFO)
    after.pop("consumer_progress", None)  # it may have been due in the meantime
    assert after == {"consumer_started": 1, "receiving": 1, "consumer_recovered": 1, "consumer_ended": 1}
