"""The subscriber's connection: assembles deliveries as they are read, and leaves every other frame to aiormq.

It has a channel for each queue, and one for questions. It stops reading from the socket while the deliveries that were
not acked take more memory than they may (`inflow`).
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import pamqp.frame
from aiormq.connection import Connection, FrameReceiver
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp.heartbeat import Heartbeat

from postroad.brokers.rabbitmq.channel import translated
from postroad.brokers.rabbitmq.delivery_channel import DeliveryChannel
from postroad.brokers.rabbitmq.inflow import Inflow
from postroad.brokers.rabbitmq.reading import BrokenFrame, FrameReader

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from aiormq.connection import ReceivedFrame
    from yarl import URL

    from postroad.brokers.rabbitmq.reading import Arrival

__all__ = ["DeliveryConnection"]

AT_A_TIME: Final = 1 << 16  # bytes


class DeliveryConnection(Connection):
    """A connection for channels up to the number `last`.

    A body of more than `largest` bytes is not kept in memory. Once deliveries with `most_bytes` in all are open,
    nothing more is read until some are acked; so memory holds at most that much, and what one read brings.
    """

    def __init__(self, url: URL, *, last: int, largest: int, most_bytes: int) -> None:
        super().__init__(url)
        self._last = last
        self._largest = largest
        self.inflow = Inflow(most_bytes, self.create_future)

    async def open_channel(self, number: int) -> DeliveryChannel:
        """Open the channel of this number, which no other has."""
        channel = DeliveryChannel(self, number, self.inflow)
        self.channels[number] = channel
        with translated():
            await channel.open()
        return channel

    # The name is private to aiormq, which has no other hook; if it changes, the channel refuses deliveries.

    async def _Connection__reader(self, receiver: FrameReceiver) -> None:  # noqa: N802
        frames = FrameReader(self._last, largest=self._largest)
        await super()._Connection__reader(  # type: ignore[misc]
            _Receiver(receiver.reader, frames, self._deliver, self.inflow.room)
        )

    def _deliver(self, arrivals: Sequence[Arrival]) -> None:
        for number, of_channel in groupby(arrivals, key=attrgetter("channel")):
            channel = self.channels.get(number)
            if isinstance(channel, DeliveryChannel):
                channel.deliver(list(of_channel))


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
        room: the connection works, even if a large message takes long.
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
