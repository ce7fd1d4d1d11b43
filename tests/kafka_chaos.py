"""Writers, relays and consumers around three Kafka brokers, under faults; afterwards, whether each promise was kept.

There are two histories. The topic itself has what the relays promise: nothing lost, no phantom, first arrivals in order
per key. The table of effects has what consumers promise: the same, and one effect for each message. Records get their
time from the brokers, as they are appended, and effects from the database, so that both can be compared with faults.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from functools import partial
from heapq import merge
from itertools import count, groupby, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec
from confluent_kafka import KafkaException

from postroad import Message
from postroad.verify import Arrival, Committed, Incident, Verdict, verify
from tests.broker_faults import BrokerFaults
from tests.lanes import until_nothing_waits
from tests.logs import PostgreSQLLog
from tests.relays import RunningRelay
from tests.scenarios.test_consumers import Service, fresh, rows, services, until
from tests.services.kafka import Kafka
from tests.services.postgresql import PostgreSQL
from tests.services.server import stop
from tests.writers import Writers

__all__ = ["BROKER_FAULTS", "PROCESS_FAULTS", "Histories", "KafkaChaos"]

BROKER_FAULTS: Final = (
    "kill_broker", "kill_broker", "kill_broker", "stop_broker", "freeze_broker", "elect_leaders", "restart_cluster",
    "kill_cluster", "kill_two_brokers", "too_few_replicas",
)  # fmt: skip
"""In one round of these each broker is killed alone."""
PROCESS_FAULTS: Final = (
    "kill_relay", "freeze_relay", "stop_relay", "kill_consumer", "freeze_consumer", "stop_consumer", "storm",
)  # fmt: skip

PARTITIONS: Final = 6
LEASE: Final = 4
SESSION: Final = 6
OPTIONS: Final = (
    "--lease", f"{LEASE}s", "--outage-backoff", "200ms", "--lanes", "4", "--grace", "5s", "--batch-size", "100",
    "--log-level", "info",
)  # fmt: skip
CONFIRM_TIMEOUTS: Final = (5, 20)
"""Of relays in turn: one gives up during most faults of brokers, and publishes again; the other waits."""
NO_REASONS: Final = ("stop_relay", "kill_consumer", "freeze_consumer", "stop_consumer", "storm")
"""Faults that explain no duplicate in the topic."""
REST_SECONDS: Final = 300
REACH: Final = 2.0
"""How long before a fault what was published may not be saved."""
AFTERMATH: Final = 5.0
"""How long after it what was under way may still arrive, on a busy machine."""
REASONS: Final = ("broker_unavailable", "lane_lost", "store_unavailable", "relay_evicted")
"""What a relay logs when it will publish again what may have arrived already."""
NOW: Final = "extract(epoch from clock_timestamp())"
EFFECTS: Final = f'create table effects (id bigserial, "order" int, key text, at float8 default {NOW})'


class Histories(NamedTuple):
    """What was found at the end."""

    published: Verdict
    """The topic: duplicates need a reason."""
    handled: Verdict
    """The effects: there may be no duplicates."""
    dead_letters: int
    in_vain: Sequence[str]
    """Faults that proved nothing: no record came before, or none after, or some while the brokers had to refuse all."""
    stalls: tuple[float, float]
    """The longest time in which nothing was appended to the topic, and in which nothing was handled, in seconds."""

    @property
    def kept(self) -> bool:
        """Whether every promise was kept under every fault, but for the reasons of duplicates in the topic."""
        published = self.published
        broken = published.lost or published.phantoms or published.overtaken or self.dead_letters or self.in_vain
        return not broken and self.handled.passed

    def __str__(self) -> str:
        return (
            f"topic: {self.published}\neffects: {self.handled}\n{self.dead_letters} dead letters; longest stall "
            f"{self.stalls[0]:.1f} s in the topic, {self.stalls[1]:.1f} s in the effects"
            + "".join(f"\nin vain: {each}" for each in self.in_vain)
        )


class Member(NamedTuple):
    """A relay that runs; it is `started` when it has got lanes."""

    name: str
    running: RunningRelay
    started: asyncio.Task[None]


class KafkaChaos:
    """Relays and consumers, each a process, between a PostgreSQL and three brokers."""

    def __init__(
        self, postgresql: PostgreSQL, kafka: Kafka, folder: Path, *, seed: int, relays: int = 2, consumers: int = 3
    ) -> None:
        self.seed = seed
        self.faults: Counter[str] = Counter()
        self.folder = folder
        self._postgresql = postgresql
        self._kafka = kafka
        self._dice = random.Random(seed)
        self._counts = relays, consumers
        self._numbers = count(1)
        self._relays: list[Member] = []
        self._ended: list[RunningRelay] = []
        self._consumers: list[Service] = []
        self._faults: list[Incident] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._url = await stack.enter_async_context(fresh(self._postgresql, EFFECTS))
            self._kafka.start()
            self._topic = self._kafka.create_topic(
                partitions=PARTITIONS, min_insync_replicas="2", message_timestamp_type="LogAppendTime"
            )
            self._brokers = BrokerFaults(self._kafka, self._topic, PARTITIONS, self._dice)
            self._service = stack.enter_context(services(self.folder))
            stack.callback(self._kill_relays)
            self.writers = Writers(
                self._url, self.seed, message=_order, keys=40, sizes=(1, 10, 60), per_statement=30, pause=0.1
            )
            stack.push_async_callback(self.writers.cancel)
            relays, consumers = self._counts
            for _ in range(relays):
                self._start_relay()
            for _ in range(consumers):
                self._consumers.append(self._start_consumer())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)  # so that what it raises itself does not hide the reason

    def _start_relay(self) -> None:
        number = next(self._numbers)
        running = RunningRelay(
            PostgreSQLLog(self._url),
            self._kafka.url(),
            self.folder / f"relay-{number}.log",
            *OPTIONS,
            POSTROAD_KAFKA_TOPIC=self._topic,
            POSTROAD_KAFKA_CONFIRM_TIMEOUT=f"{CONFIRM_TIMEOUTS[number % 2]}s",
        )
        started = asyncio.create_task(running.until_logged("lanes_taken"))
        self._relays.append(Member(f"relay-{number}", running, started))

    def _start_consumer(self, *arguments: str) -> Service:
        where = {"SERVICE_DATABASE": self._url, "SERVICE_KAFKA": self._kafka.url(), "SERVICE_TOPIC": self._topic}
        settings = {"SERVICE_SESSION": f"{SESSION}s", "SERVICE_TOGETHER": "50"}
        app = "tests.scenarios.kafka_services:ledger"
        return self._service("consume", "--app", app, *arguments, **where, **settings)

    def _kill_relays(self) -> None:
        for member in self._relays:
            member.started.cancel()
            member.running.process.kill()
            member.running.process.wait()

    async def until_flowing(self) -> None:
        """Wait until each process has its share, and messages are published and handled: faults are for busy ones."""
        await asyncio.gather(*(member.started for member in self._relays))
        await until(partial(_all_said, self._consumers, "assigned:"))
        seen: list[tuple[int, int]] = []

        async def more() -> bool:
            with suppress(KafkaException):  # brokers that have just started may not answer yet
                seen.append(await self._progress())
            return bool(seen) and all(now > before for before, now in zip(seen[0], seen[-1], strict=True))

        await until(more, REST_SECONDS)

    async def _progress(self) -> tuple[int, int]:
        ((handled,),) = await rows(self._url, "select count(*) from effects")
        return await asyncio.to_thread(self._kafka.size, self._topic), handled

    # -- faults ------------------------------------------------------------------------------------------------------

    async def happen(self, fault: str) -> None:
        """Let a fault happen, and note when."""
        self.faults[fault] += 1
        began = time.time()
        faults: Any = self if fault in PROCESS_FAULTS else self._brokers
        await getattr(faults, fault)()
        self._faults.append(Incident(fault, began, time.time() + AFTERMATH, reach=REACH))

    async def kill_relay(self) -> None:
        await self._end_relay(signal.SIGKILL)

    async def stop_relay(self) -> None:
        await self._end_relay(signal.SIGTERM)

    async def _end_relay(self, number: signal.Signals) -> None:
        member = await self._a_relay()
        self._relays.remove(member)
        await member.running.ended_by(number)
        self._ended.append(member.running)
        self._start_relay()

    async def freeze_relay(self) -> None:
        """Longer than its lease lasts."""
        member = await self._a_relay()
        stop(member.running.process)
        await asyncio.sleep(LEASE * 1.5)
        member.running.process.send_signal(signal.SIGCONT)

    async def _a_relay(self) -> Member:
        """One that has lanes: to kill another proves nothing."""
        tasks = [member.started for member in self._relays]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return self._dice.choice([member for member in self._relays if member.started.done()])

    async def kill_consumer(self) -> None:
        consumer = self._dice.choice(self._consumers)
        consumer.kill()
        consumer.start()

    async def stop_consumer(self) -> None:
        """One that is stopped before it was ready to be is killed by the signal."""
        consumer = self._dice.choice(self._consumers)
        code, summary = await asyncio.to_thread(consumer.stop)
        assert code in (0, -signal.SIGTERM), f"exit code {code}: {summary}\n{consumer.output()[-2000:]}"
        consumer.start()

    async def freeze_consumer(self) -> None:
        """Longer than its session lasts: its partitions go to others, and it does not know."""
        consumer = self._dice.choice(self._consumers)
        stop(consumer.process)
        await asyncio.sleep(SESSION * 1.5)
        consumer.process.send_signal(signal.SIGCONT)

    async def storm(self, rounds: int = 4) -> None:
        """Consumers join, and are killed or leave, before the group has come to rest."""
        for number in range(rounds):
            joining = [self._start_consumer() for _ in range(2)]
            await until(partial(_all_said, joining, "receiving from"))  # a process that only starts disturbs no group
            await asyncio.sleep(self._dice.uniform(0, 3))  # the moments are what varies here
            joining[0].kill()
            if number % 2:
                await asyncio.to_thread(joining[1].stop)
            joining[1].end()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def come_to_rest(self) -> Histories:
        """Let all that was written arrive and be handled, end all processes in good order, and compare."""
        await self.writers.stop()
        ended = time.time()
        with suppress(TimeoutError):  # what is missing then will be called lost
            await until_nothing_waits(self._url, REST_SECONDS)
        with suppress(TimeoutError):
            await until(self._everything_is_handled, REST_SECONDS)
        await asyncio.gather(*(member.started for member in self._relays))
        codes = [await member.running.ended_by(signal.SIGTERM) for member in self._relays]
        codes += [(await asyncio.to_thread(consumer.stop))[0] for consumer in self._consumers]
        assert not any(codes), f"exit codes {codes}"
        last = self._start_consumer("--until-empty")  # what is in the topic twice was perhaps not received again yet
        assert await asyncio.to_thread(last.process.wait, REST_SECONDS) == 0, last.output()[-2000:]
        return await self._compared(ended)

    async def _everything_is_handled(self) -> bool:
        sql = 'select (select count(*) from postroad.outbox) <= (select count(distinct "order") from effects)'
        for consumer in self._consumers:
            assert consumer.process.poll() is None, consumer.output()[-2000:]
        await asyncio.sleep(0.3)  # to ask costs the consumers time
        return bool((await rows(self._url, sql))[0][0])

    async def _compared(self, ended: float) -> Histories:
        numbers = "(convert_from(payload, 'utf8')::json->>'order')::int"
        committed = [
            Committed(*row) for row in await rows(self._url, f"select {numbers}, key, position from postroad.outbox")
        ]
        effects = [Arrival(*row) for row in await rows(self._url, 'select "order", at from effects order by id')]
        records = await asyncio.to_thread(self._kafka.records, self._topic)
        published = _arrivals(records)
        dead = await asyncio.to_thread(self._kafka.records, f"{self._topic}.dead")
        incidents = [each for each in self._faults if each.reason not in NO_REASONS] + self._logged_reasons()
        self._keep(committed=committed, topic=published, effects=effects, incidents=incidents, faults=self._faults)
        return Histories(
            verify(committed, published, incidents),
            verify(committed, effects),
            len(dead),
            _in_vain(self._faults, self._brokers.refused, published),
            (_longest_stall(published, ended), _longest_stall(effects, ended)),
        )

    def _logged_reasons(self) -> list[Incident]:
        """Why relays have published again, in their own words; a busy machine may take a lane from one, for example."""
        lines = [
            line
            for running in (*self._ended, *(member.running for member in self._relays))
            for line in running.logged(*REASONS)
        ]
        return [
            Incident(line["event"], at, at + AFTERMATH, reach=REACH + max(CONFIRM_TIMEOUTS))
            for line in lines
            for at in (datetime.fromisoformat(line["time"]).timestamp(),)
        ]

    def _keep(self, **histories: list[Any]) -> None:
        """Write the histories beside the logs of the processes."""
        for name, history in histories.items():
            (self.folder / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in history))

    def report(self, histories: Histories) -> str:
        faults = ", ".join(f"{times} x {fault}" for fault, times in sorted(self.faults.items()))
        reasons = Counter(str(each.reason) for each in histories.published.duplicates)
        twice = ", ".join(f"{times:,} after {reason}" for reason, times in reasons.most_common())
        return (
            f"{histories}\nseed {self.seed}; {self.writers.rolled_back:,} transactions rolled back\n"
            f"faults: {faults or 'none'}\nduplicates in the topic: {twice or 'none'}"
        )


def _order(number: int, key: Any) -> Message:
    return Message({"order": number}, type="order.created", key=key)


async def _all_said(consumers: Sequence[Service], words: str) -> bool:
    return all(words in consumer.output() for consumer in consumers)


def _arrivals(records: Iterable[Any]) -> list[Arrival]:
    """By time, and each partition in its own order whatever the times are."""
    partitions = [
        [Arrival(msgspec.json.decode(each.value())["order"], each.timestamp()[1] / 1000) for each in partition]
        for _, partition in groupby(records, key=lambda each: each.partition())
    ]
    return list(merge(*partitions, key=lambda arrival: arrival.at))


def _in_vain(faults: list[Incident], refused: list[tuple[float, float]], published: list[Arrival]) -> list[str]:
    times = sorted(each.at for each in published)
    first, last = (times[0], times[-1]) if times else (0.0, 0.0)
    found = [f"{each.reason}, while nothing was published" for each in faults if not first < each.began < last]
    for began, ended in refused:
        if accepted := bisect(times, ended) - bisect(times, began):
            found.append(f"too_few_replicas: {accepted} records were accepted")
    return found


def _longest_stall(arrived: list[Arrival], ended: float) -> float:
    """While the writers wrote."""
    times = [*sorted(each.at for each in arrived if each.at < ended), ended]
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)
