"""What a NATS server sends, read from the bytes of a connection. Pure: `feed` takes bytes and returns whole frames.

Headers are left as bytes; `headers_of` reads them. A value is text in UTF-8 as it was sent: it may be percent-encoded.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "Arrival",
    "Failure",
    "Info",
    "Ping",
    "Pong",
    "ProtocolError",
    "Reader",
    "header_in",
    "headers_of",
    "status_of",
]

LONGEST_LINE: Final = 1 << 20
"""An INFO with all servers of a large cluster has some kilobytes."""
LARGEST_MESSAGE: Final = 1 << 30
"""No server sends more: 64 MB is the most that max_payload can be."""
_VERSION: Final = b"NATS/1.0"
_CONFIRM: Final = re.compile(rb"MSG ([^ \r]+) ([^ \r]+) ([0-9]{1,6})\r\n({[^\r]*})\r\n").match
"""A short message of JSON, without headers and not to be answered, as all confirms are: read in one go."""


class ProtocolError(Exception):
    """These bytes are not what a NATS server sends."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A message of a subscription."""

    subject: bytes
    sid: bytes
    reply: bytes
    """Where to answer; empty if there is no such place."""
    headers: bytes
    """The whole block; empty if there are none."""
    body: bytes


class Info(NamedTuple):
    """What the server says about itself, as JSON."""

    json: bytes


class Failure(NamedTuple):
    """An error of the server; for some, it ends the connection."""

    text: str


class Ping(NamedTuple):
    """The server asks for a Pong."""


class Pong(NamedTuple):
    """The server has read all that was sent before the PING."""


Frame = Arrival | Info | Failure | Ping | Pong


class Reader:
    """Reads one connection."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._needed = 1

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with these bytes. Raises ProtocolError."""
        self._parts.append(data)
        self._length += len(data)
        if self._length < self._needed:  # a large message arrives in many pieces
            return []
        buffer = b"".join(self._parts) if len(self._parts) > 1 else data
        frames, position = self._frames(buffer)
        rest = buffer[position:]
        self._parts, self._length = [rest] if rest else [], len(rest)
        return frames

    def _frames(self, buffer: bytes) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        position = 0
        self._needed = 1
        while True:
            if (confirm := _CONFIRM(buffer, position)) is not None:
                subject, sid, size, body = confirm.groups()
                if len(body) == int(size):
                    frames.append(Arrival(subject, sid, b"", b"", body))
                    position = confirm.end()
                    continue
            end = buffer.find(b"\r\n", position)
            if end < 0:
                if len(buffer) - position > LONGEST_LINE:
                    raise ProtocolError("a line is too long")
                return frames, position
            start = buffer[position : position + 1]
            if start in {b"M", b"H"}:
                line = buffer[position:end].split(b" ")
                headers, size = _sizes(line)
                following = end + 4 + size
                if len(buffer) < following:
                    self._needed = following - position
                    return frames, position
                if buffer[following - 2 : following] != b"\r\n":
                    raise ProtocolError(f"a message has another size than it says: {line!r:.100}")
                body = buffer[end + 2 + headers : end + 2 + size]
                reply = line[3] if len(line) == (6 if start == b"H" else 5) else b""
                frames.append(Arrival(line[1], line[2], reply, buffer[end + 2 : end + 2 + headers], body))
                position = following
            else:
                if (frame := _other(buffer[position:end])) is not None:
                    frames.append(frame)
                position = end + 2


def _sizes(line: list[bytes]) -> tuple[int, int]:
    """The size of the headers, and of all, from the line of a MSG or HMSG."""
    try:
        if line[0] == b"MSG" and len(line) in {4, 5}:
            sizes = 0, int(line[-1])
        elif line[0] == b"HMSG" and len(line) in {5, 6}:
            sizes = int(line[-2]), int(line[-1])
        else:
            raise ProtocolError(f"not a message: {line!r:.100}")
    except ValueError:
        raise ProtocolError(f"a message without a size: {line!r:.100}") from None
    if not 0 <= sizes[0] <= sizes[1] <= LARGEST_MESSAGE:
        raise ProtocolError(f"a message with a wrong size: {line!r:.100}")
    return sizes


def _other(line: bytes) -> Frame | None:
    if line == b"PING":
        return Ping()
    if line == b"PONG":
        return Pong()
    if line.startswith(b"INFO "):
        return Info(line[5:].strip())
    if line.startswith(b"-ERR"):
        return Failure(line[4:].strip().strip(b"'").decode(errors="replace"))
    if line == b"+OK":
        return None
    raise ProtocolError(f"not a frame of NATS: {line!r:.100}")


def status_of(headers: bytes) -> tuple[int, str]:
    """The status in the first line of a header block, and its text; 0 for a message of its own."""
    line = headers[len(_VERSION) : headers.find(b"\r\n")].strip()
    code, _, text = line.partition(b" ")
    return (int(code), text.decode(errors="replace").strip()) if code.isdigit() else (0, "")


def headers_of(block: bytes) -> dict[str, str]:
    """The headers of a block; of those with the same name, the last. Raises UnicodeDecodeError."""
    headers = {}
    for line in block.decode().split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def header_in(block: bytes, name: bytes) -> str | None:
    """The last value of a header that the server itself adds, whatever bytes the others have; None without it."""
    _, found, rest = block.rpartition(b"\r\n%b:" % name)
    return rest.partition(b"\r\n")[0].strip().decode(errors="replace") if found else None
