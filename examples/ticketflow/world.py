"""The whole service on real servers: PostgreSQL, RabbitMQ, the help desk, and two workers."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aio_pika
import psycopg

from examples.running import Processes, processes, until
from examples.ticketflow.tickets import TABLES
from examples.ticketflow.worker import EXCHANGE
from postroad.stores import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aio_pika.abc import AbstractIncomingMessage

FIGURES = Path(__file__).with_name("figures.sql")


class World:
    """The service while it is open."""

    def __init__(self, running: Processes, database: str, broker: str) -> None:
        self.running = running
        self.database = database
        self.broker = broker
        self.connection: psycopg.Connection[Any] = psycopg.connect(database, autocommit=True)

    def open(self) -> None:
        asyncio.run(migrate(self.database))
        self.connection.execute(TABLES)
        desk = ("postroad", "consume", "--app", "examples.ticketflow.desk:consumer", "--log-level", "debug")
        self.running.start("desk", *desk, **self.environment)
        until(lambda: self.running.lines("desk", "receiving from"), self.running)
        asyncio.run(bind(self.broker, archive="#", dead_letters="ticketflow.dead"))
        self.start("worker 1")
        until(lambda: self.running.lines("worker 1", "acquired the lock"), self.running)
        self.start("worker 2")
        until(lambda: self.running.lines("worker 2", "the lock 42 is held by"), self.running)

    def start(self, worker: str) -> None:
        self.running.start(worker, "examples.ticketflow.worker", LOG_LEVEL="DEBUG", **self.environment)

    @property
    def environment(self) -> dict[str, str]:
        return {"DATABASE": self.database, "POSTROAD_DATABASE": self.database, "BROKER": self.broker}

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def notices(self, ticket: int) -> list[str]:
        return [row[0] for row in self.ask("select text from notices where ticket = %s order by number", ticket)]

    def figures(self, name: str) -> list[dict[str, Any]]:
        """What a query of figures.sql finds."""
        query = FIGURES.read_text().partition(f"-- name: {name}\n")[2].partition("-- name:")[0]
        cursor = self.connection.execute(query)
        return [dict(zip((each.name for each in cursor.description or ()), row, strict=True)) for row in cursor]

    def queued(self, queue: str) -> list[AbstractIncomingMessage]:
        return asyncio.run(taken(self.broker, queue))


async def bind(broker: str, **queues: str) -> None:
    """Declare queues that keep what is published with their routing keys."""
    async with await aio_pika.connect(broker) as connection:
        channel = await connection.channel()
        for name, routing_key in queues.items():
            queue = await channel.declare_queue(name, durable=True)
            await queue.bind(EXCHANGE, routing_key)


async def taken(broker: str, queue: str) -> list[AbstractIncomingMessage]:
    """All messages of a queue."""
    found = []
    async with await aio_pika.connect(broker) as connection:
        source = await (await connection.channel()).get_queue(queue)
        while message := await source.get(no_ack=True, fail=False):
            found.append(message)
    return found


@contextmanager
def opened(database: str, broker: str, folder: Path) -> Iterator[World]:
    with processes(folder) as running:
        world = World(running, database, broker)
        with world.connection:
            world.open()
            yield world
