"""The event without content: what its key names was deleted. Pure.

A tombstone has a type and a key, and no content: its payload and its content type are empty, in the log and on the
wire. Where a destination knows tombstones of its own (a compacted topic of Kafka), it becomes one.
"""

from __future__ import annotations

from typing import final

__all__ = ["Tombstone", "is_tombstone"]


@final
class Tombstone:
    """The end of what the key names: `outbox.add(tx, Tombstone(), type="customer", key=7)`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Tombstone()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tombstone)

    def __hash__(self) -> int:
        return hash(Tombstone)


def is_tombstone(payload: bytes, content_type: str) -> bool:
    """Whether a message is one: what has content, even an empty text, says of which type it is."""
    return not content_type and not payload
