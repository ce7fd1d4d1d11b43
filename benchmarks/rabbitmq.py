"""How fast messages get into RabbitMQ, each confirmed, persistent and mandatory: postroad beside two yardsticks.

`socket` writes ready-made frames, the very bytes that postroad writes, on a bare socket: what the server can take from
anyone who sends pages and waits for their confirms. `aio-pika` is what applications use, 500 publishes at a time.

All run on one server in one process, in turns, because a machine is never equally busy for long. Run it with
`python -m benchmarks.rabbitmq`.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

import aio_pika
import pamqp.frame
from pamqp import commands
from yarl import URL

from postroad.brokers.amqp_frames import Properties, publish_frames, short_string
from postroad.brokers.envelope import Envelope
from postroad.brokers.rabbitmq import RabbitMQPublisher
from postroad.message import StoredMessage, new_id
from tests.services.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

EXCHANGE = QUEUE = "postroad-benchmark"
PAYLOAD = b'{"order": "%s"}' % (b"x" * 157)  # 170 bytes
PAGE = 1000
AT_ONCE = 500


class Rate(NamedTuple):
    """Messages per second: the median of all rounds, and the slowest and fastest."""

    median: float
    slowest: float
    fastest: float


async def measure(url: str, *, rounds: int = 7, pages: int = 5) -> dict[str, Rate]:
    """The rates of each way to publish, by name. A round publishes this many pages of 1,000 messages in each way."""
    messages = [stored(position) for position in range(1, pages * PAGE + 1)]
    connection = await aio_pika.connect(url)
    queue = await declared(await connection.channel(publisher_confirms=False))
    bare = Bare(URL(url))
    publisher = RabbitMQPublisher(url, exchange=EXCHANGE)
    frames = [b"".join(map(bare.frames, page)) for page in in_pages(messages, PAGE)]
    exchange = await (await connection.channel()).get_exchange(EXCHANGE)
    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "socket": lambda: asyncio.to_thread(bare.publish, frames),
        "postroad": lambda: with_postroad(publisher, messages, lanes=1),
        "postroad, 4 lanes": lambda: with_postroad(publisher, messages, lanes=4),
        "aio-pika": lambda: with_aio_pika(exchange, messages),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for turn in range(rounds + 1):
            for name, publish in ways.items():
                began = time.perf_counter()
                await publish()
                if turn:  # the first round only warms up
                    seconds[name].append(time.perf_counter() - began)
                await queue.purge()
    finally:
        bare.close()
        await publisher.close()
        await connection.close()
    return {name: rate(len(messages), taken) for name, taken in seconds.items()}


def rate(count: int, seconds: list[float]) -> Rate:
    return Rate(count / statistics.median(seconds), count / max(seconds), count / min(seconds))


async def declared(channel: aio_pika.abc.AbstractChannel) -> aio_pika.abc.AbstractQueue:
    exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue(QUEUE, durable=True)
    await queue.bind(exchange, "#")
    return queue


def stored(position: int) -> StoredMessage:
    return StoredMessage(
        position=position,
        id=new_id(),
        topic="order.created",
        key=f"order-{position}",
        slot=1,
        type="order.created",
        payload=PAYLOAD,
        content_type="application/json",
        headers_json='{"source":"/orders","correlation_id":"3f0c3c2e","tenant":"acme"}',
        created_us=time.time_ns() // 1000,
    )


def in_pages(messages: Sequence[StoredMessage], size: int) -> list[Sequence[StoredMessage]]:
    return [messages[start : start + size] for start in range(0, len(messages), size)]


# -- the three ways ----------------------------------------------------------------------------------------------------


async def with_postroad(publisher: RabbitMQPublisher, messages: Sequence[StoredMessage], *, lanes: int) -> None:
    async def lane(pages: list[Sequence[StoredMessage]]) -> None:
        for page in pages:
            assert not await publisher.publish(page)

    pages = in_pages(messages, PAGE)
    await asyncio.gather(*(lane(pages[number::lanes]) for number in range(lanes)))


async def with_aio_pika(exchange: aio_pika.abc.AbstractExchange, messages: Sequence[StoredMessage]) -> None:
    for some in in_pages(messages, AT_ONCE):
        await asyncio.gather(*(exchange.publish(as_aio_pika(message), message.topic) for message in some))


def as_aio_pika(message: StoredMessage) -> aio_pika.Message:
    """The same message with the same properties. aio-pika publishes as mandatory unless told otherwise."""
    content_type, headers, body = Envelope().wrap(message)
    return aio_pika.Message(
        body,
        content_type=content_type,
        headers=dict(headers),
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=str(message.id),
        timestamp=message.created_us // 1_000_000,
        type=message.type,
        correlation_id=message.correlation_id,
    )


class Bare:
    """A connection with one channel in confirm mode, without a client library."""

    def __init__(self, url: URL) -> None:
        self._socket = socket.create_connection((str(url.host), url.port or 5672))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._tag = 0
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._next()
        login = f"\0{url.user}\0{url.password}"
        tune = self._ask(commands.Connection.StartOk({}, "PLAIN", login, "en_US"), channel=0)
        assert isinstance(tune, commands.Connection.Tune)
        self._frame_max = tune.frame_max
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self._ask(commands.Connection.Open(url.path[1:].replace("%2F", "/") or "/"), channel=0)
        self._ask(commands.Channel.Open(), channel=1)
        self._ask(commands.Confirm.Select(), channel=1)

    def frames(self, message: StoredMessage) -> bytes:
        content_type, headers, body = Envelope().wrap(message)
        seconds = message.created_us // 1_000_000
        properties = Properties(content_type, headers, str(message.id), seconds, message.type, message.correlation_id)
        return publish_frames(
            1, short_string("exchange", EXCHANGE), message.topic, properties, body, frame_max=self._frame_max
        )

    def publish(self, pages: list[bytes]) -> None:
        for page in pages:
            self._socket.sendall(page)
            pending = set(range(self._tag + 1, self._tag + PAGE + 1))
            lowest = self._tag + 1
            self._tag += PAGE
            while pending:
                ack = self._next()
                assert isinstance(ack, commands.Basic.Ack)
                assert ack.delivery_tag is not None
                if ack.multiple:
                    pending.difference_update(range(lowest, ack.delivery_tag + 1))
                    lowest = ack.delivery_tag + 1
                else:
                    pending.discard(ack.delivery_tag)

    def close(self) -> None:
        self._ask(commands.Connection.Close(200, "done", 0, 0), channel=0)
        self._socket.close()

    def _ask(self, request: pamqp.frame.FrameTypes, channel: int) -> pamqp.frame.FrameTypes:
        self._send(request, channel)
        return self._next()

    def _send(self, frame: pamqp.frame.FrameTypes, channel: int) -> None:
        self._socket.sendall(pamqp.frame.marshal(frame, channel))

    def _next(self) -> pamqp.frame.FrameTypes:
        while len(self._received) < 7 or len(self._received) < self._frame_size():
            received = self._socket.recv(65536)
            assert received, "the server closed the connection"
            self._received += received
        size = self._frame_size()
        frame = pamqp.frame.unmarshal(bytes(self._received[:size]))[2]
        del self._received[:size]
        return frame

    def _frame_size(self) -> int:
        size: int = struct.unpack_from(">I", self._received, 3)[0]
        return size + 8


def main() -> None:
    with RabbitMQ() as server:
        rates = asyncio.run(measure(server.url()))
    print(f"{'':20}{'messages/s':>12}{'slowest':>12}{'fastest':>12}{'of socket':>12}")
    for name, (median, slowest, fastest) in rates.items():
        share = median / rates["socket"].median
        print(f"{name:20}{median:12,.0f}{slowest:12,.0f}{fastest:12,.0f}{share:12.0%}")


if __name__ == "__main__":
    main()
