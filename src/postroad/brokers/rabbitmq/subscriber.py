"""RabbitMQ as a source: one queue or its partitions, their bindings, and a queue for dead letters.

Deliveries come by one connection, with a channel for each queue, and dead letters go by another: RabbitMQ stops reading
from connections that publish while it has an alarm, and acks must get through. What aiormq raises becomes
BrokerUnavailable here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aiormq.connection import Connection

from postroad.brokers.rabbitmq.address import Address
from postroad.brokers.rabbitmq.channel import CLOSE_SECONDS, LinkLost, translated
from postroad.brokers.rabbitmq.dead_letter_box import QUEUE_HEADER, RabbitMQDeadLetters
from postroad.brokers.rabbitmq.dead_letters import DeadLetterChannel
from postroad.brokers.rabbitmq.deliveries import DeliveryConnection
from postroad.brokers.rabbitmq.members import Members
from postroad.brokers.rabbitmq.properties import dead_letter
from postroad.brokers.rabbitmq.settings import DEFAULT_PREFETCH
from postroad.brokers.rabbitmq.sharing import Sharing
from postroad.brokers.rabbitmq.topology import Topology
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aiormq.channel import Channel

    from postroad.brokers.base import Delivery, Revoked
    from postroad.brokers.rabbitmq.delivery_channel import DeliveryChannel
    from postroad.brokers.rabbitmq.settings import SubscriberSettings

__all__ = ["RabbitMQSubscriber"]

NO_LIMIT: Final = 1 << 32
HEADER_FRAME: Final = 20  # bytes of a content header's frame beside the properties
QUEUE_SECONDS: Final = 0.5
"""How much longer a new connection may take for each queue."""
CONTROL: Final = 1  # the number of the channel for questions; those of the queues follow


class RabbitMQSubscriber:
    """Receives from one queue of a RabbitMQ server. Credentials of the settings replace the URL's, see `Address`."""

    def __init__(self, url: str, settings: SubscriberSettings, *, connection_name: str = "postroad") -> None:
        self._url = url
        self._settings = settings
        self._address = Address(url, settings, connection_name=connection_name)
        self._topology = Topology(settings, self._address.user)
        self.warnings = tuple(self._address.warnings())
        self.queue = self._topology.queue
        self.exchange = settings.exchange
        self.dead_letter_queue = self._topology.dead_letter_queue
        self.single_active = self._topology.single_active
        self._connect_timeout = settings.seconds("connect_timeout")
        self._session: _Session | None = None
        self._dead_letters: DeadLetterChannel | None = None
        self._one_dead_letter = asyncio.Lock()

    @property
    def name(self) -> str:
        partitions = self._settings.partitions
        return f"{self._address.name} queue {self.queue}" + (f" in {partitions} partitions" if partitions else "")

    def __repr__(self) -> str:
        return f"RabbitMQSubscriber({self._address.name!r}, {self.queue!r})"

    # -- the contract ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, declare or check the queues, and begin to receive."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        try:
            connection = await self._address.connect(
                lambda url: DeliveryConnection(
                    url,
                    last=CONTROL + len(self._topology.queues),
                    largest=self._settings.max_message_size,
                    most_bytes=self._settings.max_held_bytes,
                ),
                self._connect_timeout,
            )
            try:
                async with asyncio.timeout(self._connect_timeout + QUEUE_SECONDS * len(self._topology.queues)):
                    self._session = await _open_session(connection, self._topology, self._settings)
            except BaseException:
                await _close(connection)
                raise
        except (LinkLost, TimeoutError) as lost:
            raise self._unavailable(lost) from lost

    async def receive(self) -> Sequence[Delivery] | Revoked:
        session = self._opened()
        inflow = session.connection.inflow
        try:
            while True:
                if session.sharing is not None and session.sharing.revoked:
                    return session.sharing.revoked.pop(0)
                if inflow.arrived:
                    return inflow.take()
                await inflow.change()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    def ack(self, deliveries: Collection[Delivery]) -> None:
        for channel, own in self._by_channel(deliveries):
            channel.ack(own)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        for channel, own in self._by_channel(deliveries):
            channel.give_back(own)

    async def dead_letter(self, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Publish to the queue for dead letters, persistent, mandatory and confirmed."""
        queue = getattr(delivery.session, "queue", None) or self.queue
        await self.store(self.dead_letter_queue, delivery, {**notes, QUEUE_HEADER: queue})

    def dead_letters(self) -> RabbitMQDeadLetters:
        return RabbitMQDeadLetters(self)

    def of_dead_letters(self, most: int) -> RabbitMQSubscriber:
        """A subscriber to the queue of dead letters, which holds up to so many of them; it declares nothing."""
        settings = replace(
            self._settings,
            queue=self.dead_letter_queue,
            declare="no",
            partitions=None,
            single_active=False,
            prefetch=most,
        )
        return RabbitMQSubscriber(self._url, settings, connection_name="postroad dead letters")

    async def store(self, queue: str, delivery: Delivery, notes: Mapping[str, str]) -> None:
        """Publish a delivery to a queue, with these additional headers: persistent, mandatory and confirmed."""
        async with self._one_dead_letter:
            try:
                async with asyncio.timeout(self._connect_timeout) as limit:
                    if self._dead_letters is None or self._dead_letters.is_closed:
                        self._dead_letters = await self._dead_letter_channel()
                    room = self._dead_letters.connection.connection_tune.frame_max - HEADER_FRAME
                    letter = dead_letter(delivery.original.raw, notes, room=room if room > 0 else NO_LIMIT)
                    with translated():
                        await self._dead_letters.publish(
                            queue,
                            letter,
                            delivery.original,
                            progress=lambda: limit.reschedule(_now() + self._connect_timeout),
                        )
            except (LinkLost, TimeoutError) as lost:
                dead_letters, self._dead_letters = self._dead_letters, None
                await self._close_channel(dead_letters)
                what = "the dead-letter queue" if queue == self.dead_letter_queue else "the queue"
                raise self._unavailable(lost, f"{what} {queue!r}") from lost

    async def waiting(self) -> int:
        session = self._opened()
        try:
            async with asyncio.timeout(self._connect_timeout):
                counts = [await session.asking(queue).count(queue) for queue in self._topology.queues]
        except (LinkLost, TimeoutError) as lost:
            raise self._unavailable(lost) from lost
        return sum(messages for messages, _ in counts) + len(session.connection.inflow.arrived)

    async def pause(self) -> None:
        session = self._session
        if session is not None:
            session.connection.inflow.keep_reading()
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    for channel in session.channels.values():
                        await channel.cancel_consumer()
            except (LinkLost, TimeoutError) as lost:
                raise self._unavailable(lost) from lost

    async def close(self) -> None:
        """Send the acks that are due, and close both connections."""
        session, self._session = self._session, None
        dead_letters, self._dead_letters = self._dead_letters, None
        if session is not None:
            await session.close()
        await self._close_channel(dead_letters)

    def _opened(self) -> _Session:
        if self._session is None:
            raise BrokerUnavailable(f"{self.name}: the subscriber is not open")
        return self._session

    def _by_channel(self, deliveries: Collection[Delivery]) -> Iterator[tuple[DeliveryChannel, list[Delivery]]]:
        """Those of channels that are still open. Of the others, the broker has requeued all that was not acked."""
        if self._session is None:
            return
        by_channel: dict[object, list[Delivery]] = defaultdict(list)
        for each in deliveries:
            by_channel[each.session].append(each)
        for channel in self._session.channels.values():
            if channel in by_channel:
                yield channel, by_channel[channel]

    # -- connecting --------------------------------------------------------------------------------------------------

    async def _dead_letter_channel(self) -> DeadLetterChannel:
        connection = await self._address.connect(Connection, self._connect_timeout)
        try:
            channel = DeadLetterChannel(connection)
            connection.channels[channel.number] = channel
            with translated():
                await channel.open()
        except BaseException:
            await _close(connection)
            raise
        return channel

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


class _Session:
    """An open connection, with its channels."""

    def __init__(
        self,
        connection: DeliveryConnection,
        control: DeliveryChannel,
        channels: dict[str, DeliveryChannel],
        sharing: Sharing | None,
    ) -> None:
        self.connection = connection
        self.control = control
        self.channels = channels
        """By queue."""
        self.sharing = sharing

    def asking(self, queue: str) -> DeliveryChannel:
        """The channel on which a queue is asked about: its own, so that what was sent on it before is counted."""
        channel = self.channels.get(queue)
        return self.control if channel is None or channel.finished or channel.is_closed else channel

    async def close(self) -> None:
        """Send the acks that are due, and close all."""
        if self.sharing is not None:
            await self.sharing.close()
        self.connection.inflow.keep_reading()
        for channel in self.channels.values():
            channel.finish()
        # The broker answers after it has read the acks, which a closing connection may not send.
        await asyncio.gather(*map(_close, self.channels.values()))
        await _close(self.connection)


async def _open_session(connection: DeliveryConnection, topology: Topology, settings: SubscriberSettings) -> _Session:
    prefetch = settings.prefetch or DEFAULT_PREFETCH
    control = await connection.open_channel(CONTROL)
    await topology.ensure(connection, control)
    channels: dict[str, DeliveryChannel] = {}
    for number, queue in enumerate(topology.queues, CONTROL + 1):
        channels[queue] = await connection.open_channel(number)
        await channels[queue].consume(queue, prefetch)
    if topology.names is None:
        return _Session(connection, control, channels, None)
    members = Members(
        connection, CONTROL + len(channels) + 1, topology.names.members, declare=settings.declare == "create"
    )
    await members.count()  # from now on, this process is one of them
    sharing = Sharing(connection, channels, topology.names, members, prefetch=prefetch)
    return _Session(connection, control, channels, sharing)


def _now() -> float:
    return asyncio.get_running_loop().time()
