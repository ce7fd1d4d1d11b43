"""Queues messages per key. A key's next message is ready when those taken before are finished; one without a key is
ready at once. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Keys"]

T = TypeVar("T")


class Keys(Generic[T]):
    """What waits. A key is busy from when its first is ready until `finish`, and then its next is ready."""

    def __init__(self) -> None:
        self.ready: deque[tuple[str | None, T]] = deque()
        """What may be taken now, and its key: no earlier one of the key is left."""
        self._behind: dict[str, deque[T]] = {}
        """For each busy key what waits behind the one that is ready or under way."""

    def add(self, key: str | None, item: T) -> None:
        """It arrived."""
        if key is not None and key in self._behind:
            self._behind[key].append(item)
            return
        if key is not None:
            self._behind[key] = deque()
        self.ready.append((key, item))

    def take(self, most: int = 1, joins: Callable[[T], bool] = lambda _: True) -> list[T]:
        """The next ready one and those that join it, also from behind it, up to `most` together. Their keys are busy
        until `finish`.
        """
        taken: list[T] = []
        while self.ready and len(taken) < most and (not taken or joins(self.ready[0][1])):
            key, item = self.ready.popleft()
            taken.append(item)
            behind = self._behind[key] if key is not None else None
            while behind and len(taken) < most and joins(behind[0]):
                taken.append(behind.popleft())
        return taken

    def finish(self, key: str | None) -> None:
        """What was taken is dealt with: the next of its key is ready."""
        if key is None:
            return
        if self._behind[key]:
            self.ready.append((key, self._behind[key].popleft()))
        else:
            del self._behind[key]

    def restore(self, key: str | None, items: Sequence[T]) -> None:
        """These were taken together and are to be taken one by one, before all others of their key."""
        if key is None:
            self.ready.extendleft((None, item) for item in reversed(items))
            return
        self._behind[key].extendleft(reversed(items[1:]))
        self.ready.appendleft((key, items[0]))

    def discard(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove what waits and is unwanted. What is behind it takes its place; what was taken keeps its key busy."""
        removed: list[T] = []

        def wanted(items: Iterable[T]) -> deque[T]:
            kept: deque[T] = deque()
            for item in items:
                (removed if unwanted(item) else kept).append(item)
            return kept

        ready, self.ready = self.ready, deque()
        for key, item in ready:
            waiting = wanted((item, *(self._behind.pop(key) if key is not None else ())))
            if waiting:
                self.ready.append((key, waiting.popleft()))
                if key is not None:
                    self._behind[key] = waiting
        is_ready = {key for key, _ in self.ready}
        for key in self._behind.keys() - is_ready:
            self._behind[key] = wanted(self._behind[key])
        return removed

    def clear(self) -> list[T]:
        """All that waits. The keys of what is under way stay busy."""
        waiting = [item for _, item in self.ready]
        for key, _ in self.ready:
            if key is not None:
                waiting += self._behind.pop(key)
        self.ready.clear()
        for behind in self._behind.values():
            waiting += behind
            behind.clear()
        return waiting
