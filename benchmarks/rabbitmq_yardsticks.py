"""Three ways to get messages into RabbitMQ, each message confirmed, persistent and mandatory, all the same bytes.

`Bare` writes ready-made frames, the very bytes that postroad writes, on a bare socket: what the server can take from
anyone who sends pages and waits for their confirms. `with_publisher` is postroad's publisher without a relay around it.
`with_aio_pika` is what applications use, 500 publishes at a time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import TYPE_CHECKING

import aio_pika
import pamqp.frame
from pamqp import commands

from benchmarks.backlog import HEADERS, TOPIC
from benchmarks.payload import payload
from postroad.brokers.cloudevents import Envelope
from postroad.brokers.rabbitmq.frames import Properties, publish_frames, short_string
from postroad.message import StoredMessage, new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from yarl import URL

    from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher

EXCHANGE = QUEUE = "postroad"
PAGE = 1000
AT_ONCE = 500


def stored(position: int) -> StoredMessage:
    """A message as a relay reads it from the backlog."""
    return StoredMessage(
        position=position,
        id=new_id(),
        topic=TOPIC,
        key=None,
        slot=1,
        type=TOPIC,
        payload=payload(position).encode(),
        content_type="application/json",
        headers_json=HEADERS,
        created_us=time.time_ns() // 1000,
    )


def in_pages(messages: Sequence[StoredMessage], size: int = PAGE) -> list[Sequence[StoredMessage]]:
    return [messages[start : start + size] for start in range(0, len(messages), size)]


async def bound_queue(connection: aio_pika.abc.AbstractConnection) -> aio_pika.abc.AbstractQueue:
    """A durable queue that takes all that is published."""
    channel = await connection.channel(publisher_confirms=False)
    exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.declare_queue(QUEUE, durable=True)
    await queue.bind(exchange, "#")
    return queue


async def with_publisher(publisher: RabbitMQPublisher, messages: Sequence[StoredMessage], *, lanes: int) -> None:
    async def lane(pages: list[Sequence[StoredMessage]]) -> None:
        for page in pages:
            assert not await publisher.publish(page)

    pages = in_pages(messages)
    await asyncio.gather(*(lane(pages[number::lanes]) for number in range(lanes)))


async def with_aio_pika(exchange: aio_pika.abc.AbstractExchange, messages: Sequence[StoredMessage]) -> None:
    for some in in_pages(messages, AT_ONCE):
        await asyncio.gather(*(exchange.publish(_as_aio_pika(message), message.topic) for message in some))


def _as_aio_pika(message: StoredMessage) -> aio_pika.Message:
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

    def pages(self, messages: Sequence[StoredMessage]) -> list[tuple[int, bytes]]:
        """How many messages each page has, and their frames."""
        return [(len(page), b"".join(map(self._frames, page))) for page in in_pages(messages)]

    def publish(self, pages: list[tuple[int, bytes]]) -> None:
        for size, frames in pages:
            self._socket.sendall(frames)
            pending = set(range(self._tag + 1, self._tag + size + 1))
            lowest = self._tag + 1
            self._tag += size
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

    def _frames(self, message: StoredMessage) -> bytes:
        content_type, headers, body = Envelope().wrap(message)
        seconds = message.created_us // 1_000_000
        properties = Properties(content_type, headers, str(message.id), seconds, message.type, message.correlation_id)
        return publish_frames(
            1, short_string("exchange", EXCHANGE), message.topic, properties, body, frame_max=self._frame_max
        )

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
