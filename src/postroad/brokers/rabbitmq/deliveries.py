"""The subscriber's connection and channel: deliveries are kept until `arrivals` returns them, and acks go out together.

aiormq makes a task for each delivery and a write for each ack. A `DeliveryChannel` makes neither: it collects what
arrives until `arrivals` is called, and writes all acks of one iteration of the loop at once. Its `DeliveryConnection`
assembles deliveries as they are read, and leaves every other frame to aiormq. It stops reading from the socket while
the deliveries that were not acked take more memory than they may.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pamqp.frame
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import Connection, FrameReceiver
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp import commands
from pamqp.heartbeat import Heartbeat

from postroad.brokers.base import Delivery
from postroad.brokers.rabbitmq.acks import Acks
from postroad.brokers.rabbitmq.channel import LinkLost, translated
from postroad.brokers.rabbitmq.reading import BrokenFrame, FrameReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from aiormq.connection import ReceivedFrame
    from yarl import URL

    from postroad.brokers.rabbitmq.reading import Arrival

__all__ = ["DeliveryChannel", "DeliveryConnection"]

CONSUMER_TAG: Final = "postroad"
CHANNEL: Final = 1
FULL_SECONDS: Final = 0.01
AT_A_TIME: Final = 1 << 16  # bytes
ALIVE_SECONDS: Final = 1.0  # how often aiormq gets a heartbeat while nothing is read

# Every message has its ack, so this frame is not left to pamqp, which takes ten times as long for it.
_ACK: Final = struct.Struct(">BHIHHQ?B").pack  # frame type, channel, size; class, method, tag, multiple; end
_METHOD, _BASIC, _ACK_METHOD, _END = 1, 60, 80, 0xCE


class DeliveryChannel(Channel):
    """A channel with one consumer."""

    def __init__(self, connection: Connection, number: int, most_bytes: int) -> None:
        super().__init__(connection, number, publisher_confirms=False, frame_buffer=connection.FRAME_BUFFER_SIZE)
        self._most_bytes = most_bytes
        self._sizes: dict[int, int] = {}
        """The bytes of each delivery that was neither acked nor given back."""
        self.held_bytes = 0
        """Their sum."""
        self._room = asyncio.Event()
        self._room.set()
        self._discarding = False
        self._acks = Acks()
        self._arrived: list[Delivery] = []
        self._waiting: asyncio.Future[None] | None = None
        self._ended: LinkLost | None = None
        self._flushing: asyncio.Handle | None = None

    @property
    def ended(self) -> LinkLost | None:
        """The broker's reason for closing the channel, with its code."""
        return self._ended

    async def consume(self, queue: str, prefetch: int) -> None:
        """Begin to receive, with at most `prefetch` deliveries open at once."""
        with translated():
            await self.basic_qos(prefetch_count=prefetch)
            await self.rpc(commands.Basic.Consume(queue=queue, consumer_tag=CONSUMER_TAG))

    async def waiting(self, queue: str) -> int:
        """How many messages are in the queue, or have arrived and were not received."""
        with translated():
            declared = await self.queue_declare(queue, passive=True)
        return (declared.message_count or 0) + len(self._arrived)

    async def cancel_consumer(self) -> None:
        """Receive no more; what has arrived can still be acked."""
        self.discard()
        with translated():
            await self.rpc(commands.Basic.Cancel(consumer_tag=CONSUMER_TAG))

    async def arrivals(self) -> Sequence[Delivery]:
        """Wait until something has arrived, and return all of it. Raises LinkLost."""
        while not self._arrived:
            if self._ended is not None:
                raise self._ended
            # aiormq fails this future when the channel or the connection closes, also when they have closed already.
            self._waiting = self.create_future()
            try:
                with translated():
                    await self._waiting
            except LinkLost as lost:
                raise self.ended or lost from lost
        arrived, self._arrived = self._arrived, []
        return arrived

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
        if payload and not self.is_closed and self._ended is None and not self.write_queue.full():
            self.write_queue.put_nowait(ChannelFrame(payload=payload, should_close=False))

    async def room(self) -> bool:
        """Whether there is room for more deliveries; waits up to a second for it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_SECONDS):
                await self._room.wait()
        return self._room.is_set()

    def discard(self) -> None:
        """Drop what arrives from now on, but go on reading, so that the broker's answers are not missed. The broker
        requeues what is dropped when the channel closes.
        """
        self._discarding = True
        self._room.set()

    def _release(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.held_bytes -= self._sizes.pop(delivery.tag, 0)
        if self.held_bytes < self._most_bytes:
            self._room.set()

    def _hold(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self._sizes[arrival.tag] = arrival.held
            self.held_bytes += arrival.held
        if self.held_bytes >= self._most_bytes:
            self._room.clear()

    def deliver(self, arrivals: Sequence[Arrival]) -> None:
        """Keep these until `arrivals` is called."""
        if self._discarding:
            return
        self._hold(arrivals)
        self._arrived += (
            Delivery(
                session=self,
                tag=arrival.tag,
                body=arrival.body,
                headers=arrival.properties.headers or {},
                content_type=arrival.properties.content_type,
                message_id=arrival.properties.message_id,
                type=arrival.properties.message_type,
                correlation_id=arrival.properties.correlation_id,
                redelivered=arrival.redelivered,
                unreadable=arrival.unreadable,
                original=arrival,
            )
            for arrival in arrivals
        )
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # aiormq calls these for the frames that it reads.

    async def _on_deliver_frame(self, _: commands.Basic.Deliver) -> None:
        self._end(LinkLost("aiormq received a delivery by itself: this version of aiormq does not work with postroad"))

    async def _on_cancel_frame(self, frame: commands.Basic.CancelOk | commands.Basic.Cancel) -> None:
        if isinstance(frame, commands.Basic.Cancel):
            self._end(LinkLost("the broker has cancelled the consumer; its queue was deleted or has moved"))
        await super()._on_cancel_frame(frame)

    async def _on_close_frame(self, frame: commands.Channel.Close) -> None:
        self._end(LinkLost(frame.reply_text or "the channel was closed", frame.reply_code))
        await super()._on_close_frame(frame)

    def _end(self, lost: LinkLost) -> None:
        self._ended = self._ended or lost
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(lost)


class DeliveryConnection(Connection):
    """A connection for one `DeliveryChannel`.

    A body of more than `largest` bytes is not kept in memory. Once deliveries with `most_bytes` in all are open,
    nothing more is read until some are acked; so memory holds at most that much, and what one read brings.
    """

    def __init__(self, url: URL, *, largest: int, most_bytes: int) -> None:
        super().__init__(url)
        self._largest = largest
        self._most_bytes = most_bytes
        self._channel: DeliveryChannel | None = None

    async def open_channel(self) -> DeliveryChannel:
        """Open the channel for deliveries."""
        self._channel = channel = DeliveryChannel(self, CHANNEL, self._most_bytes)
        self.channels[channel.number] = channel
        with translated():
            await channel.open()
        return channel

    # The name is private to aiormq, which has no other hook; if it changes, the channel refuses deliveries.

    async def _Connection__reader(self, receiver: FrameReceiver) -> None:  # noqa: N802
        await super()._Connection__reader(  # type: ignore[misc]
            _Receiver(receiver.reader, FrameReader(CHANNEL, largest=self._largest), self._deliver, self._has_room)
        )

    async def _has_room(self) -> bool:
        return self._channel is None or await self._channel.room()

    def _deliver(self, arrivals: Sequence[Arrival]) -> None:
        if self._channel is not None:
            self._channel.deliver(arrivals)


class _Receiver(FrameReceiver):
    """Gives aiormq every frame that is no part of a delivery."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        frames: FrameReader,
        deliver: Callable[[Sequence[Arrival]], None],
        has_room: Callable[[], Awaitable[bool]],
    ) -> None:
        super().__init__(reader)
        self._frames = frames
        self._deliver = deliver
        self._has_room = has_room

    async def get_frame(self) -> ReceivedFrame:
        """The next frame. A read that brings only parts of deliveries counts as a heartbeat, and so does a wait for
        room: the broker lives, even if a large message takes long.
        """
        if not self._frames.others and await self._has_room():
            await self._read()
        if not self._frames.others:
            return 8, 0, Heartbeat()
        try:
            return pamqp.frame.unmarshal(self._frames.others.popleft())
        except pamqp.exceptions.PAMQPException as error:
            raise InvalidFrameError(str(error)) from error

    async def _read(self) -> None:
        try:
            data = await self.reader.read(AT_A_TIME)
            self._frames.feed(data)
        except BrokenFrame as error:
            raise InvalidFrameError(str(error)) from error
        except OSError as error:
            raise AMQPConnectionError(f"the connection was lost: {error}") from error
        if not data:
            raise AMQPConnectionError("the broker closed the connection and gave no reason")
        if self._frames.arrived:
            arrived, self._frames.arrived = self._frames.arrived, []
            self._deliver(arrived)
