"""HTTP/1.1 with kept-alive connections, through aiohttp, and with what aiohttp does not do by itself.

- The address that a socket connects to is checked, see `networks`. With a proxy, only the proxy is connected to.
- A request that ends without an answer is not sent any more: what was not written yet is dropped with its connection.
- Nothing is followed, decompressed or remembered (redirects, bodies, cookies), and no variable of the environment is
  used.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from postroad.brokers.http.answers import SHOWN_TEXT, Answer
from postroad.brokers.http.networks import why_refused
from postroad.causes import chain
from postroad.errors import InvalidSetting
from postroad.safe_text import without_passwords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohappyeyeballs import AddrInfoType

    from postroad.brokers.http.networks import Network
    from postroad.brokers.http.settings import PublisherSettings

__all__ = ["CLOSED", "Client", "NoAnswer", "Unreachable"]

CLOSED: Final = "the publisher was closed"

KEEPALIVE_SECONDS: Final = 4.0
"""How long an idle connection is kept. Most servers close one after 5 seconds, and what is sent just then is lost."""
BODY_SECONDS: Final = 2.0
"""How long the body of an answer is waited for. The answer counts without it."""
LARGE_BODY: Final = 1 << 20
"""Bytes. aiohttp wants larger bodies as files, so that writing them does not block the loop."""


class Unreachable(Exception):
    """No connection could be made, so nothing was sent."""


class NoAnswer(Exception):
    """The request was sent, at least in part, and was not answered."""


class _Cut(Exception):
    """The connection ended before the answer."""


class Client:
    """The connections to one host."""

    def __init__(self, settings: PublisherSettings, allowed: Sequence[Network], *, secure: bool) -> None:
        self._concurrency = settings.concurrency
        self._largest_answer = settings.max_answer_size
        self._answer_seconds = settings.seconds("answer_timeout")
        self._timeout = aiohttp.ClientTimeout(total=self._answer_seconds, connect=settings.seconds("connect_timeout"))
        self._proxy = None if settings.proxy is None else URL(settings.proxy)
        self._allowed = tuple(allowed)
        self._ssl = _context(settings) if secure else None
        self._session: aiohttp.ClientSession | None = None
        self.closings = 0
        """How often it was closed. What began before does not go on afterwards."""

    async def connect(self, url: str) -> None:
        """Connect, and keep the connection for a request. Raises Unreachable."""
        session = self._opened()
        request = aiohttp.ClientRequest(
            "POST", URL(url, encoded=True), loop=asyncio.get_running_loop(), ssl=self._ssl or True, proxy=self._proxy
        )
        assert session.connector is not None  # noqa: S101 - it is not closed
        try:
            async with asyncio.timeout(self._answer_seconds):
                connection = await session.connector.connect(request, traces=[], timeout=self._timeout)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(self._why(error)) from error
        connection.release()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request, and return its answer. Raises Unreachable or NoAnswer.

        A connection that ends before anything of the answer came is given one more chance: the endpoint may have closed
        an idle one just when the request was written.
        """
        closings = self.closings
        try:
            return await self._post(url, body, headers)
        except _Cut as cut:
            if self.closings != closings:
                raise NoAnswer(CLOSED) from cut
        try:
            return await self._post(url, body, headers)
        except _Cut as cut:
            raise NoAnswer(f"it ended the connection without an answer: {cut}") from cut

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        data = body if len(body) < LARGE_BODY else BytesIO(body)
        try:
            async with self._opened().post(
                URL(url, encoded=True), data=data, headers=headers, allow_redirects=False, proxy=self._proxy
            ) as response:
                text = "" if response.content.at_eof() else await self._text(response)
                found = response.headers
                return Answer(response.status, found.get("Retry-After"), found.get("Location"), text)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            raise Unreachable(self._why(error)) from error
        except TimeoutError as error:
            raise NoAnswer(f"it did not answer within {self._answer_seconds:g} s (answer_timeout)") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionError, OSError) as error:
            raise _Cut(self._why(error)) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise NoAnswer(f"its answer can't be read: {self._why(error)}") from error

    async def _text(self, response: aiohttp.ClientResponse) -> str:
        """The beginning of the body. The answer counts, whatever happens to its body: if that is too large, or does not
        come, the connection is closed.
        """
        begin, size = b"", 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in response.content.iter_any():
                    begin += piece[: SHOWN_TEXT * 4 - len(begin)]
                    size += len(piece)
                    if size > self._largest_answer:
                        response.close()
                        break
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            response.close()
        return begin.decode(errors="replace")

    async def close(self) -> None:
        """Close all connections. What still waits for an answer gets none."""
        self.closings += 1
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- connections -------------------------------------------------------------------------------------------------

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = _Connector(
                limit=self._concurrency + 1,  # and one for `connect`
                keepalive_timeout=KEEPALIVE_SECONDS,
                ssl=self._ssl or True,
                socket_factory=None if self._proxy is not None else self._socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                skip_auto_headers=("Content-Type", "Accept", "Accept-Encoding"),
            )
        return self._session

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
    """What an error says, in one line. What aiohttp says of an answer ends with the URL, whose query may be secret."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {' '.join(error.message.split())}"
    return str(error)


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
