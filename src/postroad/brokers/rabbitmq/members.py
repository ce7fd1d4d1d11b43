"""How many processes share the partitions of a queue: as many as there are consumers of a queue without messages.

This queue is a classic one, because a quorum queue counts the consumers of a node that is down for as long as that is
down. So it may be unavailable while its own node is down. Then the number is unknown, and no process gives up
anything; when a process dies, its partitions go to others all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiormq.channel import Channel
from pamqp import commands

from postroad.brokers.rabbitmq.channel import LinkLost, translated

if TYPE_CHECKING:
    from aiormq.connection import Connection

__all__ = ["Members"]

CONSUMER_TAG: Final = "postroad"
AGAIN_SECONDS: Final = 30
"""How long after a failure the next try is made."""


class Members:
    """The processes that have a consumer of this queue, this one among them from the first `count` on."""

    def __init__(self, connection: Connection, number: int, queue: str, *, declare: bool) -> None:
        """`number` is that of a channel which no other part of the subscriber uses."""
        self._connection = connection
        self._number = number
        self._queue = queue
        self._declare = declare
        self._channel: _Channel | None = None
        self._not_before = 0.0

    async def count(self) -> int | None:
        """How many they are, or None if that is not known."""
        now = self._connection.loop.time()
        if now < self._not_before:
            return None
        try:
            with translated():
                if self._channel is None or self._channel.left:
                    self._channel = await self._join()
                declared = await self._channel.queue_declare(self._queue, passive=True)
        except LinkLost:
            self._channel = None
            self._not_before = now + AGAIN_SECONDS
            return None
        return declared.consumer_count

    async def _join(self) -> _Channel:
        if self._channel is not None:
            await self._channel.close()
        channel = _Channel(self._connection, self._number, publisher_confirms=False)
        self._connection.channels[self._number] = channel
        await channel.open()
        if self._declare:
            # A virtual host may have another type as its default.
            await channel.queue_declare(self._queue, durable=True, arguments={"x-queue-type": "classic"})
        await channel.rpc(commands.Basic.Consume(queue=self._queue, consumer_tag=CONSUMER_TAG, no_ack=True))
        return channel


class _Channel(Channel):
    left = False
    """The broker has cancelled the consumer: the queue was deleted, or its node is down."""

    async def _on_cancel_frame(self, frame: commands.Basic.CancelOk | commands.Basic.Cancel) -> None:
        self.left = True
        await super()._on_cancel_frame(frame)
