"""Relays, writers and all that can happen to them; and afterwards, whether every promise was kept.

Whatever is random comes from one seed, which is in the report.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import asyncpg

from postroad import Message
from postroad.message import UNSET
from postroad.verify import Arrival, Committed, Incident, Verdict, verify
from tests.destinations import rabbitmq_channel
from tests.lanes import pending
from tests.logs import OUTBOX, PostgreSQLLog
from tests.queues import QUEUE, arrivals, with_queue
from tests.relays import PATIENCE, RunningRelay
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.services.weather import Weather

LEASE = 2
OPTIONS = ("--lease", f"{LEASE}s", "--outage-backoff", "200ms", "--lanes", "4", "--grace", "2s")


class Turmoil:
    """Some relays of one sink, each a process, from a PostgreSQL to a RabbitMQ through bad weather."""

    def __init__(self, postgresql: PostgreSQL, rabbitmq: RabbitMQ, folder: Path, *, seed: int, relays: int = 3) -> None:
        self.postgresql = postgresql
        self.rabbitmq = rabbitmq
        self.random = random.Random(seed)
        self.seed = seed
        self.acts: Counter[str] = Counter()
        self._folder = folder
        self._count = relays
        self._relays: list[RunningRelay] = []
        self._started = 0
        self._numbers = 0
        self._in_vain = 0
        self._incidents: list[Incident] = []
        self._depth_seen = 0
        self._quiet = asyncio.Event()
        self._writers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.log = await PostgreSQLLog.fresh(self.postgresql)
        self._vhost = self.rabbitmq.create_vhost()
        await with_queue(self._vhost)
        self._to_database = await Weather(_port(self.log.url)).__aenter__()
        self._to_broker = await Weather(_port(self._vhost)).__aenter__()
        for _ in range(self._count):
            self.start_relay()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._quiet.set()
        for writer in self._writers:
            writer.cancel()
        for running in self._relays:
            running.process.kill()
            running.process.wait()
        await self._to_database.__aexit__()
        await self._to_broker.__aexit__()
        self.postgresql.start()
        self.rabbitmq.start()
        self.rabbitmq.delete_vhost(self._vhost)

    def start_relay(self) -> None:
        self._started += 1
        file = self._folder / f"relay-{self._started}.log"
        log = PostgreSQLLog(self._to_database.url(self.log.url))
        self._relays.append(RunningRelay(log, self._to_broker.url(self._vhost), file, *OPTIONS))

    # -- writers -----------------------------------------------------------------------------------------------------

    def write(self, writers: int = 3) -> None:
        """Let writers add, in transactions small and large, some of them rolled back, until it is quiet again."""
        self._writers += [asyncio.create_task(self._write(number)) for number in range(writers)]

    async def _write(self, writer: int) -> None:
        dice = random.Random(self.seed * 1000 + writer)
        while not self._quiet.is_set():
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                connection = await asyncpg.connect(self.log.url, timeout=10)
                try:
                    while not self._quiet.is_set():
                        await self._write_some(connection, dice, writer)
                finally:
                    connection.terminate()
            await asyncio.sleep(0.05)

    async def _write_some(self, connection: Any, dice: random.Random, writer: int) -> None:
        transaction = connection.transaction()
        await transaction.start()
        for _ in range(dice.choice((1, 5, 30))):
            self._numbers += 1
            # A key belongs to one writer, who adds one after the other: so position order is causal order.
            key = f"{writer}-{dice.randrange(20)}" if dice.random() < 0.9 else UNSET
            await OUTBOX.add_many(connection, [Message(str(self._numbers), type="test.number", key=key)])
        if dice.random() < 0.2:
            self._in_vain += 1
            await transaction.rollback()
        else:
            await transaction.commit()
        await asyncio.sleep(dice.random() * 0.02)

    # -- what happens ------------------------------------------------------------------------------------------------

    async def happen(self, act: str) -> None:
        """Let something happen, and note it as a reason for what comes twice."""
        self.acts[act] += 1
        began = await self._depth()
        await getattr(self, f"_{act}")()
        # What was under way has arrived by the time at which something new does.
        self._incidents.append(Incident(act, float(began), float(await self._depth() + 3_000)))

    async def _kill(self) -> None:
        await self._end(signal.SIGKILL)
        self.start_relay()

    async def _end_in_peace(self) -> None:
        await self._end(signal.SIGTERM)
        self.start_relay()

    async def _end(self, number: signal.Signals) -> None:
        running = self._relays.pop(self.random.randrange(len(self._relays)))
        running.process.send_signal(number)
        await running.ended()

    async def _freeze(self) -> None:
        running = self.random.choice(self._relays)
        running.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE * 1.5)
        running.process.send_signal(signal.SIGCONT)

    async def _restart_database(self) -> None:
        await asyncio.to_thread(self.postgresql.restart, "fast")

    async def _crash_database(self) -> None:
        await asyncio.to_thread(self.postgresql.restart, "immediate")

    async def _restart_broker(self) -> None:
        await asyncio.to_thread(self.rabbitmq.restart)

    async def _drop_connections(self) -> None:
        self.random.choice((self._to_database, self._to_broker)).drop()

    async def _half_close(self) -> None:
        self.random.choice((self._to_database, self._to_broker)).close_half()

    async def _delay(self) -> None:
        await self.random.choice((self._to_database, self._to_broker)).delay(self.random.random() * LEASE)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def come_to_rest(self) -> Verdict:
        """Let all that was written arrive, and compare."""
        self._quiet.set()
        await asyncio.gather(*self._writers)
        await self._until_nothing_waits()
        for running in self._relays:
            assert await running.ended_by(signal.SIGTERM) == 0
        rows = await self.log.execute("select convert_from(payload, 'utf8')::int, key, position from postroad.outbox")
        arrived = [Arrival(number, at=float(at)) for at, number in enumerate(await arrivals(self._vhost))]
        return verify([Committed(*row) for row in rows], arrived, self._incidents)

    def report(self, verdict: Verdict) -> str:
        acts = ", ".join(f"{times} x {act}" for act, times in sorted(self.acts.items()))
        return f"{verdict}\nseed {self.seed}; {self._in_vain} transactions rolled back; {acts or 'nothing happened'}"

    async def _until_nothing_waits(self) -> None:
        until = time.monotonic() + PATIENCE
        while await pending(self.log.url):
            assert time.monotonic() < until, "the lanes stand still"
            await asyncio.sleep(0.1)

    async def _depth(self) -> int:
        """How many messages have arrived; while the broker is away, as many as when it was asked last."""
        with suppress(Exception):
            async with asyncio.timeout(5), rabbitmq_channel(self._vhost) as channel:
                queue = await channel.declare_queue(QUEUE, passive=True)
                self._depth_seen = int(queue.declaration_result.message_count or 0)
        return self._depth_seen


def _port(url: str) -> int:
    return int(url.rpartition("@")[2].partition("/")[0].rpartition(":")[2])
