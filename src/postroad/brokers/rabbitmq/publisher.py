"""RabbitMQ as a destination: a durable topic exchange, persistent and mandatory messages, a confirm for each of them.

One connection, and a channel for each call that runs at the same time: delivery tags count within a channel, so the
answers on it belong to one call, and when the broker closes it no other lane is affected. The frames of a call go out
in few large writes (see `channel`), because a write and a future per message make a client slow.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from postroad.brokers.base import Durability
from postroad.brokers.cloudevents import CannotEncode, Envelope
from postroad.brokers.connecting import Connecting
from postroad.brokers.rabbitmq.address import Address
from postroad.brokers.rabbitmq.channel import CLOSE_SECONDS, AlarmConnection, ConfirmChannel, LinkLost
from postroad.brokers.rabbitmq.confirms import NACKED
from postroad.brokers.rabbitmq.frames import Properties, publish_frames, short_string
from postroad.brokers.rabbitmq.partitions import BCC_HEADERS, SLOTS_PER_PORTION
from postroad.brokers.rabbitmq.settings import PublisherSettings
from postroad.brokers.routing import RoutingKey
from postroad.errors import BrokerUnavailable, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroad.brokers.rabbitmq.confirms import Confirms
    from postroad.message import StoredMessage

__all__ = ["RabbitMQPublisher", "limit_named_in"]

WRITE_BYTES: Final = 64 * 1024
"""A write is sent when it has grown to this. Larger ones are not faster, and each call holds one in memory."""
CLOSED: Final = "the publisher was closed"
UNSENT: Final = "another call ended before all that it had written was sent"
DURABLE: Final = (
    "stored by every queue that takes it: on disk if the queue is durable, by a majority of its nodes if it is a "
    "quorum queue"
)

# RabbitMQ takes these headers for lists of further routing keys, and closes the channel when they hold a text.
_TAKEN_HEADERS: Final = ("CC", "BCC")
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
_TOPIC_REFUSED: Final = re.compile(r"access to topic '(.*)' in exchange ")
_PRECONDITION_FAILED: Final = 406


class RabbitMQPublisher:
    """Publishes to one exchange of a RabbitMQ server. Credentials of the settings replace the URL's, see `Address`."""

    def __init__(self, url: str, settings: PublisherSettings = PublisherSettings()) -> None:  # noqa: B008 - it is frozen
        self._settings = settings
        self._address = Address(url, settings)
        self.exchange = settings.exchange
        self._exchange = short_string("exchange", settings.exchange)
        self._envelope = Envelope(settings.envelope, settings.envelope_prefix)
        self._routing_key = RoutingKey(settings.routing_key)
        self.destination = self._address.destination(
            settings.cluster, exchange=settings.exchange, routing_key=settings.routing_key
        )
        self._confirm_timeout = settings.seconds("confirm_timeout")
        self._connect_timeout = settings.seconds("connect_timeout")
        self._connection: AlarmConnection | None = None
        self._connecting = Connecting(self._connect)
        self._closing: set[asyncio.Task[None]] = set()
        self._alarm_is_likely = False
        """The last connection was blocked when it was dropped."""

    @property
    def name(self) -> str:
        return self._address.name

    def __repr__(self) -> str:
        return f"RabbitMQPublisher({self.name!r}, exchange={self.exchange!r})"

    in_order = False
    """A queue that is full, or a binding that is made midway, refuses one message and takes the next."""

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> Durability:
        """Connect, and declare or check the exchange. See `Publisher`."""
        try:
            connection, channel = await self._channel()
        except LinkLost as lost:
            raise lost.outage(f"{self.name}: {lost}") from lost
        connection.give_back(channel)
        return Durability(DURABLE)

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Publish the messages to the exchange, in this order, and wait for all confirms. See `Publisher`."""
        answers = _Answers()
        missing = messages
        try:
            while missing:
                await self._send(missing, answers)
                missing = answers.missing(missing)
        except LinkLost as lost:
            raise BrokerUnavailable(
                f"{self.name}: {lost}",
                confirmed=answers.confirmed,
                refusals=answers.refusals.values(),
                suspicious=lost.suspicious,
            ) from lost
        return [answers.refusals[message.position] for message in messages if message.position in answers.refusals]

    async def close(self) -> None:
        """Close the connection. A `publish` that still waits raises BrokerUnavailable."""
        await self._connecting.end()
        if self._connection is not None:
            self._drop(self._connection, CLOSED)
        if self._closing:
            await asyncio.wait(self._closing)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, messages: Sequence[StoredMessage], answers: _Answers) -> None:
        """Send once. Returns when every message has its answer, or when the broker closed the channel to refuse one."""
        connection, channel = await self._channel()
        confirms = channel.begin()
        closed = False
        try:
            for sent, frames in self._writes(messages, connection, channel, answers):
                await channel.write(sent, frames)
            await channel.wait_until_answered()
        except LinkLost as lost:
            closed = lost.code is not None  # the broker ignores what is still on its way to that channel
            if not self._blame(lost, connection, confirms.unanswered, answers):
                raise self._abandon(lost, connection) from lost
        finally:
            answers.add(confirms, self._routing_key)
            connection.give_back(channel)
            if not closed and not confirms.answered and connection.has_unsent:
                self._drop(connection, UNSENT)

    def _writes(
        self, messages: Sequence[StoredMessage], connection: AlarmConnection, channel: ConfirmChannel, answers: _Answers
    ) -> Iterator[tuple[list[StoredMessage], bytes]]:
        """Whole messages, encoded, in pieces of about WRITE_BYTES. What cannot be encoded is refused."""
        frame_max = connection.connection_tune.frame_max
        largest = min(self._settings.max_message_size, connection.largest_message or self._settings.max_message_size)
        sent: list[StoredMessage] = []
        frames: list[bytes] = []
        size = 0
        for message in messages:
            try:
                encoded = self._encoded(message, channel.number, frame_max, largest)
            except CannotEncode as error:
                answers.refuse(message, str(error), permanent=True)
                continue
            sent.append(message)
            frames.append(encoded)
            size += len(encoded)
            if size >= WRITE_BYTES:
                yield sent, b"".join(frames)
                sent, frames, size = [], [], 0
        if sent:
            yield sent, b"".join(frames)

    def _encoded(self, message: StoredMessage, channel: int, frame_max: int, largest: int) -> bytes:
        content_type, headers, body = self._envelope.wrap(message)
        if len(body) > largest:
            raise CannotEncode(
                f"it has {len(body):,} bytes and the broker takes at most {largest:,} (max_message_size)"
            )
        for name in _TAKEN_HEADERS:
            if name in headers:
                raise CannotEncode(
                    f"it has a header {name!r}, which RabbitMQ takes for a list of routing keys; rename it"
                )
        properties = Properties(
            content_type=content_type,
            headers=headers,
            message_id=str(message.id),
            timestamp=message.created_us // 1_000_000,
            type=message.type,
            correlation_id=message.correlation_id,
            more_headers=BCC_HEADERS[message.slot // SLOTS_PER_PORTION] if self._settings.partitioned else b"",
        )
        return publish_frames(
            channel, self._exchange, self._routing_key.of(message), properties, body, frame_max=frame_max
        )

    def _blame(
        self, lost: LinkLost, connection: AlarmConnection, unanswered: Sequence[StoredMessage], answers: _Answers
    ) -> bool:
        """Whether the broker closed the channel because of certain messages; they are refused, and the others go on."""
        before = len(answers.refusals)
        if (limit := limit_named_in(str(lost))) is not None:
            connection.largest_message = limit
            for message in unanswered:
                if len(unanswered) == 1 or len(self._envelope.wrap(message).body) > limit:
                    answers.refuse(message, str(lost), permanent=True)
        elif topic := _TOPIC_REFUSED.search(str(lost)):
            for message in unanswered:
                if self._routing_key.of(message) == topic[1]:
                    answers.refuse(message, f"{lost}; grant the user this topic", permanent=False, route=topic[1])
        elif lost.code == _PRECONDITION_FAILED and len(unanswered) == 1:
            answers.refuse(unanswered[0], str(lost), permanent=False)
        return len(answers.refusals) > before

    def _abandon(self, lost: LinkLost, connection: AlarmConnection) -> LinkLost:
        """Drop what the next call must not use, and return the error with an explanation."""
        if lost.code is not None:
            connection.declared = False
            return LinkLost(_why_not_published(lost, self.exchange, self._address.user), suspicious=lost.suspicious)
        # A blocked connection is kept: the broker says on it when the alarm is over, whereas it tells a new one of the
        # alarm only after messages were written to it, which would then be published twice.
        if connection.blocked is None:
            self._drop(connection, str(lost))
        return lost

    # -- connecting --------------------------------------------------------------------------------------------------

    async def _channel(self) -> tuple[AlarmConnection, ConfirmChannel]:
        """A channel that no other call uses, with the exchange declared or checked."""
        connection = await self._connected()
        connection.check_alarm()
        try:
            async with asyncio.timeout(self._connect_timeout):
                channel = await connection.take()
                if connection.alarm_is_likely:
                    channel = await self._without_alarm(connection, channel)
                if not connection.declared:
                    await self._ensure_exchange(channel)
                    connection.declared = True
        except TimeoutError as error:
            timeout = f"it did not open a channel within {self._connect_timeout:g} seconds"
            raise self._abandon(LinkLost(connection.blocked or timeout), connection) from error
        return connection, channel

    async def _without_alarm(self, connection: AlarmConnection, channel: ConfirmChannel) -> ConfirmChannel:
        """A channel, after the broker has shown that there is no alarm any more."""
        try:
            await channel.provoke_alarm()
        finally:
            connection.give_back(channel)
        connection.alarm_is_likely = False
        return await connection.take()

    async def _ensure_exchange(self, channel: ConfirmChannel) -> None:
        if self._settings.declare == "no":
            return
        try:
            await channel.declare_exchange(self.exchange, only_check=self._settings.declare == "check")
        except LinkLost as lost:
            raise LinkLost(_why_not_declared(lost, self.exchange, self._address.user)) from lost

    async def _connected(self) -> AlarmConnection:
        if self._connection is not None and self._connection.is_opened:
            return self._connection
        connection = await self._connecting.wait()
        if connection is None:
            raise LinkLost(CLOSED)
        return connection

    async def _connect(self) -> AlarmConnection:
        connection = await self._address.connect(
            lambda url: AlarmConnection(url, self._confirm_timeout), self._connect_timeout
        )
        connection.alarm_is_likely, self._alarm_is_likely = self._alarm_is_likely, False
        self._connection = connection
        return connection

    def _drop(self, connection: AlarmConnection, reason: str) -> None:
        """Close a connection in the background, because an unavailable broker may take long to answer.

        What it has not sent yet is discarded now: the call that wrote it ends, and another relay may publish it.
        """
        connection.discard_unsent()
        if self._connection is connection:
            self._connection = None
            self._alarm_is_likely = connection.blocked is not None or connection.alarm_is_likely
        task = asyncio.create_task(connection.disconnect(reason, CLOSE_SECONDS))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Answers:
    """The answers to the messages of one call."""

    def __init__(self) -> None:
        self.confirmed: set[int] = set()
        self.refusals: dict[int, Refusal] = {}

    def add(self, confirms: Confirms, routing_key: RoutingKey) -> None:
        self.confirmed.update(confirms.confirmed)
        for message, reason in confirms.refused:
            # Returned or nacked: no queue is bound, or one is full. That concerns all messages of the routing key.
            route, unroutable = routing_key.of(message), reason != NACKED
            self.refusals[message.position] = Refusal(message.position, reason, False, route, unroutable)

    def refuse(self, message: StoredMessage, reason: str, *, permanent: bool, route: str | None = None) -> None:
        self.refusals[message.position] = Refusal(message.position, reason, permanent, route)

    def missing(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        return [m for m in messages if m.position not in self.confirmed and m.position not in self.refusals]


def limit_named_in(reason: str) -> int | None:
    """The size of the largest message that the broker takes, if that is why it closed the channel."""
    too_large = _TOO_LARGE.search(reason)
    return None if too_large is None else int(too_large[1])


def _why_not_declared(lost: LinkLost, exchange: str, user: str) -> str:
    match lost.code:
        case 404:
            return f"there is no exchange {exchange!r}; create it, or set declare='create' ({lost})"
        case 403:
            return (
                f"user {user!r} may not declare the exchange {exchange!r}; grant it configure permission, or create "
                f"the exchange yourself and set declare='check' ({lost})"
            )
        case 406:
            return (
                f"the exchange {exchange!r} exists but is not a durable topic exchange; "
                f"set declare='check' to use it as it is ({lost})"
            )
        case _:
            return str(lost)


def _why_not_published(lost: LinkLost, exchange: str, user: str) -> str:
    match lost.code:
        case 404:
            return f"the exchange {exchange!r} is gone; create it, or set declare='create' ({lost})"
        case 403:
            return f"user {user!r} may not publish to the exchange {exchange!r}; grant it write permission ({lost})"
        case _:
            return str(lost)
