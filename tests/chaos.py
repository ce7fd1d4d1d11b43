"""Relays and writers under injected faults, and a check afterwards that every promise was kept.

Whatever is random comes from one seed, which is in the report. Each relay reaches the database and the broker through
faulty proxies of its own, and publishes to an exchange of its own, by which its messages are known.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, Self

from postroad.verify import Arrival, Committed, Incident, Verdict, verify
from tests.lanes import until_nothing_waits
from tests.logs import PostgreSQLLog
from tests.queues import QUEUE, bare, deliveries, with_queue
from tests.relays import RunningRelay
from tests.services.faulty_proxy import FaultyProxy
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import stop
from tests.writers import Writers

LEASE: Final = 2
OPTIONS: Final = (
    "--lease", f"{LEASE}s", "--outage-backoff", "200ms", "--lanes", "4", "--grace", "2s", "--batch-size", "50",
)  # fmt: skip
REACH: Final = 1.0
"""How long before something happened what a relay sent may not be saved. Pages are small, and cursors are saved every
50 ms; but a server that crashes forgets up to 600 ms of them.
"""
AFTERMATH: Final = 2.0
"""How long after it what was under way may still arrive, on a busy machine."""
CLOCK_SECONDS: Final = 0.05


class Member(NamedTuple):
    """A relay that runs, and its ways."""

    name: str
    running: RunningRelay
    started: asyncio.Task[None]
    to_database: FaultyProxy
    to_broker: FaultyProxy

    async def close(self) -> None:
        self.started.cancel()
        await asyncio.gather(self.started, return_exceptions=True)
        self.running.process.kill()
        self.running.process.wait()
        await self.to_database.__aexit__()
        await self.to_broker.__aexit__()


class Chaos:
    """Some relays of one sink, each a process, from a PostgreSQL to a RabbitMQ through faulty proxies."""

    def __init__(self, postgresql: PostgreSQL, rabbitmq: RabbitMQ, folder: Path, *, seed: int, relays: int = 3) -> None:
        self.postgresql = postgresql
        self.rabbitmq = rabbitmq
        self.random = random.Random(seed)
        self.seed = seed
        self.acts: Counter[str] = Counter()
        self._folder = folder
        self._count = relays
        self._members: list[Member] = []
        self._relays: dict[str, RunningRelay] = {}
        """Those that run, and those that did."""
        self._started = 0
        self._incidents: list[Incident] = []
        self._times: list[float] = []
        """When each number that the clock has put into the queue was there."""
        self._over = threading.Event()

    async def __aenter__(self) -> Self:
        self.log = await PostgreSQLLog.fresh(self.postgresql)
        self.rabbitmq.start()  # the test before may have left it down
        self._writers = Writers(self.log.url, self.seed)
        self._vhost = self.rabbitmq.create_vhost()
        for _ in range(self._count):
            await self._start_relay()
        self._clock = asyncio.create_task(asyncio.to_thread(self._tell_time))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._clock
        await self._writers.cancel()
        for member in self._members:
            await member.close()
        self.postgresql.start()
        self.rabbitmq.start()
        self.rabbitmq.delete_vhost(self._vhost)

    async def _start_relay(self) -> None:
        self._started += 1
        name = f"relay-{self._started}"
        await with_queue(self._vhost, exchange=name)
        to_database = await FaultyProxy(_port(self.log.url)).__aenter__()
        to_broker = await FaultyProxy(_port(self._vhost)).__aenter__()
        self._relays[name] = running = RunningRelay(
            PostgreSQLLog(to_database.url(self.log.url)),
            to_broker.url(self._vhost),
            self._folder / f"{name}.log",
            *OPTIONS,
            module="tests.one_destination",
            POSTROAD_RABBITMQ_EXCHANGE=name,
            POSTROAD_RABBITMQ_CONFIRM_TIMEOUT=f"{2 * LEASE}s",
        )
        started = asyncio.create_task(running.until_logged("relay_started"))
        self._members.append(Member(name, running, started, to_database, to_broker))

    def write(self, writers: int = 3) -> None:
        """Let writers add until it is quiet again."""
        self._writers.start(writers)

    # -- what happens ------------------------------------------------------------------------------------------------

    async def happen(self, act: str) -> None:
        """Let something happen, and note it as a reason for what comes twice, to one relay or to all; unless it is
        none.
        """
        self.acts[act] += 1
        began = time.time()
        to = await getattr(self, f"_{act}")()
        if act != "end_in_peace":
            self._incidents.append(Incident(act, began, time.time() + AFTERMATH, to=to, reach=REACH))

    async def _kill(self) -> str:
        return await self._end(signal.SIGKILL)

    async def _end_in_peace(self) -> str:
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> str:
        member = await self._a_member()
        self._members.remove(member)
        await member.running.ended_by(number)
        await member.close()
        await self._start_relay()
        return member.name

    async def _freeze(self) -> str:
        member = await self._a_member()
        stop(member.running.process)
        await asyncio.sleep(LEASE * 1.5)
        member.running.process.send_signal(signal.SIGCONT)
        return member.name

    async def _restart_database(self) -> None:
        await self._all_started()
        await asyncio.to_thread(self.postgresql.restart, "fast")

    async def _crash_database(self) -> None:
        await self._all_started()
        await asyncio.to_thread(self.postgresql.restart, "immediate")

    async def _restart_broker(self) -> None:
        await asyncio.to_thread(self.rabbitmq.restart)

    async def _drop_connections(self) -> str:
        name, proxy = await self._a_way()
        proxy.drop()
        return name

    async def _half_close(self) -> str:
        name, proxy = await self._a_way()
        proxy.close_half(towards_server=self.random.random() < 0.5)
        return name

    async def _delay(self) -> str:
        name, proxy = await self._a_way()
        await proxy.delay(self.random.random() * LEASE)
        return name

    async def _delay_beyond_lease(self) -> str:
        """Of what it sends meanwhile to the database nothing counts any more."""
        member = await self._a_member()
        await member.to_database.delay(LEASE * 1.5)
        return member.name

    async def _forget_connections(self) -> str:
        """The relay is not notified; until its lease is over it may send what it has read."""
        name, proxy = await self._a_way()
        proxy.forget()
        await asyncio.sleep(LEASE)
        return name

    async def _all_started(self) -> None:
        await asyncio.gather(*(member.started for member in self._members))

    async def _a_member(self) -> Member:
        """One that has started: before that a relay ends when it can't reach the database."""
        started, _ = await asyncio.wait(
            [member.started for member in self._members], return_when=asyncio.FIRST_COMPLETED
        )
        return self.random.choice([member for member in self._members if member.started in started])

    async def _a_way(self) -> tuple[str, FaultyProxy]:
        member = await self._a_member()
        return member.name, self.random.choice((member.to_database, member.to_broker))

    # -- the end -----------------------------------------------------------------------------------------------------

    async def until_committed(self, messages: int) -> None:
        """Let the writers go on until so many messages are in the log."""
        await self._writers.until_committed(messages)

    async def come_to_rest(self) -> Verdict:
        """Let all that was written arrive, and compare."""
        await self._writers.stop()
        await until_nothing_waits(self.log.url)
        await self._all_started()
        ended = [member.running.ended_by(signal.SIGTERM) for member in self._members]
        assert not any(await asyncio.gather(*ended))
        rows = await self.log.execute("select convert_from(payload, 'utf8')::int, key, position from postroad.outbox")
        return verify([Committed(*row) for row in rows], await self._arrived(), self._incidents)

    async def _arrived(self) -> list[Arrival]:
        at, arrived = time.time(), []
        for by, number in reversed(await deliveries(self._vhost)):
            if by:
                arrived.append(Arrival(number, at, by))
            else:
                at = min(at, self._times[number])
        return arrived[::-1]

    def report(self, verdict: Verdict) -> str:
        acts = ", ".join(f"{times} x {act}" for act, times in sorted(self.acts.items()))
        happened = "".join(
            f"\n  {each.began:.3f} to {each.ended:.3f}: {each.reason} {each.to or ''}" for each in self._incidents
        )
        rolled_back = f"{self._writers.rolled_back} transactions rolled back"
        return f"{verdict}\nseed {self.seed}; {rolled_back}; {acts or 'nothing happened'}" + (
            f"{happened}\n{self._said(verdict)}" if verdict.unexplained else ""
        )

    def _said(self, verdict: Verdict) -> str:
        """What its relays logged about the time of the first duplicate without a reason."""
        first = verdict.unexplained[0]
        output = [
            f"  {at:.3f} {name}: {line['message']}"
            for name in {first.before.by, first.again.by}
            for line in self._relays[str(name)].lines()
            if line["level"] != "debug"
            and first.before.at - 1 < (at := datetime.fromisoformat(line["time"]).timestamp()) < first.again.at + 1
        ]
        return "\n".join(sorted(output))

    def _tell_time(self) -> None:
        """Put a number into the queue again and again, and note when it was there: so all that is in it has a time."""
        while not self._over.is_set():
            with suppress(OSError), bare(self._vhost, timeout=5) as connection:
                while not self._over.wait(CLOCK_SECONDS):
                    self._times.append(float("inf"))
                    connection.put(QUEUE, b"%d" % (len(self._times) - 1))
                    self._times[-1] = time.time()
            self._over.wait(CLOCK_SECONDS)


def _port(url: str) -> int:
    return int(url.rpartition("@")[2].partition("/")[0].rpartition(":")[2])
