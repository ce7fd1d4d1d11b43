"""The publisher's connection and channels, on top of aiormq: alarms are noticed, and many messages are written and
confirmed at once.

aiormq's own `basic_publish` takes a task, a lock, two futures and a write per message. A `ConfirmChannel` writes many
messages at once and counts the answers itself; opening, closing, heartbeats and the exchange's declaration stay
aiormq's. What aiormq raises becomes `LinkLost` (`translated`), here and in the subscriber's modules.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import Connection
from aiormq.exceptions import AMQPError, InvalidFrameError, ProbableAuthenticationError
from pamqp import commands
from pamqp.header import ContentHeader

from postroad.brokers.rabbitmq.confirms import Confirms
from postroad.errors import BrokerUnavailable, LoginRefused
from postroad.message import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from yarl import URL

__all__ = ["CLOSE_SECONDS", "AlarmConnection", "ConfirmChannel", "LinkLost", "server_version", "translated"]


CLOSE_SECONDS: Final = 5
"""How long a connection may take to close in good order."""
_FORCED: Final = "CONNECTION_FORCED"
"""How the reason begins when the broker is shut down, or when an operator closes the connection."""
_MESSAGE_UNRELATED: Final = frozenset({403, 404})
"""Reply codes of a channel that was closed for no fault of a message: no permission, no exchange."""


PROBE: Final = StoredMessage(0, UUID(int=0), "", None, 0, "", b"", "", "{}", 0)


class LinkLost(Exception):
    """This channel can't be used any more.

    `code` is AMQP's reply code when the broker closed only the channel, else None. `suspicious`: a message that was
    written may be the cause.
    """

    outage: type[BrokerUnavailable] = BrokerUnavailable
    """The error that a publisher or subscriber raises for it."""

    def __init__(self, reason: str, code: int | None = None, *, suspicious: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.suspicious = suspicious


class LoginLost(LinkLost):
    """The broker refuses the user or its password."""

    outage = LoginRefused


def server_version(connection: Connection) -> str:
    """The version that the server has named itself, such as 3.13.7; "?" if it has not."""
    properties: Any = connection.server_properties or {}
    version = properties.get("version", "?")
    return version.decode() if isinstance(version, bytes) else str(version)


@contextmanager
def translated() -> Iterator[None]:
    """Turn whatever aiormq raises into LinkLost, except a cancellation of the current task."""
    try:
        yield
    except asyncio.CancelledError as error:
        # aiormq also fails its futures with CancelledError, when it has closed a connection by itself.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _lost(error) from error
    except Exception as error:
        raise _lost(error) from error


def _lost(error: BaseException | None, *, upon_write: bool = False) -> LinkLost:
    """An exception of aiormq as LinkLost. `upon_write`: it was the answer to messages that were written."""
    match error:
        case LinkLost():
            return error
        case None | asyncio.CancelledError():
            reason = "the connection was closed, because the broker sent nothing for too long"
        case TimeoutError():
            reason = "it did not answer in time"
        case ProbableAuthenticationError():
            return LoginLost(f"the login was refused; check username and password ({error})")
        case InvalidFrameError() if "OpenOk" in str(error):  # aiormq drops the broker's reason
            reason = "the vhost does not exist, the user has no access to it, or it has too many connections"
        case AMQPError() | OSError() if error.args:
            reason = ", ".join(str(part) for part in error.args if part is not None)
            return LinkLost(reason, suspicious=upon_write and _FORCED not in reason)
        case _:
            reason = f"{type(error).__name__}: {error}"
    return LinkLost(reason)


class ConfirmChannel(Channel):
    """A channel in confirm mode. One call of `publish` uses it at a time."""

    connection: AlarmConnection

    def __init__(self, connection: AlarmConnection, number: int) -> None:
        super().__init__(connection, number, frame_buffer=connection.FRAME_BUFFER_SIZE)
        self.confirms = Confirms(first_tag=1)
        self._timeout = connection.confirm_timeout
        self._waiting: asyncio.Future[None] | None = None
        self._last_answer = 0.0
        self._ended: LinkLost | None = None

    @property
    def clean(self) -> bool:
        """Whether another call can use it: every message written on it has its answer."""
        return self._ended is None and not self.is_closed and self.confirms.answered

    async def declare_exchange(self, name: str, *, only_check: bool) -> None:
        """Declare a durable topic exchange, or check that an exchange of that name exists."""
        try:
            with translated():
                await self.exchange_declare(name, exchange_type="topic", durable=True, passive=only_check)
        except LinkLost as lost:
            raise self._ended or lost from lost  # the broker's own reason, with its code

    async def declare_queue(self, name: str, arguments: Mapping[str, Any], *, only_check: bool) -> None:
        """Declare a durable queue, or check that a queue of that name exists."""
        try:
            with translated():
                await self.queue_declare(name, durable=True, passive=only_check, arguments=dict(arguments))
        except LinkLost as lost:
            raise self._ended or lost from lost

    def begin(self) -> Confirms:
        """Begin to count the confirms of a new call. The channel must be clean."""
        self.confirms = Confirms(self.confirms.next_tag)
        return self.confirms

    async def provoke_alarm(self) -> None:
        """Publish an empty message that no queue takes. Raises LinkLost if the broker blocks publishers: it tells a
        connection only after a message was written to it.
        """
        frames: list[Any] = [commands.Basic.Publish(routing_key=f"postroad.alarm.{uuid4()}"), ContentHeader()]
        self.begin()
        try:
            await self.write([PROBE], ChannelFrame.marshall(self.number, frames).payload)
            await self.wait_until_answered()
        except LinkLost as lost:
            if lost.code is None:  # else the user may not publish there; but the broker has read it
                raise

    async def write(self, messages: Sequence[StoredMessage], frames: bytes) -> None:
        """Write the frames of these messages, and wait until there is room for more."""
        room = self._new_wait()
        chunk = ChannelFrame(payload=frames, should_close=False, drain_future=room)
        if self.write_queue.full():
            # If this wait is cancelled, the next tag is unknown: the channel has ended unless the wait succeeds.
            self._ended = cancelled = LinkLost("a write was cancelled")
            with translated():
                await asyncio.wait_for(self.write_queue.put(chunk), self._timeout)
            if self._ended is cancelled:
                self._ended = None
        else:
            self.write_queue.put_nowait(chunk)
        self.confirms.wrote(messages)
        await self._wait(room)

    async def wait_until_answered(self) -> None:
        """Wait until the broker has answered for every message. Raises LinkLost when it stops answering."""
        if not self.confirms.answered:
            await self._wait(self._new_wait())

    def fail(self, error: LinkLost) -> None:
        """Raise the error in the call that waits: no answer will come."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _new_wait(self) -> asyncio.Future[None]:
        if self._ended is not None:
            raise self._ended
        self.connection.check_alarm()
        # aiormq fails this future when the channel or the connection closes, also when they have closed already.
        self._waiting = self.create_future()
        self._last_answer = self.loop.time()
        return self._waiting

    async def _wait(self, future: asyncio.Future[None]) -> None:
        """Wait for the future. Every answer of the broker restarts the timeout."""
        while not future.done():
            left = self._last_answer + self._timeout - self.loop.time()
            if left <= 0:
                raise LinkLost(f"it has confirmed nothing for {self._timeout:g} seconds")
            await asyncio.wait((future,), timeout=left)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            raise _lost(error, upon_write=True) from error

    # aiormq calls these for the frames that it reads. The first two replace its bookkeeping of single messages.

    async def _on_confirm_frame(self, frame: Any) -> None:
        if isinstance(frame, commands.Basic.Nack):
            self.confirms.nacked(frame.delivery_tag or 0, multiple=bool(frame.multiple))
        else:
            self.confirms.acked(frame.delivery_tag, multiple=bool(frame.multiple))
        self._last_answer = self.loop.time()
        # A call that still waits for room can go on: the broker has read what it answers.
        if self.confirms.answered and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _on_return_frame(self, frame: commands.Basic.Return) -> None:
        header = await self._get_frame()
        if not isinstance(header, ContentHeader):
            raise InvalidFrameError(f"expected a content header, not {header!r}")
        await self._read_content(frame, header)  # the body is sent back too
        self.confirms.returned(
            header.properties.message_id,
            f"no queue takes the routing key {frame.routing_key!r} from the exchange {frame.exchange!r}; bind one "
            f"({frame.reply_code} {frame.reply_text})",
        )

    async def _on_close_frame(self, frame: commands.Channel.Close) -> None:
        # Noted before aiormq answers: frames written after its answer would make the broker close the connection.
        suspicious = frame.reply_code not in _MESSAGE_UNRELATED
        self._ended = LinkLost(frame.reply_text or "the channel was closed", frame.reply_code, suspicious=suspicious)
        self.fail(self._ended)
        await super()._on_close_frame(frame)


