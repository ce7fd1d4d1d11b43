"""The order of what was received. Pure: of each key one at a time, in the order of arrival; without a key, at once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Keys"]

T = TypeVar("T")


class Keys(Generic[T]):
    """What waits. A key is busy from when its first is ready until `finish`, and then its next is ready."""

    def __init__(self) -> None:
        self._ready: deque[tuple[str | None, T]] = deque()
        self._behind: dict[str, deque[T]] = {}
        """For each busy key what waits behind the one that is ready or under way."""

    @property
    def ready(self) -> bool:
        """Something can be taken."""
        return bool(self._ready)

    def add(self, key: str | None, item: T) -> None:
        """It arrived."""
        if key is not None and key in self._behind:
            self._behind[key].append(item)
            return
        if key is not None:
            self._behind[key] = deque()
        self._ready.append((key, item))

    def take(self) -> T:
        """The next one that nothing waits before. Its key is busy until `finish`."""
        return self._ready.popleft()[1]

    def follow(self, key: str | None, most: int) -> list[T]:
        """Those that wait behind the one that was taken, to be dealt with together with it."""
        behind = self._behind.get(key) if key is not None else None
        return [behind.popleft() for _ in range(min(most, len(behind)))] if behind else []

    def finish(self, key: str | None) -> None:
        """What was taken is dealt with: the next of its key is ready."""
        if key is None:
            return
        if self._behind[key]:
            self._ready.append((key, self._behind[key].popleft()))
        else:
            del self._behind[key]

    def restore(self, key: str | None, items: Sequence[T]) -> None:
        """These were taken together and are to be taken one by one, before all others of their key."""
        if key is None:
            self._ready.extendleft((None, item) for item in reversed(items))
            return
        self._behind[key].extendleft(reversed(items[1:]))
        self._ready.appendleft((key, items[0]))

    def clear(self) -> list[T]:
        """All that waits. The keys of what is under way stay busy."""
        waiting = [item for _, item in self._ready]
        for key, _ in self._ready:
            if key is not None:
                waiting += self._behind.pop(key)
        self._ready.clear()
        for behind in self._behind.values():
            waiting += behind
            behind.clear()
        return waiting
