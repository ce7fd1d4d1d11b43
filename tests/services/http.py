"""An HTTP/1.1 server on a port of its own, in the loop of the test. It answers as it is told, also in wrong ways."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self
from uuid import UUID

import msgspec

from tests.services.serving import end_serving

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def ids(self) -> list[UUID]:
        """The messages in it."""
        content_type = self.headers.get("content-type", "")
        if content_type.startswith("application/cloudevents-batch+json"):
            return [UUID(each["id"]) for each in msgspec.json.decode(self.body)]
        return [UUID(self.headers["webhook-id"])]


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def status(code: int, text: str = "", **headers: str) -> Answer:
    """Answers with this status. Underscores in the names of headers are dashes."""
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(text)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw(("\r\n".join(lines) + "\r\n\r\n" + text).encode())


def raw(answer: bytes) -> Answer:
    async def send(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return send


class HTTPServer:
    """Takes every request, unless `answer` is set to something else.

    `arrived` has the messages that it has taken, `requests` all that was asked.
    """

    def __init__(self, context: ssl.SSLContext | None = None, *, receive_buffer: int | None = None) -> None:
        self._context = context
        self._receive_buffer = receive_buffer
        self._port = 0
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._listener: asyncio.Server | None = None
        self._frozen = False
        self.requests: list[Request] = []
        self.arrived: list[UUID] = []
        self.connections = 0
        self.at_once = self.most_at_once = 0
        """How many requests are being answered, and the most that ever were."""
        self.answer: Answer = raw(NO_CONTENT)

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://localhost:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, on the same port as before."""
        self._listener = await asyncio.start_server(self._begin, "127.0.0.1", self._port, ssl=self._context)
        self._port = self._listener.sockets[0].getsockname()[1]
        if self._receive_buffer is not None:
            self._listener.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)

    async def stop(self) -> None:
        """Hang up on all, and refuse connections."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await end_serving(listener, self._serving)

    def freeze(self) -> None:
        """Read nothing any more. The kernel still takes what its buffers hold."""
        self._frozen = True
        for writer in self._serving.values():
            writer.transport.pause_reading()  # type: ignore[attr-defined]

    def thaw(self) -> None:
        self._frozen = False
        for writer in self._serving.values():
            with suppress(RuntimeError):
                writer.transport.resume_reading()  # type: ignore[attr-defined]

    def unread_bytes(self) -> int:
        """What the kernel has taken for it."""
        sockets = [writer.get_extra_info("socket") for writer in self._serving.values()]
        found = [fcntl.ioctl(each.fileno(), termios.FIONREAD, b"\0" * 4) for each in sockets if each.fileno() >= 0]
        return sum(struct.unpack("i", each)[0] for each in found)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving[serving] = writer
        serving.add_done_callback(self._serving.pop)
        if self._frozen:
            writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _read(reader)
                self.requests.append(request)
                answer = self.answer
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    written = await self._answer(answer, request, writer)
                finally:
                    self.at_once -= 1
                if written.startswith(b"HTTP/1.1 2"):
                    self.arrived += request.ids
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, answer: Answer, request: Request, writer: asyncio.StreamWriter) -> bytes:
        """Answer, and return what was written first."""
        written: list[bytes] = []
        write = writer.write

        def noted(data: Any) -> None:
            written.append(bytes(data))
            write(data)

        writer.write = noted  # type: ignore[method-assign]
        try:
            await answer(request, writer)
        finally:
            writer.write = write  # type: ignore[method-assign]
        return b"".join(written)[:20]


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *lines = head.split("\r\n")
    method, path, _ = line.split(" ")
    headers = dict(each.split(": ", 1) for each in lines if each)
    headers = {name.lower(): value for name, value in headers.items()}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)
