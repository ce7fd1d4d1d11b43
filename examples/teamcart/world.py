"""The whole service on real servers: PostgreSQL, Redis, and a relay with the handlers in it; or a relay, a Redis Stream
and a consumer.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
from redis import Redis

from examples.running import Processes, processes, until
from examples.teamcart.carts import TABLES, create_cart
from examples.teamcart.streamed import STREAM
from examples.teamcart.view import key_of
from postroad.stores import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID


class World:
    """The service while it is open."""

    def __init__(self, running: Processes, database: str, redis_url: str, *, stream: bool) -> None:
        """`stream`: messages go through a Redis Stream, to a consumer in a process of its own."""
        self.running = running
        self.handlers = "consumer" if stream else "relay"
        """The process that the handlers run in."""
        self.database = database
        self.redis = Redis.from_url(redis_url, decode_responses=True)
        self._redis_url = redis_url

    async def open(self) -> None:
        await migrate(self.database)
        connection = await self.connect()
        await connection.execute(TABLES)
        await connection.close()
        self.start_relay()
        until(lambda: "took 4 lanes" in self.running.log("relay"), self.running)
        if self.handlers == "consumer":
            self.start_consumer()
            until(lambda: "started" in self.running.log("consumer"), self.running)

    def start_relay(self) -> None:
        handlers = ["--app", "examples.teamcart.view:consumer"]
        stream = ["--to", self._redis_url, "--redis-stream", STREAM]
        self._start("relay", "relay", *(stream if self.handlers == "consumer" else handlers))

    def start_consumer(self) -> None:
        self._start("consumer", "consume", "--app", "examples.teamcart.streamed:consumer")

    def _start(self, name: str, *arguments: str) -> None:
        where = {"POSTROAD_DATABASE": self.database, "REDIS": self._redis_url}
        self.running.start(name, "postroad", *arguments, "--log-level", "debug", **where)

    async def connect(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(self.database)

    def view(self, cart: UUID) -> dict[str, str]:
        """The cart as a reader sees it."""
        found: dict[str, str] = self.redis.hgetall(key_of(cart))  # type: ignore[assignment]
        return found

    async def seconds_until_seen(self, host: str) -> float:
        """Create a cart, and wait for its view model: from the commit until it stands in Redis."""
        connection = await self.connect()
        cart = await create_cart(connection, host)
        began = time.monotonic()
        until(lambda: self.view(cart), self.running)
        seconds = time.monotonic() - began
        await connection.close()
        return seconds


@contextmanager
def world_on(database: str, redis_url: str, folder: Path, *, stream: bool = False) -> Iterator[World]:
    with processes(folder) as running:
        world = World(running, database, redis_url, stream=stream)
        try:
            yield world
        finally:
            world.redis.close()
