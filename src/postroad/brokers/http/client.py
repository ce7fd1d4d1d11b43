"""HTTP/1.1 with kept-alive connections: those of aiohttp's connector, and the answers as its parser reads them.

aiohttp's sessions are not used, because they cost as much again for what a webhook does not need: nothing is followed,
decompressed or remembered (redirects, bodies, cookies), and no variable of the environment is used. What is done here:

- The address that a socket connects to is checked, see `networks`. With a proxy, only the proxy is connected to.
- A request that ends without an answer is not sent any more: what was not written yet is dropped with its connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, StreamWriter
from yarl import URL

from postroad.brokers.http.answers import SHOWN_TEXT, Answer
from postroad.brokers.http.networks import why_refused
from postroad.causes import chain
from postroad.errors import InvalidSetting
from postroad.safe_text import without_passwords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohappyeyeballs import AddrInfoType
    from aiohttp.connector import Connection

    from postroad.brokers.http.networks import Network
    from postroad.brokers.http.settings import PublisherSettings

__all__ = ["CLOSED", "Client", "NoAnswer", "Unreachable"]

CLOSED: Final = "the publisher was closed"

KEEPALIVE_SECONDS: Final = 4.0
"""How long an idle connection is kept. Most servers close one after 5 seconds, and what is sent just then is lost."""
BODY_SECONDS: Final = 2.0
"""How long the body of an answer is waited for. The answer counts without it."""
PIECE: Final = 1 << 16
"""Bytes. A larger body is written piece by piece, as fast as the endpoint reads it."""


class Unreachable(Exception):
    """No connection could be made, so nothing was sent."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and was not answered."""


class _Cut(Exception):
    """The connection ended before the answer."""


