"""A channel of the subscriber: with a consumer of one queue, or for questions to the broker. Acks go out together.

aiormq makes a task for each delivery and a write for each ack. A `DeliveryChannel` makes neither: what arrives goes to
the connection's `Inflow`, and all acks of one iteration of the loop are written at once.

When such a channel is closed, the broker requeues what was not acked, in its place, before the queue's next consumer
gets anything.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pamqp.frame
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from pamqp import commands

from postroad.brokers.base import Delivery
from postroad.brokers.rabbitmq.acks import Acks
from postroad.brokers.rabbitmq.channel import LinkLost, translated

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Iterable, Sequence

    from aiormq.connection import Connection

    from postroad.brokers.rabbitmq.inflow import Inflow
    from postroad.brokers.rabbitmq.reading import Arrival

__all__ = ["DeliveryChannel"]

CONSUMER_TAG: Final = "postroad"
FULL_SECONDS: Final = 0.01

# Every message has its ack, so this frame is not left to pamqp, which takes ten times as long for it.
_ACK: Final = struct.Struct(">BHIHHQ?B").pack  # frame type, channel, size; class, method, tag, multiple; end
_METHOD, _BASIC, _ACK_METHOD, _END = 1, 60, 80, 0xCE


class DeliveryChannel(Channel):
    """A channel with at most one consumer."""

    def __init__(self, connection: Connection, number: int, inflow: Inflow) -> None:
        super().__init__(connection, number, publisher_confirms=False, frame_buffer=connection.FRAME_BUFFER_SIZE)
        self._inflow = inflow
        self._sizes: dict[int, int] = {}
        """The bytes of each delivery that was neither acked nor given back."""
        self.queue: str | None = None
        """The queue that it consumes from."""
        self.active = False
        """Something was delivered to it: of all consumers of its queue, it is the active one."""
        self._discarding = False
        self.finished = False
        """Nothing is sent on it any more."""
        self._acks = Acks()
        self._flushing: asyncio.Handle | None = None

    async def consume(self, queue: str, prefetch: int) -> None:
        """Begin to receive, with at most `prefetch` deliveries open at once."""
        self.queue = queue
        with translated():
            await self.basic_qos(prefetch_count=prefetch)
            await self.rpc(commands.Basic.Consume(queue=queue, consumer_tag=CONSUMER_TAG))

    async def count(self, queue: str) -> tuple[int, int]:
        """How many messages and how many consumers a queue has."""
        with translated():
            declared = await self.queue_declare(queue, passive=True)
        return declared.message_count or 0, declared.consumer_count or 0

    async def cancel_consumer(self) -> None:
        """Receive no more; what has arrived can still be acked."""
        self.discard()
        with translated():
            await self.rpc(commands.Basic.Cancel(consumer_tag=CONSUMER_TAG))

    def ack(self, deliveries: Collection[Delivery]) -> None:
        """Ack these, in the next iteration of the loop."""
        self._release(deliveries)
        for delivery in deliveries:
            self._acks.done(delivery.tag)
        if self._flushing is None:
            self._flushing = self.loop.call_soon(self.flush)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Requeue these now, or, if the write queue is full, when the channel closes."""
        self._release(deliveries)
        if self.write_queue.full():
            return
        tags = [delivery.tag for delivery in deliveries if self._acks.mark_sent(delivery.tag)]
        nacks = (commands.Basic.Nack(tag, multiple=False, requeue=True) for tag in tags)
        self._write(pamqp.frame.marshal(nack, self.number) for nack in nacks)

    def flush(self) -> None:
        """Send the acks that are due."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self.write_queue.full() and not self.is_closed:
            self._flushing = self.loop.call_later(FULL_SECONDS, self.flush)
            return
        self._write(_ACK(_METHOD, self.number, 13, _BASIC, _ACK_METHOD, *ack, _END) for ack in self._acks.next())

    def _write(self, frames: Iterable[bytes]) -> None:
        payload = b"".join(frames)
        # If the write queue is full, the deliveries come again, and the inbox recognizes them.
        writable = not (self.finished or self.is_closed or self._inflow.ended or self.write_queue.full())
        if payload and writable:
            self.write_queue.put_nowait(ChannelFrame(payload=payload, should_close=False))

    def discard(self) -> None:
        """Drop what was not received and what arrives from now on. The broker requeues it when the channel closes."""
        self._discarding = True
        self._inflow.drop(self)

    def finish(self) -> None:
        """Send the acks that are due, and then nothing: RabbitMQ ends a connection that writes to a closed channel."""
        self.discard()
        self.flush()
        self.finished = True
        self._inflow.release(sum(self._sizes.values()))
        self._sizes.clear()

    def _release(self, deliveries: Iterable[Delivery]) -> None:
        self._inflow.release(sum(self._sizes.pop(delivery.tag, 0) for delivery in deliveries))

    def deliver(self, arrivals: Sequence[Arrival]) -> None:
        """Keep these until they are received."""
        if self._discarding:
            return
        self.active = True
        self._sizes.update((arrival.tag, arrival.held) for arrival in arrivals)
        deliveries = [
            Delivery(
                session=self,
                tag=arrival.tag,
                body=arrival.body,
                headers=arrival.properties.headers or {},
                content_type=arrival.properties.content_type,
                message_id=arrival.properties.message_id,
                type=arrival.properties.type,
                correlation_id=arrival.properties.correlation_id,
                redelivered=arrival.redelivered,
                unreadable=arrival.unreadable,
                original=arrival,
            )
            for arrival in arrivals
        ]
        self._inflow.add(deliveries, sum(arrival.held for arrival in arrivals))

    # aiormq calls these for the frames that it reads.

    async def _on_deliver_frame(self, _: commands.Basic.Deliver) -> None:
        self._inflow.end(
            LinkLost("aiormq received a delivery by itself: this version of aiormq does not work with postroad")
        )

    async def _on_cancel_frame(self, frame: commands.Basic.CancelOk | commands.Basic.Cancel) -> None:
        if isinstance(frame, commands.Basic.Cancel):
            self._inflow.end(LinkLost("the broker has cancelled the consumer; its queue was deleted or has moved"))
        await super()._on_cancel_frame(frame)

    async def _on_close_frame(self, frame: commands.Channel.Close) -> None:
        self._inflow.end(LinkLost(frame.reply_text or "the channel was closed", frame.reply_code))
        await super()._on_close_frame(frame)
