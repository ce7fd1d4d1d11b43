"""A connection to a Redis server: commands go out as they are given, and each gets its answer, in order.

redis-py is not used: it sends the commands of a broken pipeline again, in silence, and then does not tell which of them
were answered. Here nothing is ever sent twice, and what was answered before a connection broke is known.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import hiredis

from postroad.brokers.redis.resp import command
from postroad.errors import BrokerUnavailable, LoginRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Connection", "Exchange", "LinkLost", "ReplyError"]

ReplyError = hiredis.ReplyError

_NOTHING: Final = object()
_NO_LOGIN: Final = ("WRONGPASS", "NOAUTH", "ERR AUTH", "ERR invalid password")


class LinkLost(Exception):
    """The connection is of no use any more, or never was."""

    def __init__(self, reason: str, *, login_refused: bool = False, suspicious: bool = False) -> None:
        super().__init__(reason)
        self.outage: type[BrokerUnavailable] = LoginRefused if login_refused else BrokerUnavailable
        self.suspicious = suspicious
        """What was sent may have caused it."""


class Exchange:
    """Some commands that were sent together, and their answers so far."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.replies: list[Any] = []
        """In the order of the commands. An error of one command is a ReplyError among them."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_retrieve_exception)

    @property
    def is_complete(self) -> bool:
        """Each command has its answer."""
        return len(self.replies) == self.count


class Connection(asyncio.Protocol):
    """An open connection. What was sent first is answered first."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[Exchange] = deque()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._last_answer = 0.0
        self.lost: LinkLost | None = None
        """Why it has ended, once it has."""

    @property
    def is_idle(self) -> bool:
        """It can be used, and no answer is to come."""
        return self.lost is None and not self._exchanges

    # -- sending -----------------------------------------------------------------------------------------------------

    def begin(self, count: int) -> Exchange:
        """Announce so many commands, which `write` then sends. Raises LinkLost."""
        if self.lost is not None:
            raise self.lost
        exchange = Exchange(count)
        if not self._exchanges:
            self._last_answer = asyncio.get_running_loop().time()
        self._exchanges.append(exchange)
        return exchange

    def write(self, data: bytes) -> None:
        """Send whole commands of the exchange that was begun last."""
        if self._transport is not None and self.lost is None:
            self._transport.write(data)

    async def drain(self, seconds: float) -> None:
        """Wait until there is room for more. Raises LinkLost when the server reads nothing for so long."""
        if self.lost is None and not self._writable.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._writable.wait()
            except TimeoutError:
                raise LinkLost(f"it has read nothing for {seconds:g} seconds") from None
        if self.lost is not None:
            raise self.lost

    async def wait(self, exchange: Exchange, seconds: float) -> list[Any]:
        """The answers. Each one restarts the time. Raises LinkLost."""
        now = asyncio.get_running_loop().time
        while not exchange.done.done():
            left = self._last_answer + seconds - now()
            if left <= 0:
                raise LinkLost(f"it has answered nothing for {seconds:g} seconds")
            await asyncio.wait((exchange.done,), timeout=left)
        exchange.done.result()
        return exchange.replies

    async def ask_all(self, commands: Iterable[bytes], seconds: float) -> list[Any]:
        """Send commands, and return their answers; errors are among them. Raises LinkLost."""
        all = list(commands)
        exchange = self.begin(len(all))
        self.write(b"".join(all))
        return await self.wait(exchange, seconds)

    async def ask(self, *arguments: str | int | bytes, seconds: float) -> Any:
        """Send one command, and return its answer. Raises LinkLost, also for an error of the server."""
        (reply,) = await self.ask_all([command(*arguments)], seconds)
        if isinstance(reply, ReplyError):
            raise LinkLost(str(reply), login_refused=str(reply).startswith(_NO_LOGIN))
        return reply

    # -- ending ------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End it now: nothing of what was written and has not left this process is sent any more."""
        self._end(LinkLost(reason))
        if self._transport is not None:
            self._transport.abort()

    async def close(self, seconds: float = 1.0) -> None:
        """End it, after what was written is sent, if that takes no longer than this."""
        if self._transport is None:
            return
        self._end(LinkLost("the connection was closed"))
        self._transport.close()
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()

    def _end(self, lost: LinkLost) -> None:
        self.lost = self.lost or lost
        self._writable.set()
        for exchange in self._exchanges:
            if not exchange.done.done():
                exchange.done.set_exception(self.lost)
        self._exchanges.clear()

    # -- called by asyncio -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._last_answer = asyncio.get_running_loop().time()
        replies: list[Any] = []
        try:
            self._reader.feed(data)
            replies.extend(iter(self._reader.gets, _NOTHING))
        except hiredis.HiredisError as error:
            self._answered(replies)
            self.abort(f"it does not speak Redis' protocol: {error}")
        else:
            self._answered(replies)

    def _answered(self, replies: list[Any]) -> None:
        while replies:
            if not self._exchanges:
                # A server says so before it hangs up: it has too many clients, for example.
                self._end(LinkLost(str(replies[0]), suspicious=True))
                return
            exchange = self._exchanges[0]
            missing = exchange.count - len(exchange.replies)
            exchange.replies += replies[:missing]
            replies = replies[missing:]
            if exchange.is_complete:
                self._exchanges.popleft()
                if not exchange.done.done():
                    exchange.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(LinkLost(str(error) if error else "the server has closed the connection", suspicious=True))
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


def _retrieve_exception(future: asyncio.Future[None]) -> None:
    """Keep asyncio from logging a failure that no call waits for."""
    if not future.cancelled():
        future.exception()
