"""Consumers as processes that share the partitions of a queue, while some join, are killed, are frozen or stop: each
message has one effect, and the first effects of each key are in order.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.message import new_id, slot_of
from tests.destinations import stored
from tests.scenarios.test_consumers import Service, fresh, ready, rows, services, until
from tests.services.postgresql import PostgreSQL
from tests.services.server import stop

KEYS = 200
WAVES = 10
"""A phase publishes so many messages of each key."""
EFFECTS = "create table effects (id bigserial primary key, key text, number int, process int)"


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    async with fresh(postgresql15, EFFECTS) as url:
        yield url


@pytest.fixture
def consume(tmp_path: Path, database: str, vhost: str) -> Iterator[Callable[[], Service]]:
    with services(tmp_path) as start:
        where = {"SERVICE_DATABASE": database, "SERVICE_BROKER": vhost, "SERVICE_TOGETHER": "20", "SERVICE_IDLE": "5s"}
        yield lambda: start(
            "consume", "--app", "tests.scenarios.partition_services:divided", "--log-level", "debug", **where
        )


class Traffic:
    """Messages of all keys, and what became of them."""

    def __init__(self, broker: str, database: str) -> None:
        self._publisher = RabbitMQPublisher(broker, PublisherSettings(partitioned=True, heartbeat="2s"))
        self._database = database
        self._numbers = count(1)
        self.published = 0

    async def publish(self, waves: int = WAVES) -> range:
        """Publish as a relay does: of a key, only after the one before it was confirmed. Returns the numbers."""
        first = self.published + 1
        for _ in range(waves):
            keys = [f"key-{number}" for number in range(KEYS)]
            ids = [new_id() for _ in keys]
            numbers = [next(self._numbers) for _ in keys]
            page = [
                stored(number, id=id, key=key, slot=slot_of(key, id))
                for number, id, key in zip(numbers, ids, keys, strict=True)
            ]
            assert not await self._publisher.publish(page)
            self.published += KEYS
        return range(first, self.published + 1)

    async def handled_by(self, numbers: range) -> Counter[int]:
        """How many of these each process has handled."""
        sql = "select process, count(*) from effects where number between $1 and $2 group by 1"
        return Counter(dict(await rows(self._database, sql, numbers[0], numbers[-1])))

    async def is_handled(self, numbers: range) -> bool:
        return (await self.handled_by(numbers)).total() >= len(numbers)

    async def check(self) -> None:
        """One effect for each message, and those of a key in order."""
        found = await rows(self._database, "select key, number from effects order by id")
        assert Counter(number for _, number in found) == Counter(range(1, self.published + 1))
        by_key = defaultdict(list)
        for key, number in found:
            by_key[key].append(number)
        assert all(one < two for numbers in by_key.values() for one, two in pairwise(numbers))

    async def close(self) -> None:
        await self._publisher.close()


async def test_processes_join_die_freeze_and_stop(consume: Callable[[], Service], database: str, vhost: str) -> None:
    first = consume()
    await until(lambda: ready(vhost, "divided.members", consumers=1))
    traffic = Traffic(vhost, database)
    numbers = await traffic.publish()
    await until(lambda: traffic.is_handled(numbers))
    assert set(await traffic.handled_by(numbers)) == {first.process.pid}, "one that is alone has all partitions"

    second = consume()
    await until(lambda: ready(vhost, "divided.members", consumers=2))
    await until(lambda: both_work(traffic, first, second))
    numbers = await traffic.publish()
    await until(lambda: traffic.is_handled(numbers))
    handled = await traffic.handled_by(numbers)
    assert all(handled[each.process.pid] > len(numbers) * 0.2 for each in (first, second)), handled

    numbers = await traffic.publish()
    second.kill()
    numbers = await traffic.publish()
    await until(lambda: traffic.is_handled(numbers))

    third = consume()
    await until(lambda: ready(vhost, "divided.members", consumers=2))
    await until(lambda: both_work(traffic, first, third))
    await traffic.publish()
    await freeze_in_transaction(first, database)
    await until(lambda: ready(vhost, "divided.members", consumers=1))  # its heartbeats are missing
    later = await traffic.publish()
    await until(lambda: works(traffic, third, later))
    first.process.send_signal(signal.SIGCONT)
    await until(lambda: ready(vhost, "divided.members", consumers=2))  # it has connected again
    await until(lambda: traffic.is_handled(later))
    await traffic.publish()
    assert third.stop()[0] == 0
    everything = range(1, traffic.published + 1)
    await until(lambda: traffic.is_handled(everything))
    assert first.stop()[0] == 0
    await traffic.check()
    await traffic.close()


async def freeze_in_transaction(service: Service, database: str) -> None:
    """Freeze it while it has locked inbox rows: other processes wait for those until PostgreSQL ends its session."""
    idle = "select from pg_stat_activity where datname = current_database() and application_name = $1"
    idle += " and state = 'idle in transaction'"

    async def is_frozen_in_one() -> bool:
        stop(service.process)
        if await rows(database, idle, str(service.process.pid)):
            return True
        service.process.send_signal(signal.SIGCONT)
        return False

    await until(is_frozen_in_one)


async def both_work(traffic: Traffic, one: Service, other: Service) -> bool:
    """Whether each of them has a good part of new messages; if not, some time later."""
    numbers = await traffic.publish(1)
    await until(lambda: traffic.is_handled(numbers))
    handled = await traffic.handled_by(numbers)
    return min(handled[each.process.pid] for each in (one, other)) > KEYS * 0.2


async def works(traffic: Traffic, service: Service, numbers: range) -> bool:
    """Whether it handles these, of partitions that were not its own among them."""
    return (await traffic.handled_by(numbers))[service.process.pid] > len(numbers) * 0.6


async def test_a_storm_of_processes_that_join_and_leave(
    consume: Callable[[], Service], database: str, vhost: str
) -> None:
    """Partitions are handed over while there is much to do."""
    running = [consume() for _ in range(2)]
    await until(lambda: ready(vhost, "divided.members", consumers=2))
    traffic = Traffic(vhost, database)
    publishing = asyncio.create_task(traffic.publish(4 * WAVES))
    for ends in (Service.kill, Service.stop, Service.kill):
        running.append(consume())
        await until(lambda: ready(vhost, "divided.members", consumers=3))
        ends(running.pop(0))
        await until(lambda: ready(vhost, "divided.members", consumers=2))
    numbers = await publishing
    await until(lambda: traffic.is_handled(numbers))
    for service in running:
        assert service.stop()[0] == 0
    await traffic.check()
    await traffic.close()
