"""Every destination as tests see it: a publisher, what has arrived, a message it refuses, and an outage."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID

import aio_pika
import aiosqlite
import msgspec

from postroad import BrokerUnavailable, Consumer, Received, StoredMessage
from postroad.brokers.local import LocalPublisher
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.message import new_id
from postroad.stores.sqlite import migrate_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

    from postroad.brokers.base import Publisher
    from tests.services.rabbitmq import RabbitMQ

CREATED_US = 1_735_787_045_123_456  # 2025-01-02T03:04:05.123456Z


def stored(position: int = 1, *, headers: dict[str, str] | None = None, **fields: Any) -> StoredMessage:
    """A message as a relay reads it."""
    defaults: dict[str, Any] = {
        "id": new_id(),
        "topic": "order.created",
        "key": f"order-{position}",
        "slot": 0,
        "type": "order.created",
        "payload": b'{"number":%d}' % position,
        "content_type": "application/json",
        "headers_json": msgspec.json.encode({"source": "/tests"} | (headers or {})).decode(),
        "created_us": CREATED_US,
    }
    return StoredMessage(position=position, **defaults | fields)


def a_page(size: int, first: int = 1) -> list[StoredMessage]:
    return [stored(position) for position in range(first, first + size)]


class Destination(Protocol):
    @property
    def publisher(self) -> Publisher: ...

    async def arrived(self) -> list[UUID]:
        """The ids of all that has arrived so far, in order, duplicates and all."""
        ...

    def refused(self, message: StoredMessage) -> StoredMessage:
        """The message, changed so that this destination refuses it."""
        ...

    async def fail(self, after: int = 2) -> None:
        """It can't be asked, from now on, or where a test can tell, after so many messages of the next call."""

    async def recover(self) -> None:
        """It can be asked again."""


class MemoryDestination:
    def __init__(self, *, in_order: bool = False) -> None:
        self._broker = MemoryBroker(in_order=in_order)
        self._broker.refuse(lambda message: "it is unwanted" if message.topic == "unwanted" else None)
        self.publisher = self._broker

    async def arrived(self) -> list[UUID]:
        return [message.id for message in self._broker.messages]

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, topic="unwanted")

    async def fail(self, after: int = 2) -> None:
        self._broker.fail_after(after)

    async def recover(self) -> None:
        self._broker._outages.clear()


class LocalDestination:
    def __init__(self) -> None:
        self._arrived: list[UUID] = []
        self._room: int | None = None
        self.publisher = LocalPublisher(self._handle)

    async def _handle(self, message: StoredMessage) -> None:
        if len(self._arrived) == self._room:
            raise BrokerUnavailable("the handler's own service is down")
        if message.topic == "unwanted":
            raise ValueError("it is unwanted")
        self._arrived.append(message.id)

    async def arrived(self) -> list[UUID]:
        return list(self._arrived)

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, topic="unwanted")

    async def fail(self, after: int = 2) -> None:
        self._room = len(self._arrived) + after

    async def recover(self) -> None:
        self._room = None


class ConsumerDestination:
    """A consumer's handlers, on an SQLite database. What was committed has arrived."""

    def __init__(self, path: Path, *, ordering: Literal["key", "none"] = "key") -> None:
        migrate_sqlite(path)
        self._path = path
        self._arrived: list[UUID] = []
        self._handled: dict[int, UUID] = {}
        self._room: int | None = None
        consumer: Consumer[Any] = Consumer(name="orders", begin=self._begin, ordering=ordering)
        consumer.on(dict, type="order.created")(self._handle)
        self.publisher = consumer.publisher()

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[aiosqlite.Connection]:
        if len(self._arrived) == self._room:
            raise ConnectionRefusedError("no database")
        async with aiosqlite.connect(self._path) as connection:
            yield connection
            await connection.commit()
            if handled := self._handled.pop(id(connection), None):
                self._arrived.append(handled)

    async def _handle(self, event: dict[str, int], tx: aiosqlite.Connection, message: Received) -> None:
        if event["number"] < 0:
            raise ValueError("it is unwanted")
        self._handled[id(tx)] = UUID(message.id)

    async def arrived(self) -> list[UUID]:
        return list(self._arrived)

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, payload=b'{"number":-1}')

    async def fail(self, after: int = 2) -> None:
        self._room = len(self._arrived) + after

    async def recover(self) -> None:
        self._room = None


class RabbitMQDestination:
    """An exchange in a vhost of its own, and a queue that takes every order."""

    def __init__(self, server: RabbitMQ, vhost: str) -> None:
        self._server = server
        self._vhost = vhost
        self._arrived: list[UUID] = []
        self.publisher = RabbitMQPublisher(vhost)

    @classmethod
    async def fresh(cls, server: RabbitMQ, vhost: str) -> Self:
        async with rabbitmq_channel(vhost) as channel:
            await bound_queue(channel, "orders", "order.#")
        return cls(server, vhost)

    async def arrived(self) -> list[UUID]:
        self._arrived += [UUID(message.message_id) for message in await consumed(self._vhost, "orders")]
        return list(self._arrived)

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, topic="unbound")

    async def fail(self, after: int = 2) -> None:
        self._server.stop()

    async def recover(self) -> None:
        self._server.start()


@asynccontextmanager
async def rabbitmq_channel(vhost: str) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(vhost) as connection:
        yield await connection.channel()


async def bound_queue(
    channel: AbstractChannel, name: str, routing_key: str = "#", exchange: str = "postroad", **arguments: Any
) -> None:
    """A durable queue that is bound to the exchange, and the exchange as postroad declares it."""
    topics = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue(
        name, durable=True, arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    )
    await queue.bind(topics, routing_key)


async def consumed(vhost: str, queue: str) -> list[AbstractIncomingMessage]:
    """Take all that is in the queue, in order."""
    messages: list[AbstractIncomingMessage] = []
    async with rabbitmq_channel(vhost) as channel:
        source = await channel.declare_queue(queue, passive=True)
        count = source.declaration_result.message_count or 0
        if count:
            async with source.iterator(no_ack=True) as arriving:
                async for message in arriving:
                    messages.append(message)
                    if len(messages) == count:
                        break
    return messages
