"""RabbitMQ as a source: one queue, its bindings, and a queue for dead letters.

Deliveries come by one connection and dead letters go by another: RabbitMQ stops reading from connections that publish
while it has an alarm, and acks must get through. What aiormq raises becomes BrokerUnavailable here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiormq.connection import Connection

from postroad.brokers.rabbitmq.address import Address
from postroad.brokers.rabbitmq.channel import CLOSE_SECONDS, LinkLost, translated
from postroad.brokers.rabbitmq.dead_letters import DeadLetterChannel
from postroad.brokers.rabbitmq.deliveries import DeliveryChannel, DeliveryConnection
from postroad.brokers.rabbitmq.properties import dead_letter
from postroad.brokers.rabbitmq.settings import DEFAULT_PREFETCH
from postroad.errors import BrokerUnavailable, InvalidSetting
from postroad.kinds import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aiormq.channel import Channel
    from yarl import URL

    from postroad.brokers.base import Delivery
    from postroad.brokers.rabbitmq.settings import SubscriberSettings

__all__ = ["RabbitMQSubscriber"]

C = TypeVar("C", bound=Connection)

NO_LIMIT: Final = 1 << 32
HEADER_FRAME: Final = 20  # bytes of a content header's frame beside the properties


class RabbitMQSubscriber:
    """Receives from one queue of a RabbitMQ server. Credentials of the settings replace the URL's, see `Address`."""

    def __init__(self, url: str, settings: SubscriberSettings, *, connection_name: str = "postroad") -> None:
        if settings.queue is None:
            raise InvalidSetting("queue is not set; it must be the name of the queue to receive from")
        self._settings = settings
        self._address = Address(url, settings, connection_name=connection_name)
        self.warnings = tuple(self._address.warnings())
        self.queue = settings.queue
        self.exchange = settings.exchange
        self.dead_letter_queue: str = NAME.check(
            "dead_letter_queue", settings.dead_letter_queue or f"{settings.queue}.dead"
        )
        self.single_active = settings.single_active is not False
        self._arguments: dict[str, Any] = {"x-single-active-consumer": True} if self.single_active else {}
        self._arguments |= settings.arguments or {}
        self._connect_timeout = settings.seconds("connect_timeout")
        self._channel: DeliveryChannel | None = None
        self._dead_letters: DeadLetterChannel | None = None
        self._one_dead_letter = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"{self._address.name} queue {self.queue}"

    def __repr__(self) -> str:
        return f"RabbitMQSubscriber({self._address.name!r}, {self.queue!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, declare or check the queues, and begin to receive."""
        await self._close_channel(self._channel)
        self._channel = None
        try:
            connection = await self._connect(
                lambda url: DeliveryConnection(
                    url, largest=self._settings.max_message_size, most_bytes=self._settings.max_held_bytes
                )
            )
            try:
                async with asyncio.timeout(self._connect_timeout):
                    channel = await connection.open_channel()
                    await self._ensure_queues(channel)
                    await channel.consume(self.queue, self._settings.prefetch or DEFAULT_PREFETCH)
            except BaseException:
                await _close(connection)
                raise
        except (LinkLost, TimeoutError) as lost:
            raise self._unavailable(lost) from lost
        self._channel = channel

    async def receive(self) -> Sequence[Delivery]:
        if self._channel is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        try:
            return await self._channel.arrivals()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    def ack(self, deliveries: Collection[Delivery]) -> None:
        if self._channel is not None:
            self._channel.ack([each for each in deliveries if each.session is self._channel])

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        if self._channel is not None:
            self._channel.give_back([each for each in deliveries if each.session is self._channel])

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Publish to the queue for dead letters, persistent, mandatory and confirmed."""
        async with self._one_dead_letter:
            try:
                async with asyncio.timeout(self._connect_timeout) as limit:
                    if self._dead_letters is None or self._dead_letters.is_closed:
                        self._dead_letters = await self._dead_letter_channel()
                    room = self._dead_letters.connection.connection_tune.frame_max - HEADER_FRAME
                    letter = dead_letter(delivery.original.raw, notes, room=room if room > 0 else NO_LIMIT)
                    with translated():
                        await self._dead_letters.publish(
                            self.dead_letter_queue,
                            letter,
                            delivery.original,
                            progress=lambda: limit.reschedule(_now() + self._connect_timeout),
                        )
            except (LinkLost, TimeoutError) as lost:
                dead_letters, self._dead_letters = self._dead_letters, None
                await self._close_channel(dead_letters)
                raise self._unavailable(lost, f"the dead-letter queue {self.dead_letter_queue!r}") from lost

    async def waiting(self) -> int:
        if self._channel is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._channel.waiting(self.queue)
        except (LinkLost, TimeoutError) as lost:
            raise self._unavailable(lost) from lost

    async def pause(self) -> None:
        if self._channel is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._channel.cancel_consumer()
            except (LinkLost, TimeoutError) as lost:
                raise self._unavailable(lost) from lost

    async def close(self) -> None:
        """Send the acks that are due, and close both connections."""
        channel, self._channel = self._channel, None
        dead_letters, self._dead_letters = self._dead_letters, None
        if channel is not None:
            channel.discard()
            channel.flush()
        await self._close_channel(channel)
        await self._close_channel(dead_letters)

    # -- connecting --------------------------------------------------------------------------------------------------

    async def _connect(self, make: Callable[[URL], C]) -> C:
        try:
            connection = make(self._address.url())
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
        connection = await self._connect(Connection)
        try:
            channel = DeadLetterChannel(connection)
            connection.channels[channel.number] = channel
            with translated():
                await channel.open()
        except BaseException:
            await _close(connection)
            raise
        return channel

    async def _ensure_queues(self, channel: DeliveryChannel) -> None:
        if self._settings.declare == "no":
            return
        passive = self._settings.declare == "check"
        try:
            with translated():
                if not passive:
                    await channel.exchange_declare(self.exchange, exchange_type="topic", durable=True)
                await channel.queue_declare(self.dead_letter_queue, durable=True, passive=passive)
                arguments = None if passive else self._arguments
                await channel.queue_declare(self.queue, durable=True, passive=passive, arguments=arguments)
                for binding in () if passive else self._settings.bindings or ():
                    await channel.queue_bind(self.queue, self.exchange, routing_key=binding)
        except LinkLost as lost:
            ended = channel.ended or lost
            raise LinkLost(_why_not(ended, self.queue, self.exchange, self._address.user)) from lost

    def _unavailable(self, lost: BaseException, place: str | None = None) -> BrokerUnavailable:
        reason = str(lost) or "it did not answer in time"
        outage = lost.outage if isinstance(lost, LinkLost) else BrokerUnavailable
        return outage(f"{self.name}: {place + ': ' if place else ''}{reason}", suspicious=False)

    async def _close_channel(self, channel: Channel | None) -> None:
        if channel is not None:
            # The broker answers after it has read the acks, which a closing connection may not send.
            await _close(channel)
            await _close(channel.connection)


async def _close(channel_or_connection: Any) -> None:
    """Close it, in good order if that takes no longer than CLOSE_SECONDS."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            with translated():
                await channel_or_connection.close()
    except (LinkLost, TimeoutError):
        pass  # it is closed all the same


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
                f"the queue {queue!r} or the exchange {exchange!r} exists with other properties; "
                f"set declare='check' to use it as it is ({lost})"
            )
        case _:
            return str(lost)


def _now() -> float:
    return asyncio.get_running_loop().time()
