"""The one place that touches aiormq: a connection that notices alarms, and channels that follow whole pages.

aiormq's own `basic_publish` takes a task, a lock, two futures and a write per message. A `PageChannel` writes many
messages at once and counts the answers itself; opening, closing, heartbeats and the exchange's declaration stay
aiormq's. Whatever aiormq raises leaves this module as `LinkLost`.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import Connection
from aiormq.exceptions import AMQPError, InvalidFrameError, ProbableAuthenticationError
from pamqp import commands
from pamqp.header import ContentHeader

from postroad.brokers.rabbitmq.confirms import Page
from postroad.errors import BrokerUnavailable, LoginRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from yarl import URL

    from postroad.message import StoredMessage

__all__ = ["CLOSE_SECONDS", "AlarmConnection", "LinkLost", "PageChannel", "translated"]


CLOSE_SECONDS: Final = 5
"""How long a connection may take to close in good order."""
_FORCED: Final = "CONNECTION_FORCED"
"""How a broker begins its last words when it is shut down, or when an operator closes the connection."""
_MESSAGE_UNRELATED: Final = frozenset({403, 404})
"""Why a channel is closed whatever the message: no permission, no exchange."""


class LinkLost(Exception):
    """The broker cannot be asked over this channel any more.

    `code` is set when the broker closed only the channel, and is its reason as AMQP numbers it. `suspicious`: it ended
    upon what was written, as far as can be seen.
    """

    outage: type[BrokerUnavailable] = BrokerUnavailable
    """What it is outside of this package."""

    def __init__(self, reason: str, code: int | None = None, *, suspicious: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.suspicious = suspicious


class LoginLost(LinkLost):
    """The broker refuses the user or its password."""

    outage = LoginRefused


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever aiormq raises into LinkLost; leave alone only a cancellation that is meant for us."""
    try:
        yield
    except asyncio.CancelledError as error:
        # aiormq fails its futures with this one too, when it has closed a connection by itself.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _lost(error) from error
    except Exception as error:
        raise _lost(error) from error


def _lost(error: BaseException | None, *, upon_write: bool = False) -> LinkLost:
    """What a foreign exception means, in particular one that came upon what was written."""
    match error:
        case LinkLost():
            return error
        case None | asyncio.CancelledError():
            reason = "the connection was closed, because nothing was heard from the broker for too long"
        case TimeoutError():
            reason = "it did not answer in time"
        case ProbableAuthenticationError():
            return LoginLost(f"the login was refused; check username and password ({error})")
        case InvalidFrameError() if "OpenOk" in str(error):  # aiormq does not tell what the broker said
            reason = "the vhost does not exist, the user has no access to it, or it has too many connections"
        case AMQPError() | OSError() if error.args:
            reason = ", ".join(str(part) for part in error.args if part is not None)
            return LinkLost(reason, suspicious=upon_write and _FORCED not in reason)
        case _:
            reason = f"{type(error).__name__}: {error}"
    return LinkLost(reason)


