"""The order within a page. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.message import StoredMessage

__all__ = ["in_waves"]


def in_waves(
    messages: Sequence[StoredMessage], ordering_key: Callable[[StoredMessage], str | None] = attrgetter("key")
) -> Sequence[Sequence[StoredMessage]]:
    """Split a page so that no wave holds two messages of one key, and a key's messages keep their order.

    A wave begins when each message of the one before it is confirmed or refused; behind a refused message, the later
    ones of its key are held.
    Messages without a key all go in the first wave. `ordering_key` says what is kept in order, if it is not
    the key alone.
    """
    if not messages:
        return []
    ordering_keys = [ordering_key(message) for message in messages]
    keys = [key for key in ordering_keys if key is not None]
    if len(set(keys)) == len(keys):
        return [messages]
    waves: list[list[StoredMessage]] = [[]]
    seen: dict[str, int] = {}
    for message, key in zip(messages, ordering_keys, strict=True):
        number = 0
        if key is not None:
            number = seen.get(key, 0)
            seen[key] = number + 1
            if number == len(waves):
                waves.append([])
        waves[number].append(message)
    return waves
