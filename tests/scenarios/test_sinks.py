"""Several sinks in one process of the command line, on PostgreSQL and RabbitMQ, with a destination that hangs."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aio_pika
import asyncpg
import pytest

from postroad import Message, Outbox
from postroad.stores.postgresql import migrate_postgresql
from tests.services.postgresql import PostgreSQL

OUTBOX = Outbox(source="/shop")
TOPICS = ["order.created", "payment.done", "order.item.added"]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and never says anything."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.fixture
def database(postgresql15: PostgreSQL) -> Iterator[str]:
    url = postgresql15.create_database()
    asyncio.run(migrate_postgresql(url))
    yield url
    postgresql15.drop_database(url)


def settings(folder: Path, database: str, vhost: str, silent: int) -> None:
    (folder / "postroad.toml").write_text(f"""
database = "{database}"
until_empty_timeout = "2s"
grace = "100ms"

[sinks.orders]
to = "{vhost}"
topics = ["order.*"]

[sinks.orders.rabbitmq]
exchange = "shop"

[sinks.all]
to = "null://"

[sinks.silent]
to = "amqp://127.0.0.1:{silent}"

[sinks.silent.rabbitmq]
connect_timeout = "1s"
""")
    (folder / "postroad.toml").chmod(0o600)


async def add(database: str, count: int) -> None:
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            messages = [Message(str(number), type=topic) for number in range(count) for topic in TOPICS]
            await OUTBOX.add_many(connection, messages)
    finally:
        await connection.close()


async def bind(vhost: str) -> None:
    connection = await aio_pika.connect(vhost)
    async with connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("shop", "topic", durable=True)
        queue = await channel.declare_queue("warehouse", durable=True)
        await queue.bind(exchange, "#")


async def arrived(vhost: str) -> int:
    connection = await aio_pika.connect(vhost)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("warehouse", passive=True)
        return queue.declaration_result.message_count or 0


def postroad(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "postroad", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def test_a_sink_whose_broker_is_silent_delays_no_other(database: str, vhost: str, silent: int, tmp_path: Path) -> None:
    settings(tmp_path, database, vhost, silent)
    asyncio.run(bind(vhost))
    asyncio.run(add(database, 10))
    process = postroad(tmp_path, "relay")
    try:
        for more in (0, 7):
            asyncio.run(add(database, more))
            deadline = time.monotonic() + 90
            while asyncio.run(arrived(vhost)) < 10 + more and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.1)
        assert asyncio.run(arrived(vhost)) == 17
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    assert "orders: 17 published" in output
    assert "all: 51 published" in output
    assert "silent: 0 published" in output


def test_until_empty_some_sinks_are_served_and_what_fails_is_named(
    database: str, vhost: str, silent: int, tmp_path: Path
) -> None:
    settings(tmp_path, database, vhost, silent)
    asyncio.run(bind(vhost))
    asyncio.run(add(database, 5))
    with postroad(tmp_path, "relay", "--until-empty", "--sink", "orders,all") as process:
        output, log = process.communicate(timeout=90)
    assert process.returncode == 0, log
    assert "orders: 5 published" in output
    assert "all: 15 published" in output
    with postroad(tmp_path, "relay", "--until-empty") as process:
        output, log = process.communicate(timeout=90)
    assert process.returncode == 1, log
    assert "orders: 0 published" in output
    assert "silent: failed: " in output
    with postroad(tmp_path, "relay", "--sink", "order") as process:
        output, log = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "did you mean 'orders'?" in log
