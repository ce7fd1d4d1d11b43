"""The whole service on real servers: PostgreSQL, RabbitMQ, and a relay with the handlers of billing in it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from examples.cloudevents.readings import TABLES
from examples.running import Processes, processes, until
from postroad.stores import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class World:
    """The service while it is open."""

    def __init__(self, running: Processes, database: str, broker: str) -> None:
        self.running = running
        self.broker = broker
        self.environment = {"POSTROAD_DATABASE": database}
        self.connection: psycopg.Connection[Any] = psycopg.connect(database, autocommit=True)
        asyncio.run(migrate(database))
        self.connection.execute(TABLES)

    def start_billing(self, attempts: int) -> None:
        app = ("postroad", "relay", "--app", "examples.cloudevents.billing:consumer", "--max-attempts", str(attempts))
        self.running.start("billing", *app, **self.environment)

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def until_billed(self, number: int) -> None:
        until(lambda: self.ask("select count(*) from bills") == [(number,)], self.running)

    def until_logged(self, words: str) -> str:
        """Wait for a line of billing's log."""
        return until(lambda: self.running.lines("billing", words), self.running)[0]


@contextmanager
def opened(database: str, broker: str, folder: Path) -> Iterator[World]:
    with processes(folder) as running:
        world = World(running, database, broker)
        with world.connection:
            yield world
