"""One stream while this process has its lease: what was delivered of it and is not acked, and where reading goes on.
Pure.

Entries that were delivered before and not acked are read first, in order, and only then new ones: so of a key nothing
overtakes what a process that died has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.redis.reading import Entry

if TYPE_CHECKING:
    from postroad.brokers.base import Delivery
    from postroad.brokers.redis.reading import Reader

__all__ = ["StreamSession"]

FIRST_READ: Final = 16
"""How many entries are asked for while it is not known how large they are."""


class StreamSession:
    """The session of one stream."""

    def __init__(self, stream: str, *, prefetch: int, max_bytes: int) -> None:
        self.stream = stream
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self.cursor = "0-0"
        """Where to go on among what was delivered before; '>' behind it."""
        self.last_id = "0-0"
        """The last entry that the group has read, once there was nothing more."""
        self.hungry = True
        """There may be entries to read."""
        self.ending = False
        """Another process is to get the stream: nothing more is read here."""
        self._open: dict[int, tuple[str, int]] = {}
        self._held = 0
        self._read, self._bytes = 0, 0
        self._next_tag = 1

    @property
    def open(self) -> int:
        """How many entries were delivered and not acked."""
        return len(self._open)

    @property
    def room(self) -> int:
        """How many entries may be read now, by their number and the size that they usually have."""
        room = self._prefetch - len(self._open)
        if room <= 0 or self._held >= self._max_bytes:
            return 0
        if not self._read:
            return min(room, FIRST_READ)
        usual = max(1, self._bytes // self._read)
        return max(1, min(room, (self._max_bytes - self._held) // usual))

    def deliver(self, reply: list[Any], reader: Reader) -> list[Delivery]:
        """What the script `read` has returned, as deliveries."""
        before = self.cursor != ">"
        self.cursor = reply[0].decode()
        found = [self._delivery(each, reader, redelivered=before) for each in reply[1] if each and each[1]]
        self.hungry = bool(found) or before
        if len(reply) > 3:
            self.last_id = reply[3].decode()
        return found

    def _delivery(self, entry: list[Any], reader: Reader, *, redelivered: bool) -> Delivery:
        id, fields = entry[0].decode(), entry[1]
        tag, size = self._next_tag, sum(map(len, fields))
        self._next_tag += 1
        self._open[tag] = (id, size)
        self._held += size
        self._read += 1
        self._bytes += size
        return reader.delivery(Entry(self.stream, id, fields), self, tag, redelivered=redelivered)

    def finish(self, tag: int) -> str | None:
        """An entry is acked. Returns its id; None if it was acked before."""
        id, size = self._open.pop(tag, (None, 0))
        self._held -= size
        return id
