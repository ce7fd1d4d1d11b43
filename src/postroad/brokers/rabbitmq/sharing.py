"""The partitions of a queue that this process has, and how it gives some up for processes that have none.

Each process has a consumer on each queue, and RabbitMQ makes one of them active: the first that came. So a process that
is alone has all of them, and when one dies, others have its queues at once. Once a second, a process that is active on
more queues than its share gives up the others: nothing more of them is begun, what is under way ends and is acked, and
the channel is closed. RabbitMQ then requeues the rest in its place and makes the next consumer active; here, a new
channel goes to the end of the line.

The close is what keeps a key in order: RabbitMQ would make the next consumer active as soon as one is cancelled, and
that would begin with the messages behind those that are not acked here.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from postroad.brokers.base import Revoked
from postroad.brokers.rabbitmq.channel import CLOSE_SECONDS, LinkLost, translated
from postroad.brokers.rabbitmq.partitions import surplus
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from postroad.brokers.rabbitmq.deliveries import DeliveryConnection
    from postroad.brokers.rabbitmq.delivery_channel import DeliveryChannel
    from postroad.brokers.rabbitmq.members import Members
    from postroad.brokers.rabbitmq.partitions import Names

__all__ = ["Sharing"]

EVERY_SECONDS: Final = 1.0


class Sharing:
    """The channels of one connection that consume from partitions."""

    def __init__(
        self,
        connection: DeliveryConnection,
        channels: dict[str, DeliveryChannel],
        names: Names,
        members: Members,
        *,
        prefetch: int,
    ) -> None:
        """`channels` has a channel for each queue. It is kept up to date."""
        self._connection = connection
        self._channels = channels
        self._names = names
        self._members = members
        self._prefetch = prefetch
        self._active: list[str] = []
        self._leaving: set[str] = set()
        self._closed = False
        self.revoked: list[Revoked] = []
        """What the next calls of `receive` return."""
        self._tasks = {asyncio.create_task(self._run())}

    async def close(self) -> None:
        """Give up nothing more."""
        # aiormq may answer a cancellation with an error of its own, which would end no loop that goes on after errors.
        self._closed = True
        await cancel_and_wait(*self._tasks, seconds=CLOSE_SECONDS)

    async def _run(self) -> None:
        while not (self._closed or self._connection.is_closed):
            await asyncio.sleep(EVERY_SECONDS)
            await self.run_once()

    async def run_once(self) -> None:
        """Give up what others should have."""
        members = await self._members.count()
        active = [each for each in self._names.queues if self._channels[each].active and each not in self._leaving]
        self._active = [each for each in self._active if each in active]
        self._active += [each for each in active if each not in self._active]
        for queue in surplus(self._active, self._names.partitions, members or 1):
            self._give_up(queue)

    def _give_up(self, queue: str) -> None:
        self._leaving.add(queue)
        channel = self._channels[queue]
        channel.discard()
        self.revoked.append(Revoked(frozenset((channel,)), partial(self._released, channel, queue)))
        self._connection.inflow.wake()

    def _released(self, channel: DeliveryChannel, queue: str) -> None:
        if not channel.finished:
            channel.finish()
            task = asyncio.create_task(self._hand_over(channel, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, channel: DeliveryChannel, queue: str) -> None:
        """Leave the queue to the next consumer, and stand in line again."""
        try:
            with translated():
                await channel.close()
            self._channels[queue] = again = await self._connection.open_channel(channel.number)
            await again.consume(queue, self._prefetch)
        except LinkLost as lost:
            self._connection.inflow.end(lost)
        self._leaving.discard(queue)
