"""Quorum queues on a cluster of three nodes: the node that leads the queues, and that all are connected to, is killed
while a relay publishes and two consumers share the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from postroad import Message, Outbox
from tests.conftest import serving
from tests.logs import connected
from tests.scenarios.test_consumers import WAIT_SECONDS, fresh, ready, rows, services, until
from tests.scenarios.test_partitions import EFFECTS, Traffic
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq_cluster import RabbitMQCluster

KEYS = 100
ROUNDS = 8
"""How many messages each key gets after the kill, and at least as many before it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitMQCluster]:
    with serving(RabbitMQCluster) as cluster:
        yield cluster


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    async with fresh(postgresql15, EFFECTS) as url:
        yield url


async def add(database: str, killed: asyncio.Event) -> int:
    """In each round a message of each key; the numbers of a key rise. Returns how many messages there are in all."""
    outbox = Outbox(source="/tests")
    number, left = 0, ROUNDS
    async with connected(database) as connection:
        while left:
            left -= killed.is_set()
            messages = [
                Message({"number": number + key}, type="order.created", key=f"key-{key}") for key in range(1, KEYS + 1)
            ]
            number += KEYS
            async with connection.transaction():
                await outbox.add_many(connection, messages)
            await asyncio.sleep(0.5)  # a pace that consumers can keep up with
    return number


async def test_a_killed_leader_costs_nothing(cluster: RabbitMQCluster, database: str, tmp_path: Path) -> None:
    vhost = cluster.create_vhost()
    url = cluster.url(vhost)
    traffic = Traffic(url, database)
    with services(tmp_path) as start:
        where = {"SERVICE_DATABASE": database, "SERVICE_BROKER": url, "SERVICE_TOGETHER": "20"}
        consume = ("consume", "--app", "tests.scenarios.partition_services:divided")
        quorum = {"SERVICE_QUEUE_TYPE": "quorum", "SERVICE_HEARTBEAT": "10s"}
        consumers = [start(*consume, **where, **quorum) for _ in range(2)]
        await until(lambda: ready(cluster.nodes[0].url(vhost), "divided.members", consumers=2))
        relay = start("relay", POSTROAD_TO=url, POSTROAD_DATABASE=database, POSTROAD_RABBITMQ_PARTITIONED="true")
        killed = asyncio.Event()
        adding = asyncio.create_task(add(database, killed))
        await until(lambda: has_effects(database, ROUNDS * KEYS))
        cluster.leader(vhost, "divided.0").kill()
        killed.set()
        traffic.published = await adding
        try:
            await until(lambda: has_effects(database, traffic.published), 2 * WAIT_SECONDS)
        except TimeoutError as error:
            error.add_note(cluster.queues(vhost))
            error.add_note("\n".join(service.output() for service in (relay, *consumers)))
            raise
        for service in (relay, *consumers):
            assert service.stop()[0] == 0
    await traffic.check()


async def has_effects(database: str, count: int) -> bool:
    ((found,),) = await rows(database, "select count(*) from effects")
    return bool(found >= count)
