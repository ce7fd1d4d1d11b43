"""A small HTTP server for metrics and probes, in the event loop of the relay or consumer.

It listens on 127.0.0.1 unless told otherwise, has no access control, and answers nothing but `/metrics`, `/livez` and
`/readyz`. It must not disturb what runs beside it, so everything is bounded: a request's size and time, the time to
take an answer, and the number of connections. Each connection gets one answer. How long an answer takes to be made is
for what makes it to bound: a database that hangs must not cost the values that don't come from there.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self

from postroad.errors import InvalidSetting
from postroad.events import MetricsServed
from postroad.listeners import tell
from postroad.metrics.answers import Answer, answer

if TYPE_CHECKING:
    from postroad.metrics.collect import Metrics

__all__ = ["MetricsServer"]

MOST_CONNECTIONS: Final = 20
LONGEST_REQUEST: Final = 16 * 1024
REQUEST_SECONDS: Final = 5.0
"""How long a client may take to send its request."""
ANSWER_SECONDS: Final = 10.0
"""How long a client may take to receive the answer."""

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2000}) HTTP/1\.[01]")
_BAD_REQUEST: Final = Answer(400, "text/plain; charset=utf-8", b"this is no HTTP/1.1 request\n")


class MetricsServer:
    """Serves `metrics` while the `async with` block runs, and enters `metrics` itself."""

    def __init__(self, metrics: Metrics, *, port: int, host: str = "127.0.0.1") -> None:
        """`port` 0 is any free one; `port` then says which."""
        self.host = host
        self.port = port
        self.metrics = metrics
        self._serving: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen. Raises InvalidSetting if that is not possible, such as on a port that is in use."""
        try:
            server = await asyncio.start_server(self._connected, self.host, self.port, limit=LONGEST_REQUEST)
        except (OSError, UnicodeError, OverflowError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise InvalidSetting(
                f"metrics can't be served: metrics_host is {self.host!r} and metrics_port {self.port}: {why}",
                settings=("metrics_host", "metrics_port"),
            ) from error
        self.port = server.sockets[0].getsockname()[1]
        self._stack.push_async_callback(self._close, server)
        await self._stack.enter_async_context(self.metrics)
        tell(MetricsServed(address=f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/metrics"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="postroad metrics request")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await _requested(reader)
            found = _BAD_REQUEST if request is None else await answer(self.metrics, *request)
            writer.write(_encoded(found, body=request is None or request[0] != "HEAD"))
            async with asyncio.timeout(ANSWER_SECONDS):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # the client is gone, or too slow
        finally:
            # A client that does not take its answer must not keep it in memory.
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, writer.transport.abort)
            with suppress(Exception):
                writer.close()


async def _requested(reader: asyncio.StreamReader) -> tuple[str, str] | None:
    """The method and the path that are asked for; None if this is no request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    line = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
    return None if line is None else (line[1].decode(), line[2].decode().partition("?")[0])


def _encoded(answer: Answer, *, body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (answer.body if body else b"")
