"""Every destination as tests see it: a publisher, what has arrived, a message it refuses, and an outage."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID, uuid4

import aio_pika
import aiosqlite
import msgspec
import nats
from nats.js.errors import NotFoundError

from postroad import BrokerUnavailable, Consumer, Received, StoredMessage
from postroad.brokers.http.publisher import HTTPPublisher
from postroad.brokers.http.settings import PublisherSettings as HTTPSettings
from postroad.brokers.kafka.publisher import KafkaPublisher
from postroad.brokers.kafka.settings import PublisherSettings
from postroad.brokers.local import LocalPublisher
from postroad.brokers.memory import MemoryBroker
from postroad.brokers.nats.publisher import NATSPublisher
from postroad.brokers.nats.settings import PublisherSettings as NATSPublisherSettings
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.redis.publisher import RedisPublisher
from postroad.brokers.redis.settings import PublisherSettings as RedisSettings
from postroad.message import new_id
from postroad.stores.sqlite import migrate_sqlite
from tests.polling import until
from tests.services.http import NO_CONTENT, raw, status
from tests.services.rabbitmq import frozen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
    from confluent_kafka import Message as KafkaRecord
    from nats.js.api import RawStreamMsg
    from nats.js.client import JetStreamContext

    from postroad.brokers.base import Publisher
    from tests.services.http import HTTPServer, Request
    from tests.services.kafka import Kafka
    from tests.services.nats import NATS
    from tests.services.rabbitmq import RabbitMQ
    from tests.services.redis import Redis

STEADY = 50
"""So many looks in a row, 20 ms apart, show that a call can go no further: its threads may get no CPU for long."""
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

    def stalled(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[int]]]:
        """Within it, it answers nothing. Yields a function that waits until a call that was begun can go no further,
        and returns how many bytes have left this process by then, at most.
        """
        ...


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

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        self._broker.hold()
        self._broker.asked.clear()

        async def sent() -> int:
            await self._broker.asked.wait()
            return 0

        yield sent
        self._broker.release()


class LocalDestination:
    def __init__(self) -> None:
        self._arrived: list[UUID] = []
        self._room: int | None = None
        self._asked, self._flowing = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        self.publisher = LocalPublisher(self._handle)

    async def _handle(self, message: StoredMessage) -> None:
        self._asked.set()
        await self._flowing.wait()
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

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        self._asked.clear()
        self._flowing.clear()

        async def sent() -> int:
            await self._asked.wait()
            return 0

        yield sent
        self._flowing.set()


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

    def stalled(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[int]]]:
        raise NotImplementedError


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
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        """The server is frozen: the kernel still takes for it what its buffers hold."""
        connection = self.publisher._connection
        assert connection is not None
        writer = connection._writer
        assert writer is not None
        written, write = 0, writer.write

        def counted(data: Any) -> None:
            nonlocal written
            written += len(data)
            write(data)

        async def sent() -> int:
            steady, held = 0, 0
            async with asyncio.timeout(60):
                while steady < STEADY:
                    now = writer.transport.get_write_buffer_size()
                    steady = steady + 1 if now == held > 0 else 0
                    held = now
                    await asyncio.sleep(0.02)
            return written - held

        writer.write = counted  # type: ignore[method-assign]
        with frozen(self._server):
            yield sent


class KafkaDestination:
    """A topic for orders, of one partition, so that there is one order. Its name begins with one of its own.

    With `freezes`, an outage is a broker that does not answer, so what is on its way may arrive later.
    """

    def __init__(self, server: Kafka, prefix: str, *, freezes: bool = False, **settings: Any) -> None:
        self.server = server
        self._freezes = freezes
        self.topic = f"{prefix}.order.created"
        defaults: dict[str, Any] = {"topic": f"{prefix}.{{topic}}", "confirm_timeout": "5s", "connect_timeout": "2s"}
        self.publisher = KafkaPublisher(server.url(), PublisherSettings(**defaults | settings))

    @classmethod
    def fresh(cls, server: Kafka, **settings: Any) -> Self:
        prefix = f"test-{uuid4().hex[:12]}"
        server.create_topic(f"{prefix}.order.created")
        return cls(server, prefix, **settings)

    async def arrived(self) -> list[UUID]:
        return [id_of(record) for record in await asyncio.to_thread(self.server.records, self.topic)]

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, topic="no-such-topic")

    async def fail(self, after: int = 2) -> None:
        await asyncio.to_thread(self.server.freeze if self._freezes else self.server.stop)

    async def recover(self) -> None:
        await asyncio.to_thread(self.server.start)

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        """The server is frozen: the kernel still takes for it what its buffers hold."""

        async def sent() -> int:
            steady, before = 0, 0
            async with asyncio.timeout(60):
                while steady < STEADY:
                    now = self.server.unread_bytes()
                    steady = steady + 1 if now == before > 0 else 0
                    before = now
                    await asyncio.sleep(0.02)
            return before

        await asyncio.to_thread(self.server.freeze)
        try:
            yield sent
        finally:
            await asyncio.to_thread(self.server.start)


class NATSDestination:
    """A stream for orders. The subjects of its messages begin with a word of its own."""

    def __init__(self, server: NATS, **settings: Any) -> None:
        self.server = server
        word = f"test-{uuid4().hex[:12]}"
        self.stream, self.subject = word, f"{word}.order.created"
        defaults: dict[str, Any] = {
            "subject": f"{word}.{{topic}}",
            "stream": word,
            "declare": "create",
            "subjects": [f"{word}.order.>"],
            "confirm_timeout": "5s",
            "connect_timeout": "5s",
        }
        given = {name: value for name, value in (defaults | settings).items() if value is not None}
        self.publisher = NATSPublisher(server.url(), NATSPublisherSettings(**given))

    async def arrived(self) -> list[UUID]:
        return [UUID((message.headers or {})["ce-id"]) for message in await self.stored()]

    async def stored(self) -> list[RawStreamMsg]:
        """All messages of the stream."""
        async with jetstream_of(self.server) as jetstream:
            try:
                state = (await jetstream.stream_info(self.stream)).state
            except NotFoundError:
                return []
            numbers = range(state.first_seq, state.last_seq + 1) if state.messages else ()
            return [await jetstream.get_msg(self.stream, number) for number in numbers]

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, topic="no-stream")

    async def fail(self, after: int = 2) -> None:
        await asyncio.to_thread(self.server.stop)

    async def recover(self) -> None:
        await asyncio.to_thread(self.server.start)

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        """The server is frozen: the kernel still takes for it what its buffers hold."""
        link = self.publisher._link
        assert link is not None
        transport: Any = link.connection._transport
        written, write = 0, link.connection.write

        def counted(data: bytes) -> None:
            nonlocal written
            written += len(data)
            write(data)

        async def sent() -> int:
            steady, held = 0, 0
            async with asyncio.timeout(60):
                while steady < STEADY:
                    now = transport.get_write_buffer_size()
                    steady = steady + 1 if now == held > 0 else 0
                    held = now
                    await asyncio.sleep(0.02)
            return written - held

        link.connection.write = counted  # type: ignore[method-assign]
        await asyncio.to_thread(self.server.freeze)
        try:
            yield sent
        finally:
            await asyncio.to_thread(self.server.start)


@asynccontextmanager
async def jetstream_of(server: NATS) -> AsyncIterator[JetStreamContext]:
    """JetStream, through nats-py."""
    client = await nats.connect(server.servers, allow_reconnect=False)
    try:
        yield client.jetstream(timeout=60)
    finally:
        await client.close()


class HTTPDestination:
    """An endpoint, and a publisher that sends one request at a time, so that there is one order."""

    def __init__(self, server: HTTPServer, **settings: Any) -> None:
        self.server = server
        server.answer = self._answer
        defaults: dict[str, Any] = {"allow_plaintext": True, "allow_networks": ["127.0.0.0/8"], "concurrency": 1}
        self.publisher = HTTPPublisher(f"{server.url}/hooks", HTTPSettings(**defaults | settings))

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        await (status(422, "it is unwanted") if "unwanted" in request.headers else raw(NO_CONTENT))(request, writer)

    async def arrived(self) -> list[UUID]:
        return list(self.server.arrived)

    def refused(self, message: StoredMessage) -> StoredMessage:
        headers = msgspec.json.encode({**message.all_headers, "unwanted": "yes"}).decode()
        return msgspec.structs.replace(message, headers_json=headers)

    async def fail(self, after: int = 2) -> None:
        await self.server.stop()

    async def recover(self) -> None:
        await self.server.start()

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        async def sent() -> int:
            await until(lambda: self.server.unread_bytes() > 0)
            return 100_000  # there is one request at a time, and the kernel may have all of it

        self.server.freeze()
        yield sent
        self.server.thaw()


class RedisDestination:
    """A stream for orders, and a value that is no stream, where unwanted messages go to.

    With `freezes`, an outage is a server that does not answer, so what is on its way may arrive later.
    """

    STREAM = "order.created"

    def __init__(self, server: Redis, *, freezes: bool = False, **settings: Any) -> None:
        self.server = server
        self._freezes = freezes
        server.call("SET", "unwanted", "no stream")
        defaults: dict[str, Any] = {"confirm_timeout": "5s", "connect_timeout": "2s"}
        self.publisher = RedisPublisher(server.url, RedisSettings(**defaults | settings))

    async def arrived(self) -> list[UUID]:
        return [UUID(fields["ce_id"].decode()) for _, fields in self.server.entries(self.STREAM)]

    def refused(self, message: StoredMessage) -> StoredMessage:
        return msgspec.structs.replace(message, topic="unwanted")

    async def fail(self, after: int = 2) -> None:
        await asyncio.to_thread(self.server.freeze if self._freezes else self.server.stop)

    async def recover(self) -> None:
        await asyncio.to_thread(self.server.start)

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        """The server is frozen: the kernel still takes for it what its buffers hold."""
        (connection,) = self.publisher._free
        transport = connection._transport
        assert transport is not None
        written, write = 0, transport.write

        def counted(data: Any) -> None:
            nonlocal written
            written += len(data)
            write(data)

        async def sent() -> int:
            steady, held = 0, 0
            async with asyncio.timeout(60):
                while steady < STEADY:
                    now = transport.get_write_buffer_size()
                    steady = steady + 1 if now == held > 0 else 0
                    held = now
                    await asyncio.sleep(0.02)
            return written - held

        connection.write = counted  # type: ignore[method-assign]
        self.server.freeze()
        try:
            yield sent
        finally:
            await asyncio.to_thread(self.server.start)


def id_of(record: KafkaRecord[Any, Any]) -> UUID:
    return UUID(kafka_headers(record)["ce_id"])


def kafka_headers(record: KafkaRecord[Any, Any]) -> dict[str, str]:
    """The headers of a record, each of them once."""
    headers: Any = record.headers() or []
    pairs = [(name, value.decode()) for name, value in headers]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


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
