"""A queue that takes everything, and what is in it, read faster than client libraries read."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from yarl import URL

from tests.destinations import bound_queue, rabbitmq_channel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRWPair

QUEUE = "all"
SECONDS = 120
CANCEL_OK = struct.pack(">HH", 60, 31)


async def with_queue(url: str, exchange: str = "postroad") -> None:
    """A durable queue that takes everything."""
    async with rabbitmq_channel(url) as channel:
        await bound_queue(channel, QUEUE, exchange=exchange)


async def arrivals(url: str) -> list[int]:
    """The numbers in the queue, in order, duplicates and all."""
    return [number for _, number in await deliveries(url)]


async def deliveries(url: str) -> list[tuple[str, int]]:
    """The same, each with the exchange that it came by."""

    def drained() -> list[tuple[str, int]]:
        with bare(url, SECONDS) as connection:
            return [(_exchange(deliver), int(body)) for deliver, body in connection.drain(QUEUE)]

    return await asyncio.to_thread(drained)


@contextmanager
def bare(url: str, timeout: float) -> Iterator[Bare]:
    server = URL(url)
    address = str(server.host), server.port or 5672
    with socket.create_connection(address, timeout) as connection, connection.makefile("rwb") as stream:
        yield Bare(stream, server)


def _exchange(deliver: bytes) -> str:
    at = 14 + deliver[4]  # behind the method's number, the consumer's tag, the delivery's tag and a flag
    return deliver[at + 1 : at + 1 + deliver[at]].decode()


class Bare:
    """A connection with one channel, without a client library: those take ten times as long to read a queue."""

    def __init__(self, stream: BufferedRWPair, url: URL) -> None:
        self._stream = stream
        self._confirms = False
        stream.write(b"AMQP\0\0\x09\x01")
        self._method()
        login = f"\0{url.user}\0{url.password}"
        tune = self._ask(commands.Connection.StartOk({}, "PLAIN", login, "en_US"), channel=0)
        assert isinstance(tune, commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self._ask(commands.Connection.Open(url.path[1:].replace("%2F", "/") or "/"), channel=0)
        self._ask(commands.Channel.Open())

    def drain(self, queue: str) -> list[tuple[bytes, bytes]]:
        """All that is in the queue, in order, and what comes meanwhile: the method that delivers it, and its body."""
        declared = self._ask(commands.Queue.Declare(queue=queue, passive=True))
        assert isinstance(declared, commands.Queue.DeclareOk)
        self._ask(commands.Basic.Consume(queue=queue, consumer_tag="drain", no_ack=True))
        drained = [self._delivery() for _ in range(declared.message_count or 0)]
        self._send(commands.Basic.Cancel("drain"), channel=1)
        self._stream.flush()
        while (method := self._frame())[:4] != CANCEL_OK:
            drained.append((method, self._content()))  # it was on its way when we had enough
        return drained

    def put(self, queue: str, body: bytes) -> None:
        """Put a message that lasts into the queue, and see it confirmed."""
        if not self._confirms:
            self._ask(commands.Confirm.Select())
            self._confirms = True
        self._send(commands.Basic.Publish(routing_key=queue), channel=1)
        self._send(ContentHeader(body_size=len(body), properties=commands.Basic.Properties(delivery_mode=2)), channel=1)
        self._send(ContentBody(body), channel=1)
        assert isinstance(self._method(), commands.Basic.Ack)

    def _delivery(self) -> tuple[bytes, bytes]:
        return self._frame(), self._content()

    def _content(self) -> bytes:
        self._frame()  # the properties
        return self._frame()

    def _ask(self, request: pamqp.frame.FrameTypes, channel: int = 1) -> pamqp.frame.FrameTypes:
        self._send(request, channel)
        return self._method()

    def _send(self, frame: pamqp.frame.FrameTypes, channel: int) -> None:
        self._stream.write(pamqp.frame.marshal(frame, channel))

    def _method(self) -> pamqp.frame.FrameTypes:
        """The next method. Raises ConnectionError when the broker closes the connection, as one that stops does."""
        self._stream.flush()
        payload = self._frame()
        method = pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")[2]
        if isinstance(method, commands.Connection.Close | commands.Channel.Close):
            raise ConnectionAbortedError(f"the broker closed the connection: {method.reply_text}")
        return method

    def _frame(self) -> bytes:
        (size,) = struct.unpack(">xxxI", self._read(7))
        return self._read(size + 1)[:-1]

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("the connection ended in the middle of a frame")
        return data
