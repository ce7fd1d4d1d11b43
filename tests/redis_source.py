"""A Redis stream as the contract of a subscriber needs it, and what a group has left of it."""

from __future__ import annotations

import asyncio
from typing import Any

from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.redis.subscriber import RedisSubscriber
from postroad.brokers.redis.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Subscription
from tests.services.redis import Redis

SECONDS = 90


def redis_subscriber(url: str, types: tuple[str, ...] = (), **settings: Any) -> RedisSubscriber:
    defaults: dict[str, Any] = {"stream": "orders"}
    completed = SubscriberSettings(**defaults | settings).completed(Subscription("inventory", types=types))
    return RedisSubscriber(url, completed, consumer="inventory", types=types)


async def received(subscriber: RedisSubscriber, count: int) -> list[Delivery]:
    """So many deliveries; streams that are revoked meanwhile are let go."""
    found: list[Delivery] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            now = await subscriber.receive()
            if isinstance(now, Revoked):
                now.released()
            else:
                found += now
    return found


class RedisSource:
    """One stream, or one partition of several, so that all is in order."""

    requeues = False

    def __init__(self, server: Redis, partitions: int | None = None) -> None:
        self._server = server
        self._partitions = partitions
        self._stream = "orders" if partitions is None else f"orders.{partitions // 2}"
        self.subscriber = self.another()

    def another(self) -> RedisSubscriber:
        return redis_subscriber(self._server.url, partitions=self._partitions, connect_timeout="5s")

    async def put(self, *bodies: bytes) -> None:
        for body in bodies:
            self._server.call("XADD", self._stream, "*", "mine", "yes", "data", body)

    async def left(self) -> list[bytes]:
        subscriber = self.another()
        await subscriber.open()
        bodies: list[bytes] = []
        while await subscriber.waiting():
            deliveries = await received(subscriber, 1)
            bodies += [delivery.body for delivery in deliveries]
            subscriber.ack(deliveries)
        await subscriber.close()
        return bodies

    async def dead(self) -> list[tuple[bytes, dict[str, Any]]]:
        return [
            (fields.pop("data"), {name: value.decode() for name, value in fields.items()})
            for _, fields in self._server.entries("inventory.dead")
        ]

    async def drop(self) -> None:
        await asyncio.to_thread(self._server.restart)
