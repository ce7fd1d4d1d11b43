"""A queue that takes everything, and what is in it, read faster than client libraries read."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import commands
from yarl import URL

from tests.destinations import bound_queue, rabbitmq_channel

if TYPE_CHECKING:
    from io import BufferedRWPair

QUEUE = "all"
SECONDS = 120


async def with_queue(url: str) -> None:
    """A durable queue that takes everything."""
    async with rabbitmq_channel(url) as channel:
        await bound_queue(channel, QUEUE)


async def arrivals(url: str) -> list[int]:
    """The numbers in the queue, in order, duplicates and all."""

    def bodies(server: URL) -> list[bytes]:
        address = str(server.host), server.port or 5672
        with socket.create_connection(address, SECONDS) as connection, connection.makefile("rwb") as stream:
            return Bare(stream, server).drain(QUEUE)

    return [int(body) for body in await asyncio.to_thread(bodies, URL(url))]


class Bare:
    """A connection with one channel, without a client library: those take ten times as long to read a queue."""

    def __init__(self, stream: BufferedRWPair, url: URL) -> None:
        self._stream = stream
        stream.write(b"AMQP\0\0\x09\x01")
        self._method()
        login = f"\0{url.user}\0{url.password}"
        tune = self._ask(commands.Connection.StartOk({}, "PLAIN", login, "en_US"), channel=0)
        assert isinstance(tune, commands.Connection.Tune)
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self._ask(commands.Connection.Open(url.path[1:].replace("%2F", "/") or "/"), channel=0)
        self._ask(commands.Channel.Open())

    def drain(self, queue: str) -> list[bytes]:
        """The bodies of all that is in the queue, in order, and of what comes meanwhile."""
        declared = self._ask(commands.Queue.Declare(queue=queue, passive=True))
        assert isinstance(declared, commands.Queue.DeclareOk)
        self._ask(commands.Basic.Consume(queue=queue, consumer_tag="drain", no_ack=True))
        bodies = []
        for _ in range(declared.message_count or 0):
            self._frame()  # basic.deliver
            bodies.append(self._content())
        self._send(commands.Basic.Cancel("drain"), channel=1)
        while not isinstance(self._method(), commands.Basic.CancelOk):
            bodies.append(self._content())  # it was on its way when we had enough
        return bodies

    def _content(self) -> bytes:
        self._frame()  # the properties
        return self._frame()

    def _ask(self, request: pamqp.frame.FrameTypes, channel: int = 1) -> pamqp.frame.FrameTypes:
        self._send(request, channel)
        return self._method()

    def _send(self, frame: pamqp.frame.FrameTypes, channel: int) -> None:
        self._stream.write(pamqp.frame.marshal(frame, channel))

    def _method(self) -> pamqp.frame.FrameTypes:
        self._stream.flush()
        payload = self._frame()
        return pamqp.frame.unmarshal(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")[2]

    def _frame(self) -> bytes:
        (size,) = struct.unpack(">xxxI", self._stream.read(7))
        return self._stream.read(size + 1)[:-1]
