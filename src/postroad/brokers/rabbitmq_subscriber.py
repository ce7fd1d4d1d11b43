"""RabbitMQ as a source: one queue, its bindings, and a queue for dead letters.

Deliveries come by one connection and dead letters go by another: RabbitMQ stops reading from connections that publish
while it has an alarm, and acks must get through. What aiormq raises becomes BrokerUnavailable here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from postroad.brokers.rabbitmq import CLOSE_SECONDS, Declare, checked_declare, checked_seconds
from postroad.errors import BrokerUnavailable, InvalidSetting, MissingExtra

try:
    from aiormq.connection import Connection

    from postroad.brokers.amqp_address import Address
    from postroad.brokers.amqp_channel import LinkLost, translated
    from postroad.brokers.amqp_dead_letters import DeadLetterChannel
    from postroad.brokers.amqp_deliveries import DeliveryChannel, DeliveryConnection
    from postroad.brokers.amqp_properties import dead_letter
    from postroad.brokers.amqp_reading import LARGEST_BODY
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"aiormq", "pamqp", "yarl"}:
        raise
    raise MissingExtra("amqp://", "rabbitmq") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from aiormq.channel import Channel
    from yarl import URL

    from postroad.brokers.base import Delivery
    from postroad.config import Duration

__all__ = ["RabbitMQSubscriber"]

C = TypeVar("C", bound=Connection)

MOST_PREFETCH: Final = 65_535  # AMQP has two bytes for it
NO_LIMIT: Final = 1 << 32
DEFAULT_MESSAGE_SIZE: Final = 134_217_728  # what a relay sends at most, unless it is told otherwise
DEFAULT_HELD_BYTES: Final = 134_217_728
MOST_HELD_BYTES: Final = 1 << 40
HEADER_FRAME: Final = 20  # bytes of a content header's frame beside the properties


class RabbitMQSubscriber:
    """Receives from one queue of a RabbitMQ server.

    `declare` says what is done on a new connection: "create" declares the exchange, the queue with its bindings and the
    queue for dead letters, all durable; "check" makes sure that the queues are there; "no" does neither. With
    `single_active` the queue has one consumer at a time, the others stand by: without it, messages of one key could
    be with two of them. At most `prefetch` messages are open at once, and nothing is read from the connection while
    they have `max_held_bytes` or more. A body larger than `max_message_size` goes to the dead letters by way of a
    temporary file. Credentials are those of `Address`.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        exchange: str = "postroad",
        bindings: Collection[str] = (),
        declare: Declare = "create",
        single_active: bool = True,
        arguments: Mapping[str, Any] | None = None,
        dead_letter_queue: str | None = None,
        prefetch: int = 200,
        max_message_size: int = DEFAULT_MESSAGE_SIZE,
        max_held_bytes: int = DEFAULT_HELD_BYTES,
        username: str | None = None,
        password: str | None = None,
        password_file: str | Path | None = None,
        connect_timeout: Duration = "10s",
        heartbeat: Duration | None = None,
        connection_name: str = "postroad",
    ) -> None:
        self._address = Address(
            url,
            username=username,
            password=password,
            password_file=password_file,
            heartbeat=heartbeat,
            connection_name=connection_name,
        )
        self.warnings = tuple(self._address.warnings())
        self.queue = _checked_name("queue", queue)
        self.exchange = _checked_name("exchange", exchange)
        self.dead_letter_queue = _checked_name("dead_letter_queue", dead_letter_queue or f"{queue}.dead")
        if isinstance(bindings, str):
            raise InvalidSetting(f"bindings is {bindings!r}; it must be a collection of routing keys: [{bindings!r}]")
        self.bindings = tuple(bindings)
        self._prefetch = _checked_whole("prefetch", prefetch, MOST_PREFETCH)
        self._max_message_size = _checked_whole("max_message_size", max_message_size, LARGEST_BODY)
        self._max_held_bytes = _checked_whole("max_held_bytes", max_held_bytes, MOST_HELD_BYTES)
        self._declare = checked_declare(declare)
        self.single_active = single_active
        self._arguments: dict[str, Any] = {"x-single-active-consumer": True} if single_active else {}
        self._arguments |= arguments or {}
        self._connect_timeout = checked_seconds("connect_timeout", connect_timeout)
        self._channel: DeliveryChannel | None = None
        self._dead_letters: DeadLetterChannel | None = None
        self._one_dead_letter = asyncio.Lock()

    @property
    def name(self) -> str:
        """The server and the queue, without any secret."""
        return f"{self._address.name} queue {self.queue}"

    def __repr__(self) -> str:
        return f"RabbitMQSubscriber({self._address.name!r}, {self.queue!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the connection, see to the queues, and begin."""
        await self._let_go(self._channel)
        self._channel = None
        try:
            connection = await self._connected(
                lambda url: DeliveryConnection(url, largest=self._max_message_size, most_bytes=self._max_held_bytes)
            )
            try:
                async with asyncio.timeout(self._connect_timeout):
                    channel = await connection.delivering()
                    await self._see_to_queues(channel)
                    await channel.consume(self.queue, self._prefetch)
            except BaseException:
                await _closed(connection)
                raise
        except (LinkLost, TimeoutError) as lost:
            raise self._unavailable(lost) from lost
        self._channel = channel

    async def receive(self) -> Sequence[Delivery]:
        """Wait for messages. See `Subscriber`."""
        if self._channel is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        try:
            return await self._channel.arrivals()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """These are dealt with."""
        if self._channel is not None:
            self._channel.ack([each for each in deliveries if each.session is self._channel])

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """These were not begun."""
        if self._channel is not None:
            self._channel.give_back([each for each in deliveries if each.session is self._channel])

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Publish to the queue for dead letters, persistent, mandatory and confirmed."""
        async with self._one_dead_letter:
            try:
                async with asyncio.timeout(self._connect_timeout) as patience:
                    if self._dead_letters is None or self._dead_letters.is_closed:
                        self._dead_letters = await self._dead_letter_channel()
                    room = self._dead_letters.connection.connection_tune.frame_max - HEADER_FRAME
                    letter = dead_letter(delivery.original.raw, notes, room=room if room > 0 else NO_LIMIT)
                    with translated():
                        await self._dead_letters.publish(
                            self.dead_letter_queue,
                            letter,
                            delivery.original,
                            progress=lambda: patience.reschedule(_now() + self._connect_timeout),
                        )
            except (LinkLost, TimeoutError) as lost:
                dead_letters, self._dead_letters = self._dead_letters, None
                await self._let_go(dead_letters)
                raise self._unavailable(lost, f"the dead-letter queue {self.dead_letter_queue!r}") from lost

    async def waiting(self) -> int:
        """What is in the queue, and what has arrived and was not taken."""
        if self._channel is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._channel.waiting(self.queue)
        except (LinkLost, TimeoutError) as lost:
            raise self._unavailable(lost) from lost

    async def pause(self) -> None:
        """Cancel the consumer."""
        if self._channel is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._channel.cancel_consumer()
            except (LinkLost, TimeoutError) as lost:
                raise self._unavailable(lost) from lost

    async def close(self) -> None:
        """Tell what is known, and close both connections."""
        channel, self._channel = self._channel, None
        dead_letters, self._dead_letters = self._dead_letters, None
        if channel is not None:
            channel.discard()
            channel.flush()
        await self._let_go(channel)
        await self._let_go(dead_letters)

    # -- connecting --------------------------------------------------------------------------------------------------

    async def _connected(self, made: Callable[[URL], C]) -> C:
        try:
            connection = made(self._address.url())
        except InvalidSetting as error:
            raise LinkLost(str(error)) from error
        try:
            async with asyncio.timeout(self._connect_timeout):
                with translated():
                    await connection.connect()
        except TimeoutError as error:
            raise LinkLost(f"no connection within {self._connect_timeout:g} seconds") from error
        return connection

    async def _dead_letter_channel(self) -> DeadLetterChannel:
        connection = await self._connected(Connection)
        try:
            channel = DeadLetterChannel(connection)
            connection.channels[channel.number] = channel
            with translated():
                await channel.open()
        except BaseException:
            await _closed(connection)
            raise
        return channel

    async def _see_to_queues(self, channel: DeliveryChannel) -> None:
        if self._declare == "no":
            return
        passive = self._declare == "check"
        try:
            with translated():
                if not passive:
                    await channel.exchange_declare(self.exchange, exchange_type="topic", durable=True)
                await channel.queue_declare(self.dead_letter_queue, durable=True, passive=passive)
                arguments = None if passive else self._arguments
                await channel.queue_declare(self.queue, durable=True, passive=passive, arguments=arguments)
                for binding in () if passive else self.bindings:
                    await channel.queue_bind(self.queue, self.exchange, routing_key=binding)
        except LinkLost as lost:
            ended = channel.ended or lost
            raise LinkLost(_why_not(ended, self.queue, self.exchange, self._address.user)) from lost

    def _unavailable(self, lost: BaseException, place: str | None = None) -> BrokerUnavailable:
        reason = str(lost) or "it did not answer in time"
        outage = lost.outage if isinstance(lost, LinkLost) else BrokerUnavailable
        return outage(f"{self.name}: {place + ': ' if place else ''}{reason}", suspicious=False)

    async def _let_go(self, channel: Channel | None) -> None:
        if channel is not None:
            # Its answer comes after the broker has heard the acks, which a connection that closes may not send.
            await _closed(channel)
            await _closed(channel.connection)


async def _closed(channel_or_connection: Any) -> None:
    """Close it, in good order if that takes no longer than it should."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            with translated():
                await channel_or_connection.close()
    except (LinkLost, TimeoutError):
        pass  # it is gone, which is what was wanted


def _why_not(lost: LinkLost, queue: str, exchange: str, user: str) -> str:
    match lost.code:
        case 404:
            return (
                f"the queue {queue!r} or its dead-letter queue is missing; create it, or set declare='create' ({lost})"
            )
        case 403:
            return (
                f"user {user!r} may not declare the queue {queue!r} or the exchange {exchange!r}; grant it configure "
                f"permission, or create them yourself and set declare='check' ({lost})"
            )
        case 406:
            return (
                f"the queue {queue!r} or the exchange {exchange!r} is there with other properties; "
                f"set declare='check' to use it as it is ({lost})"
            )
        case _:
            return str(lost)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _checked_whole(what: str, number: Any, most: int) -> int:
    if type(number) is not int or not 1 <= number <= most:
        raise InvalidSetting(f"{what} is {number!r}; it must be a whole number from 1 to {most:,}")
    return number


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= 255:
        raise InvalidSetting(f"{what} is {name!r}; it must be a name of 1 to 255 bytes")
    return name
