"""The channel that publishes dead letters: persistent, mandatory, confirmed, with the body in pieces.

aiormq's own `basic_publish` puts a whole message together before it writes any of it. A body that was too large for
memory must not be in memory here either, so it is written frame by frame, as fast as the broker reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pamqp.frame
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiormq.connection import Connection

    from postroad.brokers.rabbitmq.properties import DeadLetter
    from postroad.brokers.rabbitmq.reading import Arrival

__all__ = ["DeadLetterChannel"]


class DeadLetterChannel(Channel):
    """A channel with publisher confirms. A call that fails leaves it unusable: close it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, 1, publisher_confirms=True, frame_buffer=connection.FRAME_BUFFER_SIZE)

    async def publish(self, queue: str, letter: DeadLetter, arrival: Arrival, *, progress: Callable[[], None]) -> None:
        """Publish the arrival's body with these properties, and wait until it is confirmed.

        `progress` is called for each piece that was written. Raises what aiormq does for a return or a nack.
        """
        async with self.lock:
            self.delivery_tag += 1
            confirmation = self.confirmations[self.delivery_tag] = self.create_future()
            self.message_id_delivery_tag[letter.message_id] = self.delivery_tag
            publish = commands.Basic.Publish(exchange="", routing_key=queue, mandatory=True)
            header = ContentHeader(body_size=arrival.body_size, properties=_Encoded(letter))
            await self._put(pamqp.frame.marshal(publish, self.number) + pamqp.frame.marshal(header, self.number))
            for piece in arrival.pieces(self.max_content_size):
                await self._put(pamqp.frame.marshal(ContentBody(piece), self.number))
                progress()
        try:
            await confirmation
        finally:
            self.message_id_delivery_tag.pop(letter.message_id, None)

    async def _put(self, payload: bytes) -> None:
        await self.write_queue.put(ChannelFrame(payload=payload, should_close=False))


class _Encoded(commands.Basic.Properties):
    """Properties that are encoded already."""

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(message_id=letter.message_id)
        self._encoded = letter.properties

    def marshal(self) -> bytes:
        return self._encoded
