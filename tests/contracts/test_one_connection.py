"""With `concurrency=1` the user's `begin` may give the same connection every time: there is never a second transaction.

Heartbeats and the inbox's retention use `begin`, too. Between the statements of a handler they would break its
transaction, or be committed and rolled back with it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from postroad import Consumer
from postroad.brokers.memory import MemoryQueue
from postroad.consumer.retention import InboxRetention
from postroad.events import Event, HeartbeatFailed
from postroad.listeners import Listeners
from postroad.stores import open_admin
from tests.consumers import AT_ONCE, Numbered, put
from tests.places import Place, on_postgresql, on_sqlite
from tests.services.postgresql import PostgreSQL

BEATS = 5
"""A handler is as slow as so many heartbeats."""

SECONDS = 0.1 * BEATS


class Shared:
    """One connection, and how many transactions there were on it, at most at once."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.threads: set[int] = set()
        self.made: list[Any] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.threads.add(threading.get_ident())
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            yield
        finally:
            self.open -= 1


def asyncpg_begin(url: str, shared: Shared) -> Any:
    made = shared.made

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with shared.counted():
            if not made:
                made.append(await asyncpg.connect(url))
            async with made[0].transaction():
                yield made[0]

    return begin


def psycopg_begin(url: str, shared: Shared) -> Any:
    made = shared.made

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        with shared.counted():
            if not made:
                made.append(await psycopg.AsyncConnection.connect(url, autocommit=True))
            async with made[0].transaction():
                yield made[0]

    return begin


def sqlite3_begin(path: str, shared: Shared) -> Any:
    made = shared.made

    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        with shared.counted():
            if not made:
                made.append(sqlite3.connect(path, check_same_thread=False))
            with made[0]:
                yield made[0]

    return begin


@pytest.fixture(params=[asyncpg_begin, psycopg_begin, sqlite3_begin])
async def one_connection(
    request: pytest.FixtureRequest, postgresql15: PostgreSQL, tmp_path: Path
) -> AsyncIterator[tuple[Place, Shared, str]]:
    shared = Shared()
    yield await connected(request.param, shared, postgresql15, tmp_path)
    for connection in shared.made:
        closed = connection.close()
        if closed is not None:
            await closed


async def connected(make: Any, shared: Shared, server: PostgreSQL, tmp_path: Path) -> tuple[Place, Shared, str]:
    if make is sqlite3_begin:
        path = tmp_path / "shop.sqlite"
        place = on_sqlite("sqlite3", path)
        return place._replace(begin=make(str(path), shared)), shared, f"sqlite:///{path}"
    name = "asyncpg" if make is asyncpg_begin else "psycopg-async"
    urls: list[str] = []

    def note(url: str) -> str:
        urls.append(url)
        return url

    place = await on_postgresql(name, server, through=note)
    return place._replace(begin=make(urls[0], shared)), shared, urls[0]


def slow_handler(place: Place, meanwhile: Callable[[], None]) -> Any:
    """Two statements, with a long pause between them."""

    async def asynchronous(event: Numbered, tx: Any, message: Any) -> None:
        await place.insert(tx, event.number)
        meanwhile()
        await asyncio.sleep(SECONDS)
        await place.insert(tx, -event.number)

    def sync(event: Numbered, tx: Any, message: Any) -> None:
        place.insert(tx, event.number)
        meanwhile()
        time.sleep(SECONDS)
        place.insert(tx, -event.number)

    return asynchronous if place.is_async else sync


async def test_neither_heartbeats_nor_retention_disturb_a_handler(
    one_connection: tuple[Place, Shared, str], queue: MemoryQueue
) -> None:
    place, shared, url = one_connection
    heard: list[Event] = []
    cleaning: list[Any] = []
    loop = asyncio.get_running_loop()

    class Listener:
        def on_event(self, event: Event) -> None:
            heard.append(event)

    it = Consumer(
        queue, name="stock", begin=place.begin, concurrency=1, heartbeat="100ms", retry=AT_ONCE, listeners=[Listener()],
        handler_timeout="40s" if place.is_async else None,
    )  # fmt: skip
    retention = InboxRetention("stock", it._attempts, Listeners([]), retain=timedelta(days=1))

    def meanwhile() -> None:
        cleaning.append(asyncio.run_coroutine_threadsafe(retention.run_once(), loop))

    it.on(Numbered)(slow_handler(place, meanwhile))
    put(queue, 1, 2, 3)
    running = asyncio.create_task(it.run())
    async with asyncio.timeout(60), open_admin(url) as admin:
        while not (found := await admin.consumers()) or found[0].handled < 3:
            assert not running.done()
            await asyncio.sleep(0.05)
        lasts = (await place.rows(f"select alive_until - heartbeat_at from {place.schema}consumers"))[0][0]
        it.stop()
        summary = await running
        for each in cleaning:
            await asyncio.wrap_future(each)
        left = await admin.consumers()
    assert (summary.handled, summary.failed, shared.most, len(shared.threads)) == (3, 0, 1, 1)
    assert await place.effects() == [1, -1, 2, -2, 3, -3]
    assert not [event for event in heard if isinstance(event, HeartbeatFailed)]
    assert len(cleaning) == 3
    assert not left, "its row was deleted at the end"
    seconds = lasts / 1_000_000 if isinstance(lasts, int) else lasts.total_seconds()
    assert seconds == pytest.approx(0.4 + (40 if place.is_async else 900), abs=0.01), "a slow handler is not death"
