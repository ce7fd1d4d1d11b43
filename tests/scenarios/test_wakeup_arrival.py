"""Proof by arrival: with the slow tick an hour away, every committed message arrives at every sink.

Writers of every kind add at random moments while relays fall asleep, wake, and are killed in their sleep. A few seconds
in the normal suite; LONG_TESTS is the number of seconds for a longer run.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg

from postroad.config import RelaySettings
from postroad.message import new_id, slot_of
from postroad.relay import Relay
from postroad.stores.postgresql import PostgreSQLStore
from tests.logs import OUTBOX, Arrivals, PostgreSQLLog, numbered
from tests.services.postgresql import PostgreSQL

RUN_SECONDS = float(os.environ.get("LONG_TESTS") or 4)
ARRIVE_SECONDS = 60
LATER_SECONDS = 120
COLUMNS = ["id", "topic", "key", "slot", "type", "payload", "content_type", "headers"]


class Writers:
    """Adds numbers in all the ways there are, and knows which were committed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = count()
        self._random = random.Random(7)
        self._connections: list[Any] = []
        self.committed: set[int] = set()

    async def open(self, number: int) -> None:
        for _ in range(number):
            self._connections.append(await asyncpg.connect(self._url))

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def round(self) -> None:
        """Each adds a message, at some moment within those in which a lane falls asleep."""
        await asyncio.gather(*map(self._add, self._connections[: self._random.randint(1, len(self._connections))]))

    async def _add(self, connection: Any) -> None:
        await asyncio.sleep(self._random.uniform(0, 0.012))
        way = self._random.choice((self._plain, self._isolated, self._long, self._copied, self._sql, self._prepared))
        await way(connection, next(self._numbers))

    async def _plain(self, connection: Any, number: int) -> None:
        async with connection.transaction():
            await OUTBOX.add_many(connection, numbered(number))
        self.committed.add(number)

    async def _isolated(self, connection: Any, number: int) -> None:
        try:
            async with connection.transaction(isolation=self._random.choice(("repeatable_read", "serializable"))):
                await connection.execute("select 1")
                await asyncio.sleep(self._random.choice((0, 0.01, 0.05)))
                await OUTBOX.add_many(connection, numbered(number))
        except asyncpg.SerializationError:
            return
        self.committed.add(number)

    async def _long(self, connection: Any, number: int) -> None:
        transaction = connection.transaction()
        await transaction.start()
        await OUTBOX.add_many(connection, numbered(number))
        await asyncio.sleep(self._random.choice((0.01, 0.05, 0.3)))
        if self._random.random() < 0.2:
            await transaction.rollback()
            return
        await transaction.commit()
        self.committed.add(number)

    async def _copied(self, connection: Any, number: int) -> None:
        id, key = new_id(), f"k{number}"
        row = (id, "t", key, slot_of(key, id), "t", str(number).encode(), "text/plain", '{"source": "/copy"}')
        await connection.copy_records_to_table("outbox", schema_name="postroad", columns=COLUMNS, records=[row])
        self.committed.add(number)

    async def _sql(self, connection: Any, number: int) -> None:
        await connection.execute("select postroad.add('/sql', 't', to_jsonb($1::int))", number)
        self.committed.add(number)

    async def _prepared(self, connection: Any, number: int) -> None:
        """Not in silence: it can be prepared only if it saw no nap."""
        name = f"n{uuid4().hex}"
        await connection.execute("begin")
        await OUTBOX.add_many(connection, numbered(number))
        try:
            await connection.execute(f"prepare transaction '{name}'")
        except asyncpg.FeatureNotSupportedError:
            return
        await asyncio.sleep(self._random.choice((0, 0.05)))
        await connection.execute(f"commit prepared '{name}'")
        self.committed.add(number)


class Sleepers:
    """Relays of one sink, one after the other: each is killed as it is, and the next one takes over."""

    def __init__(self, url: str, sink: str, lanes: int) -> None:
        self._url = url
        self._sink = sink
        self._settings = RelaySettings(
            lanes=lanes, tick="1h", linger="2ms", poll_interval="1ms", max_idle_backoff="20ms", channel=f"wake_{sink}"
        )
        self._running: asyncio.Task[Any] | None = None
        self.broker = Arrivals()
        self.naps = 0
        self.last = asyncio.Event()
        """Once set, no relay is killed any more."""

    async def run(self, rng: random.Random) -> None:
        while True:
            relay = Relay(PostgreSQLStore(self._url), self.broker, sink=self._sink, settings=self._settings)
            self._running = asyncio.create_task(relay.run())
            with suppress(TimeoutError):
                await asyncio.wait_for(self.last.wait(), rng.uniform(0.3, 2))
                return  # this one goes on
            self.naps += sum(wait.asleep for wait in relay._wakeup._waits)
            self._running.cancel()  # no farewell: its naps stay behind
            await asyncio.wait((self._running,))

    async def until_all_arrived(self, numbers: set[int]) -> None:
        async with asyncio.timeout(ARRIVE_SECONDS):
            await self.broker.until(*numbers)


def naps(sinks: Sequence[Sleepers]) -> int:
    """How many lanes were killed in their sleep."""
    return sum(sink.naps for sink in sinks)


async def test_every_committed_message_arrives_while_the_tick_is_an_hour_away(postgresql: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql)
    rng = random.Random(11)
    writers = Writers(log.url)
    sinks = [Sleepers(log.url, "one", 1), Sleepers(log.url, "three", 3)]
    steady = Sleepers(log.url, "steady", 2)
    relay = Relay(PostgreSQLStore(log.url), steady.broker, sink="steady", settings=steady._settings)
    sleeping = [asyncio.create_task(relay.run()), *(asyncio.create_task(sink.run(rng)) for sink in sinks)]
    try:
        await writers.open(4)
        began = time.monotonic()
        # Round by round, for the next message would hide that one was left lying.
        while (took := time.monotonic() - began) < RUN_SECONDS or (len(writers.committed) <= 20 or not naps(sinks)):
            assert took < RUN_SECONDS + LATER_SECONDS, "hardly anything happened"
            await writers.round()
            await steady.until_all_arrived(writers.committed)
        for sink in sinks:
            sink.last.set()
        await asyncio.gather(*(each.until_all_arrived(writers.committed) for each in (steady, *sinks)))
    finally:
        await writers.close()
        relay.stop()
        for task in sleeping[1:]:
            task.cancel()
        await asyncio.wait(sleeping)
        for sink in sinks:
            if sink._running is not None:
                sink._running.cancel()
                await asyncio.wait((sink._running,))
    for each in (steady, *sinks):
        assert set(each.broker.numbers) == writers.committed, "nothing that was rolled back"
