"""Which deliveries of a channel are dealt with, and the fewest acks that say so. It is told; nothing here does I/O.

A channel numbers what it hands over (the delivery tag), and an ack names a tag, or all up to it. The broker closes the
channel for an ack of a tag that it has heard of before, so each is said once.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Ack", "Acks"]


class Ack(NamedTuple):
    """What is to be told."""

    tag: int
    multiple: bool
    """This and all that are open below it."""


class Acks:
    """The deliveries of one channel, whose tags count from 1."""

    def __init__(self) -> None:
        self._lowest = 1
        """All below have been told."""
        self._done: set[int] = set()
        """Dealt with, and not told yet."""
        self._told: set[int] = set()
        """Told, above the lowest."""

    def done(self, tag: int) -> None:
        """This one is dealt with."""
        if tag >= self._lowest and tag not in self._told:
            self._done.add(tag)

    def told(self, tag: int) -> bool:
        """This one is being told in another way. False if it was told before."""
        if tag < self._lowest or tag in self._told:
            return False
        self._done.discard(tag)
        self._told.add(tag)
        return True

    def next(self) -> list[Ack]:
        """What there is to tell: one ack for all that is dealt with without a gap, and one for each beyond."""
        last, end = 0, self._lowest
        while end in self._done or end in self._told:
            if end in self._done:
                last = end
            end += 1
        beyond = sorted(tag for tag in self._done if tag > end)
        self._told = {tag for tag in self._told if tag > end}.union(beyond)
        self._done.clear()
        self._lowest = end
        return [Ack(last, multiple=True)] * bool(last) + [Ack(tag, multiple=False) for tag in beyond]
