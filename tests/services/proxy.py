"""A port between a client and a server: it hands on what it gets, until it is told to go silent or to cut."""

import asyncio
import ssl
from contextlib import suppress
from typing import Self

from tests.services.serving import aborted, closed, end_serving


class Proxy:
    """Hands on to a port of this machine. Whoever connects must do so by TLS, if it is given a context."""

    def __init__(self, to_port: int, context: ssl.SSLContext | None = None) -> None:
        self._to_port = to_port
        self._context = context
        self._links: set[_Link] = set()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._sent: int | None = None
        self._answered: int | None = None
        self._poison = b""
        self.cuts = 0
        """How often it was told to cut and has done it."""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._begin, "127.0.0.1", 0, ssl=self._context)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up on everybody."""
        await end_serving(self._listener, self._serving)

    def url(self, url: str) -> str:
        """A URL of the server, through here."""
        return url.replace(f":{self._to_port}/", f":{self.port}/")

    def go_silent(self) -> None:
        """Hand on nothing more on the connections there are, as a router that has forgotten them: nor that the server
        has ended one. New ones work.
        """
        for link in self._links:
            link.silent = True

    def cut_after(self, *, sent: int | None = None, answered: int | None = None) -> None:
        """Cut a connection, once, on which clients send, or the server answers, the last of so many bytes.

        Those are still handed on.
        """
        self._sent, self._answered = sent, answered

    def cut_at(self, poison: bytes) -> None:
        """Cut every connection on which a client sends these bytes; what comes before them is handed on."""
        self._poison = poison

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving[serving] = writer
        serving.add_done_callback(self._serving.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            return await aborted(writer)  # the server is down
        link = _Link(writer, to_server)
        self._links.add(link)
        try:
            await asyncio.gather(self._send(reader, link), self._answer(from_server, link))
            for closing in (writer, to_server):
                closing.close()
            await closed(writer, to_server)
        finally:
            self._links.discard(link)
            await aborted(writer, to_server)
        return None

    async def _send(self, source: asyncio.StreamReader, link: "_Link") -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                end = self._end_of(data, link)
                await link.hand_on(data[:end], link.server)
                if end is not None:
                    self._cut(link)
        link.server.close()

    async def _answer(self, source: asyncio.StreamReader, link: "_Link") -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                end, self._answered = _room_left(data, self._answered)
                await link.hand_on(data[:end], link.client)
                if end is not None:
                    self._cut(link)
        if not link.silent:
            link.client.close()

    def _end_of(self, data: bytes, link: "_Link") -> int | None:
        """How much of what a client has sent may pass before the connection is cut; None: it is not."""
        end, self._sent = _room_left(data, self._sent)
        if end is None and self._poison:
            seen = link.tail + data
            link.tail = seen[1 - len(self._poison) :]
            if (place := seen.find(self._poison)) >= 0:
                return max(0, place - len(seen) + len(data))
        return end

    def _cut(self, link: "_Link") -> None:
        self.cuts += 1
        link.client.close()  # what was handed on to it arrives
        link.server.transport.abort()


class _Link:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.silent = False
        self.tail = b""
        """The last of what the client has sent, in case what is looked for comes in two pieces."""

    async def hand_on(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        if not self.silent:
            sink.write(data)
            await sink.drain()


def _room_left(data: bytes, room: int | None) -> tuple[int | None, int | None]:
    """How much of the data has room, if not all of it has; and the room that is left."""
    if room is None:
        return None, None
    return (room, None) if room < len(data) else (None, room - len(data))
