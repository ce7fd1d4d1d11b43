"""Both services on real servers: two databases, NATS between them, a relay and a consumer for each."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from examples.roundtrip import shop, warehouse
from examples.running import Processes, processes, until
from postroad.stores import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class World:
    """The services while they are open."""

    def __init__(self, running: Processes, databases: dict[str, str], nats: str) -> None:
        self.running = running
        self._databases, self._nats = databases, nats
        self.connections: dict[str, psycopg.Connection[Any]] = {}
        for name, tables in (("shop", shop.TABLES), ("warehouse", warehouse.TABLES)):
            asyncio.run(migrate(databases[name]))
            self.connections[name] = psycopg.connect(databases[name], autocommit=True)
            self.connections[name].execute(tables)

    def start_relay(self, name: str) -> None:
        stream = ("--nats-stream", name.upper(), "--nats-declare", "create", "--nats-subject", f"{name}.{{topic}}")
        relay = ("postroad", "relay", "--to", self._nats, *stream)
        self.running.start(f"{name}'s relay", *relay, POSTROAD_DATABASE=self._databases[name])

    def start_consumer(self, name: str, process: str) -> None:
        where = {f"{each.upper()}_DATABASE": url for each, url in self._databases.items()}
        app = ("postroad", "consume", "--app", f"examples.roundtrip.{name}:consumer")
        self.running.start(process, *app, NATS=self._nats, **where)

    def ask(self, name: str, sql: str) -> list[tuple[Any, ...]]:
        return self.connections[name].execute(sql).fetchall()

    def until_shipped(self, number: int) -> None:
        """Wait until the shop knows that so many orders were shipped."""
        until(lambda: self.ask("shop", "select count(*) from shipped") >= [(number,)], self.running)


@contextmanager
def opened(databases: dict[str, str], nats: str, folder: Path) -> Iterator[World]:
    with processes(folder) as running:
        world = World(running, databases, nats)
        try:
            yield world
        finally:
            for connection in world.connections.values():
                connection.close()
