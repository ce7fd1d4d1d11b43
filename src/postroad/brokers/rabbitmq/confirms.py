"""The broker's answers to the messages that one call wrote on one channel. Pure.

A channel numbers what it publishes (the delivery tag); acks and nacks name a tag, or all up to it. An unroutable
message is returned with its properties, before its ack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import StoredMessage

__all__ = ["NACKED", "Confirms"]

NACKED: Final = "RabbitMQ refused it (basic.nack): a queue is full and rejects messages, or failed to store it"


class Confirms:
    """The messages with consecutive tags, from `first_tag` on, and the answers to them."""

    def __init__(self, first_tag: int) -> None:
        self.messages: list[StoredMessage] = []
        self._first = first_tag
        self._lowest = first_tag  # all tags below have been answered
        self._pending: set[int] = set()
        self._refused: dict[int, str] = {}
        self._tag_of: dict[str, int] = {}  # by message id; filled when a message is returned, which is rare

    @property
    def next_tag(self) -> int:
        """The tag of the message that is written next."""
        return self._first + len(self.messages)

    @property
    def answered(self) -> bool:
        """Nothing that was written waits for an answer."""
        return not self._pending

    def wrote(self, messages: Sequence[StoredMessage]) -> None:
        """Note that these were written, in this order."""
        start = self.next_tag
        self.messages.extend(messages)
        self._pending.update(range(start, self.next_tag))

    def acked(self, tag: int, *, multiple: bool) -> None:
        """Note an ack of one message, or of all up to it. A returned one stays refused: its ack only ends the wait."""
        self._pending.difference_update(self._tags(tag, multiple))

    def nacked(self, tag: int, *, multiple: bool) -> None:
        """Note a nack of one message, or of all up to it that had no answer yet."""
        tags = self._pending.intersection(self._tags(tag, multiple))
        self._pending -= tags
        for each in tags:
            self._refused.setdefault(each, NACKED)

    def returned(self, message_id: str | None, reason: str) -> None:
        """Note that the broker could not route the message. Its ack is still to come."""
        for message in self.messages[len(self._tag_of) :]:
            self._tag_of[str(message.id)] = self._first + len(self._tag_of)
        tag = self._tag_of.get(message_id or "")
        if tag is not None:
            self._refused[tag] = reason

    def _tags(self, tag: int, multiple: bool) -> range:
        """The tags that an answer is about, and never one that was not written: a tag is any number up to 2^64."""
        if not multiple:
            return range(tag, tag + 1)
        end = min(tag + 1, self.next_tag)
        tags = range(self._lowest, end)
        self._lowest = max(self._lowest, end)
        return tags

    @property
    def confirmed(self) -> list[int]:
        """The positions that the broker has confirmed."""
        return [
            message.position
            for tag, message in enumerate(self.messages, self._first)
            if tag not in self._pending and tag not in self._refused
        ]

    @property
    def unanswered(self) -> list[StoredMessage]:
        """What was written and is neither confirmed nor refused."""
        return [
            message
            for tag, message in enumerate(self.messages, self._first)
            if tag in self._pending and tag not in self._refused
        ]

    @property
    def refused(self) -> list[tuple[StoredMessage, str]]:
        """What the broker has refused, and why, in the order in which it was written."""
        return [(self.messages[tag - self._first], why) for tag, why in sorted(self._refused.items())]
