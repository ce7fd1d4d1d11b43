"""The order within a page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import StoredMessage

__all__ = ["in_waves"]


def in_waves(messages: Sequence[StoredMessage]) -> Sequence[Sequence[StoredMessage]]:
    """Split a page so that no wave holds two messages of one key, and a key's messages keep their order.

    A wave begins only after the one before it was confirmed, so a refused message can never be overtaken by a follower.
    Messages without a key all go in the first wave.
    """
    keys = [message.key for message in messages if message.key is not None]
    if len(set(keys)) == len(keys):
        return [messages] if messages else []
    waves: list[list[StoredMessage]] = [[]]
    seen: dict[str, int] = {}
    for message in messages:
        number = 0
        if message.key is not None:
            number = seen.get(message.key, 0)
            seen[message.key] = number + 1
            if number == len(waves):
                waves.append([])
        waves[number].append(message)
    return waves
