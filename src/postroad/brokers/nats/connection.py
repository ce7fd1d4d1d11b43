"""One connection to a NATS server. It never reconnects by itself, and keeps nothing to be sent later.

The protocol is a line of text per command, so postroad speaks it itself: client libraries queue and send again what was
published in an outage, and make an object and a future of every confirm. `docs/decisions/0015` has the reasons.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from postroad.brokers.nats import frames
from postroad.brokers.nats.reading import Arrival, Failure, Info, Ping, Pong, ProtocolError, Reader, status_of
from postroad.errors import BrokerUnavailable, LoginRefused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NO_RESPONDERS", "Connection", "Denied", "LinkLost", "NoResponders", "ServerInfo"]

NO_RESPONDERS: Final = 503
WRITE_BUFFER: Final = 256 * 1024  # bytes; a call waits while the transport holds more

_LOGIN: Final = re.compile(r"(?i)authorization violation|authentication|account not found")
_DENIED: Final = re.compile(r'(?i)permissions violation for (publish|subscription) to ("(?:[^"\\]|\\.)*")')
_OWN_FAULT: Final = re.compile(r"(?i)maximum payload|protocol|parser|control line|invalid subject|message headers")


class LinkLost(Exception):
    """The connection, or a server, does not do what was asked. `outage` is what it means for the caller."""

    def __init__(
        self, reason: str, *, outage: type[BrokerUnavailable] = BrokerUnavailable, suspicious: bool = False
    ) -> None:
        super().__init__(reason)
        self.outage = outage
        self.suspicious = suspicious
        """A message that was written may have caused it."""


class Denied(LinkLost):
    """The user has no permission for a subject."""


class NoResponders(LinkLost):
    """Nothing answers on a subject."""


class ServerInfo(msgspec.Struct, frozen=True):
    """What is used of the server's INFO."""

    max_payload: int = 1_048_576
    version: str = "?"
    headers: bool = False
    jetstream: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""