class Client:
    """The connections to one host."""

    def __init__(self, origin: str, settings: PublisherSettings, allowed: Sequence[Network]) -> None:
        """`origin` is the scheme, the host and the port."""
        self._origin = URL(origin, encoded=True)
        self._concurrency = settings.concurrency
        self._largest_answer = settings.max_answer_size
        self._answer_seconds = settings.seconds("answer_timeout")
        self._timeout = aiohttp.ClientTimeout(connect=settings.seconds("connect_timeout"))
        self._proxy = None if settings.proxy is None else URL(settings.proxy)
        self._allowed = tuple(allowed)
        secure = self._origin.scheme == "https"
        self._ssl = _context(settings) if secure else None
        # A proxy gets the whole URL, unless it only passes on what is encrypted.
        self._target_prefix = "" if self._proxy is None or secure else origin
        self._connector: aiohttp.TCPConnector | None = None
        self.closings = 0
        """How often it was closed. What began before does not go on afterwards."""

    async def connect(self) -> None:
        """Connect, and keep the connection for a request. Raises Unreachable."""
        try:
            async with asyncio.timeout(self._answer_seconds):
                connection = await self._connected()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(self._why(error)) from error
        connection.release()

    async def post(self, target: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request, and return its answer. `target` is a path with its query. Raises Unreachable or NoAnswer.

        A connection that ends before anything of the answer came is given one more chance: the endpoint may have closed
        an idle one just when the request was written.
        """
        closings = self.closings
        try:
            return await self._post(target, body, headers)
        except _Cut as cut:
            if self.closings != closings:
                raise NoAnswer(CLOSED) from cut
        try:
            return await self._post(target, body, headers)
        except _Cut as cut:
            raise NoAnswer(f"it ended the connection without an answer: {cut}") from cut

    async def _post(self, target: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            return await self._exchange(target, body, headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            raise Unreachable(self._why(error)) from error
        except TimeoutError as error:
            raise NoAnswer(f"it did not answer within {self._answer_seconds:g} s (answer_timeout)") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionError, OSError) as error:
            raise _Cut(self._why(error)) from error
        except (aiohttp.ClientError, HttpProcessingError, ValueError) as error:
            raise NoAnswer(f"its answer can't be read: {self._why(error)}") from error

    async def _exchange(self, target: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request, and read its answer."""
        connection: Connection | None = None
        writing: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._answer_seconds) as answering:
                connection = await self._connected()
                protocol, transport = _ends(connection)
                protocol.set_response_params(read_until_eof=True, auto_decompress=False)
                head = self._head(target, len(body), headers)
                if len(body) <= PIECE:
                    transport.write(head + body)
                else:  # the answer may come before the endpoint has read all of it
                    transport.write(head)
                    writing = asyncio.create_task(_write(protocol, body))
                message, content = await protocol.read()
                while 100 <= message.code < 200 and message.code != 101:  # it says that the answer is still to come
                    message, content = await protocol.read()
            text = "" if content.at_eof() else await self._text(content, answering.when())
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        finally:
            is_written = writing is None or not writing.cancel()
        if is_written:
            connection.release()  # which closes it if the answer's body did not end
        else:
            connection.close()
        found = message.headers
        return Answer(message.code, found.get("Retry-After"), found.get("Location"), text)

    def _head(self, target: str, size: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"POST {self._target_prefix}{target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._host.headers.items()]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {size}", "", ""]
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:  # what made them has checked them
            raise ValueError("a header has a line break")
        return head.encode()

    async def _text(self, content: aiohttp.StreamReader, until: float | None) -> str:
        """The beginning of the body. The answer counts, whatever happens to its body."""
        begin, size = b"", 0
        soon = asyncio.get_running_loop().time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(soon if until is None else min(soon, until)):
                async for piece in content.iter_any():
                    begin += piece[: SHOWN_TEXT * 4 - len(begin)]
                    size += len(piece)
                    if size > self._largest_answer:
                        break
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            pass
        return begin.decode(errors="replace")

    async def close(self) -> None:
        """Close all connections. What still waits for an answer gets none."""
        self.closings += 1
        connector, self._connector = self._connector, None
        if connector is not None:
            await connector.close()

    # -- connections -------------------------------------------------------------------------------------------------

    async def _connected(self) -> Connection:
        """A connection that is idle, or a new one."""
        try:
            return await self._opened().connect(self._host, traces=[], timeout=self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError from error

    def _opened(self) -> aiohttp.TCPConnector:
        if self._connector is None or self._connector.closed:
            self._connector = _Connector(
                limit=self._concurrency + 1,  # and one for `connect`
                keepalive_timeout=KEEPALIVE_SECONDS,
                ssl=self._ssl or True,
                socket_factory=None if self._proxy is not None else self._socket,
            )
            # What to connect to. Its headers are `Host`, and what a proxy that gets whole URLs wants.
            self._host = aiohttp.ClientRequest(
                "GET",
                self._origin,
                loop=asyncio.get_running_loop(),
                ssl=self._ssl or True,
                proxy=self._proxy,
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            )
        return self._connector

    def _socket(self, found: AddrInfoType) -> socket.socket:
        """A socket for an address that a name was resolved to."""
        family, type, protocol, _, place = found
        address = str(place[0])
        if why := why_refused(address, self._allowed):
            text = f"its address {address} is {why}, to which no connection is allowed (allow_networks)"
            raise OSError(errno.EACCES, text)
        return socket.socket(family, type, protocol)

    def _why(self, error: BaseException) -> str:
        if isinstance(error, aiohttp.ConnectionTimeoutError) or (isinstance(error, TimeoutError) and not str(error)):
            return f"it could not be connected to within {self._timeout.connect:g} s (connect_timeout)"
        texts = [text for each in chain(error) if (text := _words(each))]
        return without_passwords(texts[0]) if texts else type(error).__name__


def _words(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, HttpProcessingError):
        return f"{error.code} {' '.join(error.message.split())}"
    if isinstance(error, aiohttp.ClientResponseError):  # of a proxy
        return f"{error.status} {' '.join(error.message.split())}"
    return str(error)


def _ends(connection: Connection) -> tuple[ResponseHandler, asyncio.Transport]:
    """What reads from a connection, and what writes to it. Raises ServerDisconnectedError."""
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None:
        raise aiohttp.ServerDisconnectedError
    return protocol, transport


async def _write(protocol: ResponseHandler, body: bytes) -> None:
    """Write a body piece by piece. If the connection ends, the reader of the answer says so."""
    writer, view = StreamWriter(protocol, asyncio.get_running_loop()), memoryview(body)
    with suppress(aiohttp.ClientError, OSError):
        for begin in range(0, len(body), PIECE):
            await writer.write(view[begin : begin + PIECE])


class _Connector(aiohttp.TCPConnector):
    """Drops what a connection has not written yet when it is closed. asyncio would go on to write it, and aiohttp has
    no setting for that.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        made: partial[ResponseHandler] = partial(_make_protocol, asyncio.get_running_loop())
        self._factory = made


class _Protocol(ResponseHandler):
    def close(self) -> None:
        self.abort()


def _make_protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _Protocol(loop=loop)


def _context(settings: PublisherSettings) -> ssl.SSLContext:
    for name in ("ca_file", "cert_file", "key_file"):
        file = getattr(settings, name)
        if file is not None and not Path(file).is_file():
            raise InvalidSetting(f"{name} is {file!r}, which is not a file", settings=(name,))
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise InvalidSetting(f"ca_file is {settings.ca_file!r}, which has no certificates: {error}") from None
    if settings.cert_file is not None:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        except (ssl.SSLError, OSError) as error:
            raise InvalidSetting(
                f"cert_file is {settings.cert_file!r}, which can't be used with key_file: {error}",
                settings=("cert_file", "key_file"),
            ) from None
    return context
