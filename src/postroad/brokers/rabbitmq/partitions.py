"""How a queue is divided into partitions, and which of them a process gives up for others. Pure.

All keys are divided into PORTIONS portions, by slot. A publisher sends the portion of a message as a second routing
key, which RabbitMQ removes before it delivers (the header BCC). A consumer with `partitions` has an exchange of its own
that routes by this key alone, to its own number of queues. So the publisher need not know any consumer's number.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from postroad.message import SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BCC_HEADERS", "PORTIONS", "SLOTS_PER_PORTION", "Names", "portion_keys", "surplus"]

T = TypeVar("T")

PORTIONS: Final = 128
SLOTS_PER_PORTION: Final = SLOTS // PORTIONS

_LENGTH: Final = struct.Struct(">I").pack


def _portion_key(portion: int) -> str:
    # Five words, because wildcards of bindings that are made for topics should not match it.
    return f"postroad.portion.{portion}.of.{PORTIONS}"


def _bcc(portion: int) -> bytes:
    key = _portion_key(portion).encode()
    array = b"S" + _LENGTH(len(key)) + key
    return b"\x03BCCA" + _LENGTH(len(array)) + array


BCC_HEADERS: Final = tuple(map(_bcc, range(PORTIONS)))
"""For each portion the header with its routing key, encoded as a field of an AMQP table."""


def portion_keys(partition: int, partitions: int) -> list[str]:
    """The routing keys of the portions that this one of so many partitions has."""
    return [_portion_key(portion) for portion in range(PORTIONS) if portion * partitions // PORTIONS == partition]


class Names(NamedTuple):
    """What the queues and exchanges of a consumer with partitions are called."""

    queue: str
    partitions: int

    @property
    def queues(self) -> list[str]:
        """The queue of each partition."""
        return [f"{self.queue}.{partition}" for partition in range(self.partitions)]

    @property
    def unpartitioned(self) -> str:
        """The queue of the messages that were sent without a portion, as by publishers that are not `partitioned`."""
        return f"{self.queue}.unpartitioned"

    @property
    def members(self) -> str:
        """The queue that has a consumer for each process, and no messages: they are counted by it."""
        return f"{self.queue}.members"

    @property
    def exchange(self) -> str:
        """The exchange that routes by portion. The consumer's bindings lead to it."""
        return f"{self.queue}.partitions"

    @property
    def alternate(self) -> str:
        """The exchange for what has no portion. RabbitMQ compares this argument of `exchange`, so the number in the
        name keeps two processes from dividing one queue in two ways.
        """
        return f"{self.queue}.partitions-{self.partitions}"


def surplus(active: Sequence[T], queues: int, members: int) -> Sequence[T]:
    """Those of the queues that this process is active on, in the order in which it became so, that others should have.

    A process keeps its share of the queues, rounded up, and gives up the newest: one that it was given, while it had
    enough, goes on to the next process in line.
    """
    return active[-(-queues // max(members, 1)) :]