class AlarmConnection(Connection):
    """A connection that knows when the broker blocks it, and keeps channels for reuse.

    Its channels wait for an answer for `confirm_timeout` seconds.
    """

    def __init__(self, url: URL, confirm_timeout: float) -> None:
        super().__init__(url)
        self.confirm_timeout = confirm_timeout
        self.blocked: str | None = None
        """The alarm, while there is one."""
        self.alarm_is_likely = False
        """The connection before this one was blocked, and on this one nothing was confirmed yet."""
        self.declared = False
        """The exchange was declared or checked, and no channel was closed since."""
        self.largest_message: int | None = None
        """The broker's own limit, once it has refused a message for its size."""
        self._kept: list[ConfirmChannel] = []
        self._writer: asyncio.StreamWriter | None = None
        self._last_number = 0

    def check_alarm(self) -> None:
        """Raise LinkLost while the broker blocks this connection."""
        if self.blocked is not None:
            raise LinkLost(self.blocked)

    async def take(self) -> ConfirmChannel:
        """A channel for one call. The caller gives it back in any case."""
        self._kept = [channel for channel in self._kept if not channel.is_closed]
        for channel in self._kept:
            if channel.clean:
                self._kept.remove(channel)
                return channel
        channel = ConfirmChannel(self, self._free_number())
        self.channels[channel.number] = channel
        with translated():
            await channel.open()
        return channel

    def give_back(self, channel: ConfirmChannel) -> None:
        """Keep the channel. If answers are still to come, it is used again only after them."""
        self._kept.append(channel)

    @property
    def has_unsent(self) -> bool:
        """Whether this process may still hold bytes that were written: they would be sent some time."""
        if self._writer is None or not self.write_queue.empty():
            return True
        # Over TLS, asyncio does not tell how much the transport below holds.
        transport = self._writer.transport
        return transport.get_extra_info("sslcontext") is not None or transport.get_write_buffer_size() > 0

    def discard_unsent(self) -> None:
        """Send nothing any more of what was written. The connection can't be used after that."""
        if self.has_unsent and self._writer is not None:
            self._writer.transport.abort()

    async def disconnect(self, reason: str, seconds: float) -> None:
        """Close the connection, in good order if there is time for it. Calls that wait fail with the reason."""
        self._fail_all(reason)
        with suppress(TimeoutError):
            await self.close(LinkLost(reason), timeout=seconds)

    def _fail_all(self, reason: str) -> None:
        for channel in self.channels.values():
            if isinstance(channel, ConfirmChannel):
                channel.fail(LinkLost(reason))

    def _free_number(self) -> int:
        # Numbers are used in turn, because one that was just closed can't be used until both sides know of it.
        most = self.connection_tune.channel_max or 65535
        for _ in range(most):
            self._last_number = self._last_number % most + 1
            if self.channels.get(self._last_number) is None:
                return self._last_number
        raise LinkLost(f"all {most:,} channels of the connection are in use")

    # These replace handlers of aiormq that only log, and see which stream it writes to. Their names are private to
    # aiormq, which has no other hook; if they change, a blocked connection still ends in the confirm timeout, one whose
    # stream is not known counts as one with unsent bytes, and the tests notice the change.

    async def _Connection__writer(self, writer: asyncio.StreamWriter) -> None:  # noqa: N802
        self._writer = writer
        await super()._Connection__writer(writer)  # type: ignore[misc]

    async def _Connection__handle_connection_blocked(self, frame: commands.Connection.Blocked) -> None:  # noqa: N802
        self.blocked = f"the broker blocks publishers because of an alarm: {frame.reason or 'it gives no reason'}"
        self._fail_all(self.blocked)

    async def _Connection__handle_connection_unblocked(self, _: commands.Connection.Unblocked) -> None:  # noqa: N802
        self.blocked = None