class PageChannel(Channel):
    """A channel in confirm mode that one call at a time uses for one page."""

    connection: AlarmConnection

    def __init__(self, connection: AlarmConnection, number: int) -> None:
        super().__init__(connection, number, frame_buffer=connection.FRAME_BUFFER_SIZE)
        self.page = Page(first_tag=1)
        self._patience = connection.patience
        self._waiting: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._ended: LinkLost | None = None

    @property
    def clean(self) -> bool:
        """It can be used for another page: nothing that was written on it waits for an answer."""
        return self._ended is None and not self.is_closed and self.page.answered

    async def declare_exchange(self, name: str, *, only_check: bool) -> None:
        """Declare a durable topic exchange, or make sure that there is an exchange of that name."""
        try:
            with translated():
                await self.exchange_declare(name, exchange_type="topic", durable=True, passive=only_check)
        except LinkLost as lost:
            raise self._ended or lost from lost  # what the broker said, with its code

    def begin(self) -> Page:
        """A new page. The channel must be clean."""
        self.page = Page(self.page.next_tag)
        return self.page

    async def write(self, messages: Sequence[StoredMessage], frames: bytes) -> None:
        """Write the frames of these messages, and wait until there is room for more."""
        room = self._new_wait()
        chunk = ChannelFrame(payload=frames, should_close=False, drain_future=room)
        if self.write_queue.full():
            # Should this wait be broken off, nobody knows how tags count on: the channel has ended unless it succeeds.
            self._ended = broken_off = LinkLost("a write was broken off")
            with translated():
                await asyncio.wait_for(self.write_queue.put(chunk), self._patience)
            if self._ended is broken_off:
                self._ended = None
        else:
            self.write_queue.put_nowait(chunk)
        self.page.wrote(messages)
        await self._wait(room)

    async def settled(self) -> None:
        """Wait until the broker has answered for all of the page, as long as it goes on answering."""
        if not self.page.answered:
            await self._wait(self._new_wait())

    def give_up(self, error: LinkLost) -> None:
        """Wake the call that waits: no answer will come."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _new_wait(self) -> asyncio.Future[None]:
        if self._ended is not None:
            raise self._ended
        self.connection.check_alarm()
        # aiormq fails this future when the channel or the connection closes, also when they have closed already.
        self._waiting = self.create_future()
        self._heard = self.loop.time()
        return self._waiting

    async def _wait(self, future: asyncio.Future[None]) -> None:
        """Wait for the future; every answer of the broker starts the time anew."""
        while not future.done():
            left = self._heard + self._patience - self.loop.time()
            if left <= 0:
                raise LinkLost(f"it has confirmed nothing for {self._patience:g} seconds")
            await asyncio.wait((future,), timeout=left)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            raise _lost(error, upon_write=True) from error

    # aiormq calls these for the frames that it reads. The first two replace its bookkeeping of single messages.

    async def _on_confirm_frame(self, frame: Any) -> None:
        if isinstance(frame, commands.Basic.Nack):
            self.page.nacked(frame.delivery_tag or 0, multiple=bool(frame.multiple))
        else:
            self.page.acked(frame.delivery_tag, multiple=bool(frame.multiple))
        self._heard = self.loop.time()
        # A call that still waits for room need not: what is answered has been read.
        if self.page.answered and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _on_return_frame(self, frame: commands.Basic.Return) -> None:
        header = await self._get_frame()
        if not isinstance(header, ContentHeader):
            raise InvalidFrameError(f"a content header was due, not {header!r}")
        await self._read_content(frame, header)  # the body is sent back too
        self.page.returned(
            header.properties.message_id,
            f"no queue takes the routing key {frame.routing_key!r} from the exchange {frame.exchange!r}; bind one "
            f"({frame.reply_code} {frame.reply_text})",
        )

    async def _on_close_frame(self, frame: commands.Channel.Close) -> None:
        # Known at once, because frames that are written after aiormq's answer would cost the whole connection.
        suspicious = frame.reply_code not in _MESSAGE_UNRELATED
        self._ended = LinkLost(frame.reply_text or "the channel was closed", frame.reply_code, suspicious=suspicious)
        self.give_up(self._ended)
        await super()._on_close_frame(frame)


class AlarmConnection(Connection):
    """A connection that knows when the broker blocks it, and keeps channels for reuse.

    Its channels wait for an answer as long as `patience` says, in seconds.
    """

    def __init__(self, url: URL, patience: float) -> None:
        super().__init__(url)
        self.patience = patience
        self.blocked: str | None = None
        """The alarm, as long as there is one."""
        self.declared = False
        """The exchange was declared or checked since this was last in doubt."""
        self.largest_message: int | None = None
        """The broker's own limit, once it has told it."""
        self._kept: list[PageChannel] = []
        self._last_number = 0

    def check_alarm(self) -> None:
        """Raise LinkLost while the broker blocks us."""
        if self.blocked is not None:
            raise LinkLost(self.blocked)

    async def take(self) -> PageChannel:
        """A channel for one page. Give it back, whatever happened."""
        self._kept = [channel for channel in self._kept if not channel.is_closed]
        for channel in self._kept:
            if channel.clean:
                self._kept.remove(channel)
                return channel
        channel = PageChannel(self, self._free_number())
        self.channels[channel.number] = channel
        with translated():
            await channel.open()
        return channel

    def give_back(self, channel: PageChannel) -> None:
        """Keep the channel. If answers are still to come, it is used again only after them."""
        self._kept.append(channel)

    async def hang_up(self, reason: str, seconds: float) -> None:
        """Close the connection, in good order if that takes no longer than this. Whoever waits is told the reason."""
        self._tell_all(reason)
        with suppress(TimeoutError):
            await self.close(LinkLost(reason), timeout=seconds)

    def _tell_all(self, reason: str) -> None:
        for channel in self.channels.values():
            if isinstance(channel, PageChannel):
                channel.give_up(LinkLost(reason))

    def _free_number(self) -> int:
        # Numbers go round, because one that was just closed cannot be used until both sides know of it.
        most = self.connection_tune.channel_max or 65535
        for _ in range(most):
            self._last_number = self._last_number % most + 1
            if self.channels.get(self._last_number) is None:
                return self._last_number
        raise LinkLost(f"all {most:,} channels of the connection are in use")

    # These two replace handlers of aiormq that only write a line to the log. Their names are private to it, but there
    # is no other way in; should they change, our patience still ends in an alarm, and the tests notice the change.

    async def _Connection__handle_connection_blocked(self, frame: commands.Connection.Blocked) -> None:  # noqa: N802
        self.blocked = f"the broker blocks publishers because of an alarm: {frame.reason or 'it gives no reason'}"
        self._tell_all(self.blocked)

    async def _Connection__handle_connection_unblocked(self, _: commands.Connection.Unblocked) -> None:  # noqa: N802
        self.blocked = None
