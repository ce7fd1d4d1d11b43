"""Assembles deliveries from the bytes of a connection, in whatever pieces they come.

A delivery is three frames or more: basic.deliver, content header, content bodies. aiormq waits three times for each
frame and hands each from task to task, which is an eighth of all that a consumer does. Here they are assembled
directly, `decoding` decodes their properties, and every other frame is passed on as it came.

Messages are not trusted: a delivery whose properties can't be decoded becomes a dead letter, because an error of the
connection would make it come again for ever. A body that is larger than allowed is never kept in memory: it goes into a
file (`spool`), and the delivery becomes a dead letter too.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from postroad.brokers.rabbitmq.decoding import decoded
from postroad.brokers.rabbitmq.settings import LARGEST_BODY
from postroad.brokers.rabbitmq.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroad.brokers.rabbitmq.decoding import Known

__all__ = ["Arrival", "BrokenFrame", "FrameReader"]

_FRAME: Final = struct.Struct(">BHI").unpack_from  # frame type, channel, size
_HEADER_SIZE: Final = 7
_END: Final = 0xCE
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER: Final = struct.pack(">HH", 60, 60)  # class basic, method deliver
_TAG: Final = struct.Struct(">Q?").unpack_from  # delivery tag, redelivered
_BODY_SIZE: Final = struct.Struct(">4xQ").unpack_from  # after class and weight
_PROPERTIES_AT: Final = 12
_LARGEST_FRAME: Final = 1 << 27  # larger than any broker allows


class BrokenFrame(Exception):
    """These bytes are not AMQP, so nothing after them can be read."""


class Arrival(NamedTuple):
    """A delivery as it came."""

    tag: int
    redelivered: bool
    properties: Known
    """Those that could be decoded."""
    raw: bytes
    """All properties, as they came."""
    body: bytes
    unreadable: str | None = None
    """Why the properties can't be decoded, or the body was not kept in memory."""
    spool: Spool | None = None
    """The body, if it is too large for memory."""
    channel: int = 1

    @property
    def body_size(self) -> int:
        """How long the body is."""
        return len(self.body) if self.spool is None else self.spool.size

    @property
    def held(self) -> int:
        """How many bytes of memory it takes, before decoding."""
        return len(self.body) + len(self.raw)

    def pieces(self, size: int) -> Iterator[bytes]:
        """The body, at most `size` bytes at a time."""
        if self.spool is not None:
            return self.spool.pieces(size)
        return (self.body[at : at + size] for at in range(0, len(self.body), size))


class FrameReader:
    """Reads a connection whose channels up to `last` have consumers. Whole deliveries are put into `arrived`."""

    def __init__(self, last: int = 1, *, largest: int = LARGEST_BODY) -> None:
        """A body of more than `largest` bytes is kept in a file."""
        self._largest = largest
        self.arrived: list[Arrival] = []
        self.others: deque[bytes] = deque()
        """All other frames, whole."""
        self._last = last
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = _HEADER_SIZE
        """How many bytes must have come before the next frame is whole."""
        self._unfinished: dict[int, _Unfinished] = {}
        """By channel: a broker may send frames of another channel between those of a delivery."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises BrokenFrame."""
        self._pieces.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        at, have, need = 0, len(data), _HEADER_SIZE
        while have - at >= _HEADER_SIZE:
            kind, channel, size = _FRAME(data, at)
            if size > _LARGEST_FRAME:
                raise BrokenFrame(f"a frame of {size:,} bytes was announced")
            end = at + _HEADER_SIZE + size
            if have <= end:
                need = end + 1 - at
                break
            if data[end] != _END:
                raise BrokenFrame("a frame does not end where it should")
            if not 0 < channel <= self._last or not self._take(kind, channel, data[at + _HEADER_SIZE : end]):
                self.others.append(data[at : end + 1])
            at = end + 1
        self._pieces, self._have, self._need = [data[at:]], have - at, need

    def _take(self, kind: int, channel: int, frame: bytes) -> bool:
        """Add the frame to the delivery that it is a part of. False if it is a part of none."""
        delivery = self._unfinished.get(channel)
        try:
            if kind == _METHOD:
                if not frame.startswith(_DELIVER):
                    return False
                if delivery is not None:
                    raise BrokenFrame("a delivery begins before the one before it has ended")
                at = len(_DELIVER)
                tag, redelivered = _TAG(frame, at + 1 + frame[at])  # after the consumer's tag
                self._unfinished[channel] = _Unfinished(channel, tag, redelivered)
                return True
            if delivery is None:
                return False
            if kind == _HEADER:
                delivery.header(frame, self._largest)
            elif kind == _BODY:
                delivery.body(frame)
            else:
                return False
        except (struct.error, IndexError) as error:
            raise BrokenFrame(f"a frame is too short for what it is: {error}") from error
        if delivery.missing == 0:
            self.arrived.append(delivery.finished())
            del self._unfinished[channel]
        return True


class _Unfinished:
    """A delivery of which not all has come."""

    __slots__ = (
        "_bodies",
        "_channel",
        "_properties",
        "_raw",
        "_redelivered",
        "_spool",
        "_tag",
        "_unreadable",
        "missing",
    )

    def __init__(self, channel: int, tag: int, redelivered: bool) -> None:
        self._channel = channel
        self._tag = tag
        self._redelivered = redelivered
        self._unreadable: str | None = None
        self._bodies: list[bytes] = []
        self._spool: Spool | None = None
        self.missing: int | None = None
        """How many bytes of its bodies are still to come; unknown before its header."""

    def header(self, frame: bytes, largest: int) -> None:
        if self.missing is not None:
            raise BrokenFrame("a delivery has two headers")
        (size,) = _BODY_SIZE(frame)
        if size > LARGEST_BODY:
            raise BrokenFrame(f"a body of {size:,} bytes was announced")
        self.missing = size
        self._raw = frame[_PROPERTIES_AT:]
        self._properties, self._unreadable = decoded(frame, _PROPERTIES_AT)
        if size > largest:
            self._spool = Spool()
            self._unreadable = f"its body has {size:,} bytes, and max_message_size is {largest:,}"

    def body(self, frame: bytes) -> None:
        if self.missing is None or self.missing < len(frame):
            raise BrokenFrame("a delivery has a longer body than was announced")
        if self._spool is None:
            self._bodies.append(frame)
        else:
            self._spool.write(frame)
        self.missing -= len(frame)

    def finished(self) -> Arrival:
        body = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
        return Arrival(
            self._tag,
            self._redelivered,
            self._properties,
            self._raw,
            body,
            self._unreadable,
            self._spool,
            self._channel,
        )
