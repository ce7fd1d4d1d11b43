"""Dead messages of Kafka wait in RabbitMQ: through the command line, in one process and in two, and with relays that
are killed when a message has died.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
import pytest

from postroad import Message, Outbox
from postroad.stores.postgresql import migrate_postgresql
from tests.services.kafka import Kafka
from tests.services.postgresql import PostgreSQL

OUTBOX = Outbox(source="/shop")
TOO_LARGE = "x" * 5000
DEAD, ALIVE = 6, 6


@pytest.fixture
def database(postgresql15: PostgreSQL) -> Iterator[str]:
    url = postgresql15.create_database()
    asyncio.run(migrate_postgresql(url))
    yield url
    postgresql15.drop_database(url)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create_topic()


@pytest.fixture
def folder(tmp_path: Path, database: str, vhost: str, kafka: Kafka, topic: str) -> Path:
    """Six messages that Kafka takes, six that are too large for it, and a file that says where both go."""
    (tmp_path / "postroad.toml").write_text(f"""
database = "{database}"
outage_backoff = "100ms"
batch_size = 2

[sinks.orders]
to = "kafka://{kafka.bootstrap}"
dead_letter_sink = "graveyard"

[sinks.orders.kafka]
topic = "{topic}"
max_message_size = 2000

[sinks.graveyard]
to = "{vhost}"
types = ["only copies"]

[sinks.graveyard.rabbitmq]
exchange = "graveyard"
""")
    (tmp_path / "postroad.toml").chmod(0o600)
    asyncio.run(add(database))
    asyncio.run(bind(vhost))
    return tmp_path


async def add(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            events = [TOO_LARGE] * DEAD + ["small"] * ALIVE
            fields: dict[str, Any] = {"type": "order.placed", "topic": "orders"}
            await OUTBOX.add_many(connection, [Message(event, key=str(n), **fields) for n, event in enumerate(events)])
    finally:
        await connection.close()


async def bind(vhost: str) -> None:
    async with await aio_pika.connect(vhost) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("graveyard", "topic", durable=True)
        queue = await channel.declare_queue("dead", durable=True)
        await queue.bind(exchange, "#")


async def dead_ids(vhost: str) -> list[str]:
    """The ids of the messages whose copies wait in RabbitMQ, with duplicates."""
    found = []
    async with await aio_pika.connect(vhost) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("dead")
        while (copy := await queue.get(fail=False)) is not None:
            found.append(str(copy.headers["postroad-dead-id"]))
    return found


async def died(database: str) -> set[str]:
    connection = await asyncpg.connect(database)
    try:
        query = (
            "select o.id::text from postroad.outbox o join postroad.deferred d using (position) where d.state = 'dead'"
        )
        return {id for (id,) in await connection.fetch(query)}
    finally:
        await connection.close()


def relay(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "postroad", "relay", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def kill_after(deaths: int, folder: Path) -> None:
    """Run a relay for both sinks, and kill it when so many messages have died, or when it has nothing left to do."""
    with relay(folder, "--until-empty", "--sink", "orders,graveyard") as process:
        assert process.stderr is not None
        dead = (line for line in process.stderr if "is dead after" in line)
        for _ in zip(range(deaths), dead, strict=False):
            pass
        process.kill()
        process.communicate(timeout=60)


def run(folder: Path, *arguments: str) -> str:
    with relay(folder, "--until-empty", *arguments) as process:
        output, log = process.communicate(timeout=120)
    assert process.returncode in {0, 1}, log  # 1: messages have died
    return output


def test_each_sink_in_a_process_of_its_own(folder: Path, database: str, vhost: str, kafka: Kafka, topic: str) -> None:
    with relay(folder, "--until-empty", "--sink", "orders") as process:
        _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "dead_letter_sink is 'graveyard', and the database has no such sink" in log
    run(folder, "--sink", "graveyard")
    assert f"{ALIVE} published" in run(folder, "--sink", "orders")
    assert asyncio.run(dead_ids(vhost)) == []
    run(folder, "--sink", "graveyard")
    found = asyncio.run(dead_ids(vhost))
    assert len(found) == DEAD
    assert set(found) == asyncio.run(died(database))
    assert kafka.size(topic) == ALIVE


def test_relays_that_are_killed_when_messages_die_lose_no_copy(folder: Path, database: str, vhost: str) -> None:
    """In one process. Each is killed at the first, second or third line about a dead message: before its death was
    recorded, between that and its copy, or later, as it happens.
    """
    for deaths in (1, 2, 3):
        kill_after(deaths, folder)
    run(folder)
    run(folder)
    found = asyncio.run(dead_ids(vhost))
    assert len(asyncio.run(died(database))) == DEAD
    assert set(found) == asyncio.run(died(database))
