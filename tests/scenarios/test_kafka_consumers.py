"""Consumers of Kafka as processes that join, leave, are killed and frozen: each key stays in order, each message has
one effect, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_source import text_headers, until
from tests.scenarios.test_consumers import WAIT_SECONDS, Service, fresh, rows, services
from tests.services.kafka import Kafka
from tests.services.postgresql import PostgreSQL

MESSAGES = int(os.environ.get("KAFKA_MESSAGES", "10000"))
KEYS = 300
PARTITIONS = 6


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    """The ids of effects are in the order in which the transactions of a key were committed."""
    async with fresh(postgresql15, 'create table effects (id bigserial, "order" int, key text)') as url:
        yield url


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create_topic(partitions=PARTITIONS)


@pytest.fixture
def consume(tmp_path: Path, kafka: Kafka, database: str, topic: str) -> Iterator[Callable[..., Service]]:
    with services(tmp_path) as start:

        def consume(*arguments: str, **environment: str) -> Service:
            where = {"SERVICE_DATABASE": database, "SERVICE_KAFKA": kafka.url(), "SERVICE_TOPIC": topic}
            app = "tests.scenarios.kafka_services:ledger"
            return start("consume", "--app", app, *arguments, **where, **environment)

        yield consume


class Orders:
    """Puts orders into a topic: each has a number, and a key."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random", "log_level": 0, "linger.ms": 5}
        )
        self.keys: dict[int, str] = {}

    def put(self, count: int, poison: str = "", key: Callable[[int], str] = lambda n: str(n * 7919 % KEYS)) -> None:
        for number in range(len(self.keys), len(self.keys) + count):
            self.keys[number] = key(number)
            attributes = {"specversion": "1.0", "id": str(number), "source": "/shop", "type": "order.created"}
            headers = [(f"ce_{name}", value.encode()) for name, value in attributes.items()]
            body = b'{"order":%d,"poison":"%s"}' % (number, poison.encode())
            self._producer.produce(self._topic, body, self.keys[number].encode(), headers=list(headers))
        assert self._producer.flush(60) == 0


async def check(database: str, orders: Orders) -> None:
    """One effect each, and those of a key in its order."""
    found = await rows(database, 'select "order", key from effects order by id')
    assert sorted(number for number, _ in found) == sorted(orders.keys)
    by_key: dict[str, list[int]] = defaultdict(list)
    for number, key in found:
        assert orders.keys[number] == key
        by_key[key].append(number)
    assert {key: numbers for key, numbers in by_key.items() if numbers != sorted(numbers)} == {}


async def until_effects(database: str, count: int, seconds: float = WAIT_SECONDS) -> None:
    async def enough() -> bool:
        ((found,),) = await rows(database, "select count(*) from effects")
        return bool(found >= count)

    await until(enough, seconds)


async def test_processes_share_the_partitions_and_keep_order_whatever_happens_to_them(
    consume: Callable[..., Service], kafka: Kafka, topic: str, database: str
) -> None:
    orders = Orders(kafka, topic)
    step = MESSAGES // 10

    async def handled(share: float) -> None:
        await asyncio.to_thread(orders.put, step)
        await until_effects(database, int(len(orders.keys) * share))

    first = consume(SERVICE_TOGETHER="50")
    await handled(0.5)
    second = consume(SERVICE_TOGETHER="50")
    await handled(0.5)
    third = consume()
    await handled(0.5)
    first.kill()  # in the middle of its work: the others get its partitions when its session has ended
    await handled(0.6)
    first.start()
    await handled(0.6)

    def assignments() -> int:
        return sum(service.output().count("assigned:") for service in (first, third))

    async def taken_over() -> bool:
        return assignments() > before

    before = assignments()
    os.kill(second.process.pid, signal.SIGSTOP)  # longer than its session lasts: it does not know what it has lost
    await handled(0.1)
    await until(taken_over)  # what its open transactions hold waits, and what is behind it
    os.kill(second.process.pid, signal.SIGCONT)
    await handled(0.9)
    code, summary = third.stop()
    assert code == 0, summary
    await handled(0.6)
    chance = random.Random(7)
    for _ in range(3):  # a storm
        third.start()
        await asyncio.sleep(chance.uniform(0.2, 2))  # the moments are what varies here
        third.kill()
    await handled(0.9)
    await handled(1)
    await until_effects(database, len(orders.keys))
    assert [service.stop()[0] for service in (first, second)] == [0, 0]
    await check(database, orders)
    assert kafka.records(f"{topic}.dead") == []
    assert consume("--until-empty").process.wait(WAIT_SECONDS) == 0
    await check(database, orders)


async def test_a_handler_that_kills_its_process_every_time_ends_among_the_dead_letters(
    consume: Callable[..., Service], kafka: Kafka, topic: str, database: str
) -> None:
    orders = Orders(kafka, topic)
    orders.put(1, poison="kills", key=str)
    orders.put(40, key=str)
    deaths = 0
    for _ in range(12):
        if consume("--until-empty").process.wait(WAIT_SECONDS) != -signal.SIGKILL:
            break
        deaths += 1
    assert deaths == 6, "once before anything is known, and five attempts"
    found = await rows(database, 'select "order" from effects order by 1')
    assert [number for (number,) in found] == list(range(1, 41)), "no other message is blamed"
    (dead,) = kafka.records(f"{topic}.dead")
    assert text_headers(dead)["postroad-reason"] == "the process ended while the handler ran, 5 times"


async def test_a_static_member_is_restarted_without_a_rebalance(
    consume: Callable[..., Service], kafka: Kafka, topic: str, database: str
) -> None:
    orders = Orders(kafka, topic)
    waits = {"SERVICE_SESSION": "60s"}
    running = [consume(SERVICE_INSTANCE=f"i{number}", **waits) for number in range(2)]

    async def both_have_some() -> bool:
        return all("assigned:" in service.output() for service in running)

    await until(both_have_some)
    orders.put(500)
    await until_effects(database, 500)
    assigned = running[1].output().count("assigned:")
    assert running[0].stop()[0] == 0
    running[0].start()
    orders.put(500)
    await until_effects(database, 1000)
    assert running[1].output().count("assigned:") == assigned
    assert [service.stop()[0] for service in running] == [0, 0]
    await check(database, orders)
