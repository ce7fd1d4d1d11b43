"""A proxy between clients and a server that drops connections, delays them, closes them in one direction, or forgets
them as a router does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from tests.services.serving import aborted, closed, end_serving

__all__ = ["FaultyProxy"]


class FaultyProxy:
    """Hands on to a port of this machine. All of it is about the connections there are; new ones work."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._calm = asyncio.Event()
        self._calm.set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up on everybody, and leave nothing to the garbage collector."""
        await end_serving(self._listener, self._serving)

    def url(self, url: str) -> str:
        """A URL of the server, through here."""
        assert f":{self._to_port}/" in url
        return url.replace(f":{self._to_port}/", f":{self.port}/")

    def drop(self) -> None:
        """Cut all connections, without a goodbye."""
        for pair in list(self._pairs):
            for writer in pair:
                writer.transport.abort()

    def close_half(self, *, towards_server: bool) -> None:
        """Tell one side that nothing will come any more; what it sends still arrives."""
        for client, server in list(self._pairs):
            with suppress(OSError, RuntimeError):
                (server if towards_server else client).write_eof()

    def forget(self) -> None:
        """Hand on nothing any more. The server notices, and closes its side; nobody ever tells the clients."""
        for client, server in list(self._pairs):
            self._forgotten |= {client, server}
            server.transport.abort()

    async def delay(self, seconds: float) -> None:
        """Hand on nothing for a while; then all of it."""
        self._calm.clear()
        await asyncio.sleep(seconds)
        self._calm.set()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving[serving] = writer
        serving.add_done_callback(self._serving.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            return await aborted(writer)  # the server is down
        pair = (writer, to_server)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._hand_on(reader, to_server), self._hand_on(from_server, writer))
            if writer not in self._forgotten:
                await closed(*pair)  # what was handed on last arrives
        finally:
            self._pairs.discard(pair)
            self._forgotten.difference_update(pair)
            await aborted(*pair)
        return None

    async def _hand_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, RuntimeError):
            while data := await source.read(65536):
                await self._calm.wait()
                if sink not in self._forgotten:
                    sink.write(data)
                    await sink.drain()
        if sink not in self._forgotten:
            sink.close()
