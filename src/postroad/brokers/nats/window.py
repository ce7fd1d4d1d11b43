"""What of a consumer's messages was received and is not acked, and which of it may be handed out. Pure.

JetStream delivers what a process did not ack again only after a while, and new messages meanwhile. So a session first
collects: it hands nothing out before it holds everything that was delivered to earlier sessions and not acked. Then it
has all there is up to the last one, and hands it out in the stream's order.

After that, everything new comes in order. A message that was delivered to this session before is known; any other that
comes from behind would break the order, and ends the session: the next one collects again.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

__all__ = ["Arrived", "Window"]

T = TypeVar("T")


class Arrived(Enum):
    """What a message is that has arrived."""

    NEW = "it is to be handed out"
    KEPT = "it is handed out when the session has collected all"
    HELD = "this session has it already"
    ACKED = "this session has acked it, and the ack was lost"
    BEHIND = "a later one was handed out, and this one is unknown"


class Window(Generic[T]):
    """The messages of one session, by their number in the stream."""

    def __init__(self, *, in_order: bool) -> None:
        self.collecting = in_order
        self._in_order = in_order
        self._held: dict[int, T] = {}
        self._acked: set[int] = set()
        self._last = 0
        """The highest that was handed out."""

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)

    def arrive(self, number: int, message: T) -> Arrived:
        """Note a message. NEW ones are to be handed out at once."""
        if number in self._held:
            return Arrived.HELD
        if number in self._acked:
            return Arrived.ACKED
        if self._in_order and not self.collecting and number <= self._last:
            return Arrived.BEHIND
        self._held[number] = message
        if self.collecting:
            return Arrived.KEPT
        self._last = max(self._last, number)
        return Arrived.NEW

    def is_complete(self, pending: int, held_before: int) -> bool:
        """Whether a session that collects has all: `pending` is how many are delivered and not acked, and `held_before`
        how many of them this session had when it asked for that number.
        """
        return pending <= held_before

    def hand_out(self) -> list[T]:
        """Everything that was collected, in order. From now on, messages are NEW."""
        self.collecting = False
        self._last = max(self._held, default=0)
        return [self._held[number] for number in sorted(self._held)]

    def ack(self, number: int) -> bool:
        """Note an ack. Returns whether the message was held."""
        if self._held.pop(number, None) is None:
            return False
        self._acked.add(number)
        return True

    def forget(self, floor: int) -> None:
        """Forget acks up to the number up to which the server has all acks: nothing of it comes again."""
        self._acked = {number for number in self._acked if number > floor}

    def held(self) -> list[T]:
        """What is held, in order."""
        return [self._held[number] for number in sorted(self._held)]
