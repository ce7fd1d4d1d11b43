"""Leases on streams: the keys in Redis that hold them, and the commands that renew and release them. Pure.

A lease is a key with the name of its owner, which expires by Redis' own clock. A sorted set has the processes of the
consumer; each takes its share of the streams, and the shares differ by one at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.redis.scripts import LEASE, RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Leases"]

Command = tuple[str | int | bytes, ...]

_RENEWED: Final = 1


class Leases:
    """The leases of one group on its streams, as one process sees them."""

    def __init__(self, group: str, streams: Sequence[str], process: str, *, milliseconds: int) -> None:
        """`process` is the name of this process, which no other has, nor had."""
        self._group = group
        self.streams = tuple(streams)
        self.process = process
        self._milliseconds = milliseconds
        self._processes = f"postroad:{group}:processes"

    def key(self, stream: str) -> str:
        """The key of the lease on a stream."""
        return f"postroad:{self._group}:lease:{stream}"

    def renew(self) -> Command:
        """The command that renews what this process has, and takes its share of what is free."""
        keys = (self._processes, *map(self.key, self.streams))
        return ("EVAL", LEASE, len(keys), *keys, self.process, self._milliseconds)

    def of_reply(self, reply: Any) -> tuple[int, dict[str, bool]]:
        """The process's share, and the streams that it has leases on, each with whether the lease was renewed. One that
        was taken now may have been another process's meanwhile.
        """
        share, owned = reply
        return share, {stream: own == _RENEWED for stream, own in zip(self.streams, owned, strict=True) if own}

    def release(self, streams: Iterable[str], *, leaves: bool = False) -> Command:
        """The command that gives up leases; with `leaves`, the process is not counted any more."""
        keys = (self._processes, *map(self.key, streams))
        return ("EVAL", RELEASE, len(keys), *keys, self.process, "leaves" if leaves else "")
