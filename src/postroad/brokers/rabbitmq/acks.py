"""Which deliveries of a channel are done, and the fewest acks for them. Pure.

A channel numbers its deliveries (the delivery tag), and an ack names a tag, or all up to it. The broker closes the
channel for a second ack or nack of the same tag, so each tag is acked or nacked once.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Ack", "Acks"]


class Ack(NamedTuple):
    """An ack to send."""

    tag: int
    multiple: bool
    """It also acks all lower tags that are open."""


class Acks:
    """The deliveries of one channel, whose tags count from 1."""

    def __init__(self) -> None:
        self._lowest = 1
        """All tags below were acked or nacked."""
        self._done: set[int] = set()
        """Done, and not acked yet."""
        self._sent: set[int] = set()
        """Acked or nacked, above the lowest."""

    def done(self, tag: int) -> None:
        """Note that this delivery is done."""
        if tag >= self._lowest and tag not in self._sent:
            self._done.add(tag)

    def mark_sent(self, tag: int) -> bool:
        """Note that the caller nacks this delivery. False if it was acked or nacked before."""
        if tag < self._lowest or tag in self._sent:
            return False
        self._done.discard(tag)
        self._sent.add(tag)
        return True

    def next(self) -> list[Ack]:
        """The acks to send now: one for all that are done without a gap, and one for each above the gap."""
        last, end = 0, self._lowest
        while end in self._done or end in self._sent:
            if end in self._done:
                last = end
            end += 1
        beyond = sorted(tag for tag in self._done if tag > end)
        self._sent = {tag for tag in self._sent if tag > end}.union(beyond)
        self._done.clear()
        self._lowest = end
        return [Ack(last, multiple=True)] * bool(last) + [Ack(tag, multiple=False) for tag in beyond]
