"""How deliveries are read: bytes in the pieces in which they come, whole deliveries out. Nothing here does I/O.

A delivery is three frames or more: basic.deliver, content header, content bodies. aiormq waits three times for each
frame and hands each from task to task, which is an eighth of all that a consumer does. Here they are put together on
the spot; properties are left to pamqp, and every other frame is given out as it came.

What others may send is not trusted: properties that can't be read belong to a delivery that is buried, and would end
every session anew if they were an error of the connection.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from pamqp.commands import Basic
from pamqp.header import ContentHeader

__all__ = ["Arrival", "BrokenFrame", "FrameReader"]

_FRAME: Final = struct.Struct(">BHI").unpack_from  # frame type, channel, size
_HEADER_SIZE: Final = 7
_END: Final = 0xCE
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER: Final = struct.pack(">HH", 60, 60)  # class basic, method deliver
_TAG: Final = struct.Struct(">Q?").unpack_from  # delivery tag, redelivered
_BODY_SIZE: Final = struct.Struct(">Q").unpack_from
_BODY_SIZE_AT: Final = 4  # behind class and weight
_PROPERTIES_AT: Final = 12
_FRAMES_AT_MOST: Final = 1 << 27  # what no broker allows


class BrokenFrame(Exception):
    """These bytes are no AMQP; nothing that comes after them can be understood."""


class Arrival(NamedTuple):
    """A delivery as it came."""

    tag: int
    redelivered: bool
    properties: Basic.Properties
    body: bytes
    unreadable: str | None = None
    """Why its properties can't be read."""


class FrameReader:
    """What a connection receives that has one channel with one consumer. Deliveries wait in `arrived`."""

    def __init__(self) -> None:
        self.arrived: list[Arrival] = []
        self.others: deque[bytes] = deque()
        """All other frames, whole."""
        self._data = b""
        self._delivery: _Unfinished | None = None

    def feed(self, data: bytes) -> None:
        """These bytes have come. Raises BrokenFrame."""
        data = self._data + data if self._data else data
        at, have = 0, len(data)
        while have - at >= _HEADER_SIZE:
            kind, _, size = _FRAME(data, at)
            begin = at + _HEADER_SIZE
            end = begin + size
            if size > _FRAMES_AT_MOST:
                raise BrokenFrame(f"a frame of {size:,} bytes was announced")
            if have <= end:
                break
            if data[end] != _END:
                raise BrokenFrame("a frame does not end where it should")
            try:
                taken = self._take(kind, data, begin, end)
            except (struct.error, IndexError) as error:
                raise BrokenFrame(f"a frame is too short for what it is: {error}") from error
            if not taken:
                self.others.append(data[at : end + 1])
            at = end + 1
        self._data = data[at:]

    def _take(self, kind: int, data: bytes, begin: int, end: int) -> bool:
        """Whether the frame is a delivery's, and then it is dealt with."""
        if kind == _METHOD and data.startswith(_DELIVER, begin, end):
            at = begin + len(_DELIVER)
            self._delivery = _Unfinished(*_TAG(data, at + 1 + data[at]))  # behind the consumer's tag
            return True
        delivery = self._delivery
        if delivery is None or kind not in {_HEADER, _BODY}:
            return False
        if kind == _HEADER:
            delivery.header(data[begin:end])
        else:
            delivery.body(data[begin:end])
        if delivery.missing <= 0:
            self.arrived.append(delivery.finished())
            self._delivery = None
        return True


class _Unfinished:
    """A delivery of which not all has come."""

    __slots__ = ("_bodies", "_properties", "_redelivered", "_tag", "_unreadable", "missing")

    def __init__(self, tag: int, redelivered: bool) -> None:
        self._tag = tag
        self._redelivered = redelivered
        self._properties = Basic.Properties()
        self._unreadable: str | None = None
        self._bodies: list[bytes] = []
        self.missing = 1
        """How many bytes of its bodies are still to come; unknown before its header."""

    def header(self, data: bytes) -> None:
        (self.missing,) = _BODY_SIZE(data, _BODY_SIZE_AT)
        header = ContentHeader()
        try:
            header.unmarshal(data)
            self._properties = header.properties
        except Exception as error:  # pamqp's own errors, and those of what it calls: a time that is none, for example
            self._unreadable = f"{type(error).__name__}: {error} in {data[_PROPERTIES_AT:].hex()}"

    def body(self, data: bytes) -> None:
        self._bodies.append(data)
        self.missing -= len(data)

    def finished(self) -> Arrival:
        body = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
        return Arrival(self._tag, self._redelivered, self._properties, body, self._unreadable)
