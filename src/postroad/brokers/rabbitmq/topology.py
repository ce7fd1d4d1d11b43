"""The exchanges, queues and bindings of a subscriber: declared, or checked, each time it connects.

Without partitions: exchange → queue. With them: exchange → the consumer's own exchange → a queue for each partition, or
one for what was sent without a portion (`partitions`). The binding that lets messages in is made last, when all queues
that a message could go to are bound: until then, a message could go to another queue than the next one of its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.rabbitmq.channel import LinkLost, server_version, translated
from postroad.brokers.rabbitmq.checks import DELIVERY_LIMIT, dead_letter_arguments
from postroad.brokers.rabbitmq.partitions import Names, portion_keys
from postroad.errors import InvalidSetting
from postroad.kinds import NAME

if TYPE_CHECKING:
    from postroad.brokers.rabbitmq.deliveries import DeliveryConnection
    from postroad.brokers.rabbitmq.delivery_channel import DeliveryChannel
    from postroad.brokers.rabbitmq.settings import SubscriberSettings

__all__ = ["Topology"]

PROBE: Final = 2  # the number of a channel that is open only for a moment
_SINGLE_ACTIVE: Final = "x-single-active-consumer"


class Topology:
    """What a subscriber needs at the broker."""

    def __init__(self, settings: SubscriberSettings, user: str) -> None:
        if settings.queue is None:
            raise InvalidSetting("queue is not set; it must be the name of the queue to receive from")
        self._settings = settings
        self._user = user
        self.queue = settings.queue
        self.dead_letter_queue: str = NAME.check(
            "dead_letter_queue", settings.dead_letter_queue or f"{settings.queue}.dead"
        )
        self.names = None if settings.partitions is None else Names(settings.queue, settings.partitions)
        if self.names is not None:
            NAME.check("queue", self.names.unpartitioned)
            NAME.check("queue", self.names.alternate)
        self.queues = [self.queue] if self.names is None else [*self.names.queues, self.names.unpartitioned]
        """Those to receive from."""
        self.single_active = settings.single_active is not False
        self.arguments: dict[str, Any] = {_SINGLE_ACTIVE: True} if self.single_active else {}
        self.arguments |= settings.arguments or {}
        """Of the declaration of each queue."""

    async def ensure(self, connection: DeliveryConnection, channel: DeliveryChannel) -> None:
        """Declare or check all of it, as the setting `declare` says. Raises LinkLost with what to do."""
        try:
            match self._settings.declare:
                case "create":
                    await self._refuse_undivided(connection)
                    with translated():
                        await self._declare_dead_letter_queue(connection, channel)
                        await self._declare(channel)
                case "check":
                    with translated():
                        await self._check(channel)
                case "no":
                    pass
        except LinkLost as lost:
            raise LinkLost(self._why_not(connection.inflow.reason(lost))) from lost

    async def _check(self, channel: DeliveryChannel) -> None:
        for queue in (self.dead_letter_queue, *self.queues):
            await channel.queue_declare(queue, durable=True, passive=True)

    async def _declare_dead_letter_queue(self, connection: DeliveryConnection, channel: DeliveryChannel) -> None:
        """One that is there keeps the limit that it was declared with, by an older broker: with another, RabbitMQ would
        refuse to declare it.
        """
        arguments = dead_letter_arguments(self.arguments, server_version(connection))
        if DELIVERY_LIMIT in arguments and await self._exists(connection, self.dead_letter_queue):
            return
        await channel.queue_declare(self.dead_letter_queue, durable=True, arguments=arguments)

    async def _declare(self, channel: DeliveryChannel) -> None:
        exchange, bindings = self._settings.exchange, self._settings.bindings or ()
        await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
        for queue in self.queues:
            await channel.queue_declare(queue, durable=True, arguments=self.arguments)
        if self.names is None:
            for binding in bindings:
                await channel.queue_bind(self.queue, exchange, routing_key=binding)
        else:
            await self._divide(channel, self.names)
            for binding in bindings:
                await channel.exchange_bind(self.names.exchange, exchange, routing_key=binding)

    async def _divide(self, channel: DeliveryChannel, names: Names) -> None:
        """What only partitions need, but for the binding that lets messages in."""
        await channel.exchange_declare(names.alternate, exchange_type="fanout", durable=True)
        await channel.queue_bind(names.unpartitioned, names.alternate, routing_key="")
        await channel.exchange_declare(
            names.exchange, exchange_type="direct", durable=True, arguments={"alternate-exchange": names.alternate}
        )
        for partition, queue in enumerate(names.queues):
            for key in portion_keys(partition, names.partitions):
                await channel.queue_bind(queue, names.exchange, routing_key=key, nowait=True)
        # The answer to this comes when all the others have been done.
        await channel.queue_declare(names.unpartitioned, passive=True)

    async def _refuse_undivided(self, connection: DeliveryConnection) -> None:
        """A queue from before it was divided would get a copy of each message, and what is in it would be overtaken."""
        if self.names is None:
            return
        with translated():
            if not await self._exists(connection, self.queue):
                return
        raise LinkLost(
            f"partitions is {self.names.partitions}, and there is a queue {self.queue!r}: what it has must be handled "
            "before what comes to the partitions. Let a consumer without partitions empty it while no relay publishes, "
            "and delete it"
        )

    async def _exists(self, connection: DeliveryConnection, queue: str) -> bool:
        """On a channel of its own, which the broker closes if there is no such queue."""
        channel = await connection.channel(PROBE, publisher_confirms=False)
        try:
            await channel.queue_declare(queue, passive=True)
        except Exception as error:  # aiormq's, for whatever the broker answers
            if "NOT_FOUND" in str(error):
                return False
            raise
        await channel.close()
        return True

    def _why_not(self, lost: LinkLost) -> str:
        queue, exchange = self.queue, self._settings.exchange
        match lost.code:
            case 404:
                return (
                    f"the queue {queue!r} or its dead-letter queue is missing; create it, or set declare='create' "
                    f"({lost})"
                )
            case 403:
                return (
                    f"user {self._user!r} may not declare the queue {queue!r} or the exchange {exchange!r}; grant it "
                    f"configure permission, or create them yourself and set declare='check' ({lost})"
                )
            case 406 if self.names is not None and "alternate-exchange" in str(lost):
                return (
                    f"partitions is {self.names.partitions}, and the queue {queue!r} is divided into another number; "
                    "let consumers with that number empty it while no relay publishes, and delete the exchange "
                    f"{self.names.exchange!r} ({lost})"
                )
            case 406:
                return (
                    f"the queue {queue!r} or the exchange {exchange!r} exists with other properties; "
                    f"set declare='check' to use it as it is ({lost})"
                )
            case _:
                return str(lost)
