"""The producers of one publisher, and their configuration: what makes a confirm mean what `Publisher` promises."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.kafka.cluster import Unreachable
from postroad.brokers.kafka.producer import ProducerThread, new_producer
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from postroad.brokers.kafka.address import Address
    from postroad.brokers.kafka.settings import PublisherSettings

__all__ = ["Producers"]

_TAKEN: Final = {
    **dict.fromkeys(("acks", "request.required.acks", "enable.idempotence"), "the default, all in-sync replicas"),
    **dict.fromkeys(("max.in.flight", "max.in.flight.requests.per.connection"), "the default"),
    **dict.fromkeys(("retries", "message.send.max.retries", "enable.gapless.guarantee"), "the default"),
    **dict.fromkeys(("partitioner", "delivery.report.only.error", "queue.buffering.max.messages"), "the default"),
    **dict.fromkeys(("queue.buffering.max.kbytes", "topic.metadata.propagation.max.ms"), "the default"),
    **dict.fromkeys(("message.timeout.ms", "delivery.timeout.ms", "transaction.timeout.ms"), "confirm_timeout"),
    **dict.fromkeys(("linger.ms", "queue.buffering.max.ms"), "linger"),
    **dict.fromkeys(("compression.type", "compression.codec"), "compression"),
    "transactional.id": "transactional_id",
    "message.max.bytes": "max_message_size",
}

_TRANSACTION_SECONDS: Final = 10  # more than confirm_timeout, so that this ends a page


class Producers:
    """One producer for all calls, and one that sends each message in a batch of its own. Each is made when it is first
    needed, and again after it was retired.
    """

    def __init__(self, address: Address, settings: PublisherSettings) -> None:
        self._address = address
        self._settings = settings
        self._shared: ProducerThread | None = None
        self._cautious: ProducerThread | None = None
        self.closings = 0
        """How often they were closed: a call that was under way then must not go on."""
        new_producer(self._config() | {"bootstrap.servers": ""})  # a wrong option is an error now

    def shared(self) -> ProducerThread:
        """The producer that all calls share: it makes batches of what they send. Raises Unreachable.

        It stops for good when a batch is refused, so that nothing behind it is taken.
        """
        if self._shared is None or self._shared.retired:
            self._shared = self._new({"enable.gapless.guarantee": True})
        return self._shared

    def cautious(self) -> ProducerThread:
        """The producer that finds which messages of a batch are refused: it sends each alone. Raises Unreachable."""
        if self._cautious is None or self._cautious.retired:
            self._cautious = self._new({"batch.num.messages": 1, "linger.ms": 0})
        return self._cautious

    def transactional(self, id: str) -> ProducerThread:
        """A new producer with this transactional id. Raises Unreachable."""
        milliseconds = int((self._settings.seconds("confirm_timeout") + _TRANSACTION_SECONDS) * 1000)
        timeouts = {"transaction.timeout.ms": milliseconds, "message.timeout.ms": milliseconds}
        return self._new({"transactional.id": id, **timeouts})

    async def close(self) -> None:
        """End all of them."""
        self.closings += 1
        links = [link for link in (self._shared, self._cautious) if link is not None]
        self._shared = self._cautious = None
        await asyncio.gather(*(link.end() for link in links))

    def admin_config(self) -> dict[str, Any]:
        """The configuration of a client that only asks."""
        return self._address.config(_TAKEN)

    def _new(self, more: dict[str, Any]) -> ProducerThread:
        try:
            return ProducerThread(self._config() | more, self._address.password)
        except InvalidSetting as error:  # a file that could be read when the publisher was built
            raise Unreachable(str(error)) from error

    def _config(self) -> dict[str, Any]:
        return {
            **self._address.config(_TAKEN),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # what Java's clients do
            "topic.metadata.propagation.max.ms": 0,  # a topic that is not there is a refusal at once
            "message.timeout.ms": 0,  # a call ends by confirm_timeout, and then all that is left is dropped
            "queue.buffering.max.messages": 0,  # a relay bounds what it sends
            "queue.buffering.max.kbytes": 2_147_483_647,
            "message.max.bytes": self._settings.max_message_size,
            "linger.ms": self._settings.seconds("linger") * 1000,
            "compression.type": self._settings.compression,
        }