class Connection(asyncio.Protocol):
    """A connection with an inbox: a subject of its own, on which answers come."""

    def __init__(self, *, inbox_prefix: str, seconds: float, heartbeat: float) -> None:
        self.seconds = seconds
        """How long an answer may take."""
        self.info = ServerInfo()
        self.inbox = f"{inbox_prefix}.{uuid4().hex}"
        self.on_denied: Callable[[str, str], None] | None = None
        """Called with a subject that this user may not publish to, and the server's words."""
        self.lost: LinkLost | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done as soon as the connection has ended, for whatever reason."""
        self._heartbeat = heartbeat
        self._transport: asyncio.Transport | None = None
        self._reader = Reader()
        self._handlers: dict[bytes, Callable[[Arrival], None]] = {}
        self._last_sid = 0
        self._requests: dict[bytes, asyncio.Future[Arrival]] = {}
        self._subjects: dict[bytes, str] = {}
        self._last_request = 0
        self._pongs: list[asyncio.Future[None]] = []
        self._informed: asyncio.Future[None] = self.closed.get_loop().create_future()
        self._room: asyncio.Future[None] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._silent_beats = 0
        self._is_tls = False

    # -- connecting --------------------------------------------------------------------------------------------------

    async def connect(
        self,
        host: str,
        port: int,
        *,
        options: Callable[[str], dict[str, Any]],
        tls: ssl.SSLContext,
        secure: bool,
        tls_first: bool,
    ) -> None:
        """Connect and log in. `options` makes what the client says, of the server's nonce. Raises LinkLost."""
        place = f"{host}:{port}"
        try:
            async with asyncio.timeout(self.seconds):
                await self._connect(host, port, options=options, tls=tls, secure=secure, tls_first=tls_first)
        except TimeoutError as error:
            self.abort("it did not answer")
            raise LinkLost(f"{place}: no connection within {self.seconds:g} seconds") from error
        except (OSError, ssl.SSLError, ProtocolError) as error:
            self.abort("it could not be connected")
            raise LinkLost(f"{place}: {_words(error)}") from error
        except LinkLost as lost:
            self.abort(str(lost))
            raise lost.__class__(f"{place}: {lost}", outage=lost.outage) from lost
        except BaseException:
            self.abort("connecting was cancelled")
            raise

    async def _connect(
        self,
        host: str,
        port: int,
        *,
        options: Callable[[str], dict[str, Any]],
        tls: ssl.SSLContext,
        secure: bool,
        tls_first: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        first: dict[str, Any] = {"ssl": tls, "server_hostname": host} if tls_first else {}
        await loop.create_connection(lambda: self, host, port, **first)
        self._is_tls = tls_first
        await asyncio.wait((self._informed, self.closed), return_when=asyncio.FIRST_COMPLETED)
        self.check()
        if (secure or self.info.tls_required) and not tls_first:
            if not (self.info.tls_required or self.info.tls_available):
                raise LinkLost("url begins with tls://, and the server has no TLS")
            assert self._transport is not None  # noqa: S101 - it is connected
            self._transport = await loop.start_tls(self._transport, self, tls, server_hostname=host)
            if self._transport is None:
                raise LinkLost("it closed the connection during the TLS handshake")
            self._is_tls = True
        if not self.info.headers:
            raise LinkLost(f"NATS {self.info.version} has no headers; postroad needs 2.11 or newer")
        assert self._transport is not None  # noqa: S101 - it is connected
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        # With a PING in the same write: to write to a server that has refused the login would hide its reason.
        await self.flush(b"CONNECT " + msgspec.json.encode(options(self.info.nonce)) + b"\r\n")
        self.subscribe(f"{self.inbox}.r.*", self._on_answer)
        await self.flush()
        self._beat = loop.call_later(self._heartbeat, self._on_beat)

    # -- sending -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise LinkLost if the connection has ended."""
        if self.lost is not None:
            raise self.lost

    def write(self, data: bytes) -> None:
        """Send these bytes. Raises LinkLost."""
        self.check()
        assert self._transport is not None  # noqa: S101 - it is connected
        self._transport.write(data)

    async def room(self, seconds: float) -> None:
        """Wait while the transport holds too much. Raises LinkLost, also when nothing moves for so long."""
        if self._room is not None:
            await asyncio.wait((self._room, self.closed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            if self._room is not None:
                raise LinkLost(f"it has read nothing for {seconds:g} seconds")

    @property
    def has_unsent(self) -> bool:
        """Whether this process may still hold bytes that were written: they would be sent some time."""
        if self._transport is None:
            return False
        # Over TLS, asyncio does not tell how much the transport below holds.
        return self._is_tls or self._transport.get_write_buffer_size() > 0

    async def flush(self, data: bytes = b"") -> None:
        """Send these bytes, and return when the server has read all that was sent. Raises LinkLost."""
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.write(data + b"PING\r\n")
        await self._answer(pong, "a PING")

    def subscribe(self, subject: str, handler: Callable[[Arrival], None]) -> int:
        """Have the handler called with everything that comes to the subject."""
        self._last_sid += 1
        self._handlers[b"%d" % self._last_sid] = handler
        self.write(frames.subscribe(subject, self._last_sid))
        return self._last_sid

    def unsubscribe(self, sid: int) -> None:
        """Have the server send no more of a subscription; its handler gets what is on its way. Raises LinkLost."""
        self.write(frames.unsubscribe(sid))

    async def request(self, subject: str, body: bytes, headers: bytes = b"") -> Arrival:
        """The answer to a request. Raises LinkLost: Denied if this user may not ask that, or NoResponders."""
        self._last_request += 1
        number = b"%d" % self._last_request
        answer: asyncio.Future[Arrival] = asyncio.get_running_loop().create_future()
        self._requests[number], self._subjects[number] = answer, subject
        try:
            self.write(frames.publish(subject, body, reply=f"{self.inbox}.r.{number.decode()}", headers=headers))
            await self._answer(answer, subject)
            return answer.result()
        finally:
            del self._requests[number], self._subjects[number]

    async def _answer(self, future: asyncio.Future[Any], what: str) -> None:
        await asyncio.wait((future, self.closed), timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return
        future.cancel()
        self.check()
        raise LinkLost(f"no answer to {what} within {self.seconds:g} seconds")

    # -- ending ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close in good order: the server has read what was sent, if it answers in time."""
        if self.lost is None:
            with suppress(LinkLost):
                await self.flush()
        self.abort("the connection was closed")

    def abort(self, reason: str) -> None:
        """End the connection now; what was not sent is discarded."""
        self._end(LinkLost(reason))
        if self._transport is not None:
            self._transport.abort()

    def _end(self, lost: LinkLost) -> None:
        if self.lost is None:
            self.lost = lost
        if self._beat is not None:
            self._beat.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def _on_beat(self) -> None:
        self._silent_beats += 1
        if self._silent_beats > 2:
            self.abort(f"it was silent for {2 * self._heartbeat:g} seconds (heartbeat)")
        elif self.lost is None:
            self.write(b"PING\r\n")
            self._pongs.append(self.closed.get_loop().create_future())
            self._beat = self.closed.get_loop().call_later(self._heartbeat, self._on_beat)

    # -- asyncio calls these -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._end(LinkLost(_words(error) if error else "the server closed the connection", suspicious=True))

    def pause_writing(self) -> None:
        self._room = self.closed.get_loop().create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        try:
            arrived = self._reader.feed(data)
        except ProtocolError as error:
            self.abort(f"it sends what NATS does not send: {error}")
            return
        handlers = self._handlers
        for frame in arrived:
            if isinstance(frame, Arrival):
                handler = handlers.get(frame.sid)
                if handler is not None:
                    handler(frame)
            else:
                self._on_other(frame)

    def _on_other(self, frame: Any) -> None:
        if isinstance(frame, Ping):
            if self.lost is None:
                self.write(b"PONG\r\n")
        elif isinstance(frame, Pong):
            if self._pongs and not (pong := self._pongs.pop(0)).done():
                pong.set_result(None)
        elif isinstance(frame, Info):
            try:
                self.info = msgspec.json.decode(frame.json, type=ServerInfo)
            except ValueError:  # ValueError: malformed JSON, or no UTF-8
                self.abort("its INFO can't be read")
            if not self._informed.done():
                self._informed.set_result(None)
        elif isinstance(frame, Failure):
            self._on_failure(frame.text)

    def _on_failure(self, text: str) -> None:
        if (denied := _DENIED.search(text)) is not None:
            subject = _unquoted(denied[2])
            if denied[1].lower() == "publish":
                self._deny(subject, text)
            elif subject.startswith(self.inbox):
                self.abort(f"{text}; allow it, or set inbox_prefix")
        elif _LOGIN.search(text):
            self._end(LinkLost(f"the login was refused: {text}", outage=LoginRefused))
        else:
            self._end(LinkLost(text, suspicious=_OWN_FAULT.search(text) is not None))

    def _deny(self, subject: str, text: str) -> None:
        for number, asked in self._subjects.items():
            if asked == subject and not self._requests[number].done():
                self._requests[number].set_exception(Denied(text))
        if self.on_denied is not None:
            self.on_denied(subject, text)

    def _on_answer(self, arrival: Arrival) -> None:
        waiting = self._requests.get(arrival.subject.rpartition(b".")[2])
        if waiting is not None and not waiting.done():
            if arrival.headers and status_of(arrival.headers)[0] == NO_RESPONDERS:
                waiting.set_exception(NoResponders("nothing answers there"))
            else:
                waiting.set_result(arrival)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _unquoted(quoted: str) -> str:
    """A text as Go quotes it; for what JSON would not quote so, the text between the quotes."""
    try:
        return str(msgspec.json.decode(quoted))
    except ValueError:
        return quoted[1:-1]
