"""What is due when, in a test that does not wait: time jumps to whatever comes next. Pure.

The rules:

- A message waits behind earlier ones of its chain (a key at a consumer) until these are done.
- Of what is due at the same time, what was added first comes first.
- Time never goes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["Item", "Timeline"]

T = TypeVar("T")


@dataclass(slots=True)
class Item(Generic[T]):
    """One message for one consumer."""

    what: T
    chain: Hashable
    number: int
    due: int
    failures: int = 0
    alone: bool = False
    """It failed together with others, and is tried without them."""


class Timeline(Generic[T]):
    """Times are microseconds since 1970."""

    def __init__(self, now: int) -> None:
        self.now = now
        self._chains: dict[Hashable, deque[Item[T]]] = {}
        self._heads: list[tuple[int, int, Hashable]] = []
        """When the first item of each chain is due, and its number; not of those that were taken."""
        self._numbers = count()

    def add(self, what: T, chain: Hashable) -> None:
        """Due now, behind what is there of its chain."""
        item = Item(what, chain, next(self._numbers), self.now)
        items = self._chains.setdefault(chain, deque())
        items.append(item)
        if len(items) == 1:
            self._wait(item)

    @property
    def next_due(self) -> int | None:
        """When something is due next, or is due already; None if nothing waits."""
        return self._heads[0][0] if self._heads else None

    def travel(self, moment: int) -> None:
        """Go to this moment, unless it has passed."""
        self.now = max(self.now, moment)

    def take(self) -> Item[T]:
        """What is due next; time goes there. The rest of its chain waits until `end` or `retry`."""
        due, _, chain = heappop(self._heads)
        self.travel(due)
        return self._chains[chain][0]

    def take_if(self, wanted: Callable[[Item[T]], bool]) -> Item[T] | None:
        """What is due now and comes next, if it is wanted."""
        if not self._heads or self._heads[0][0] > self.now:
            return None
        first = self._chains[self._heads[0][2]][0]
        return self.take() if wanted(first) else None

    def end(self, item: Item[T]) -> None:
        """It is done: the next of its chain follows."""
        items = self._chains[item.chain]
        items.popleft()
        if not items:
            del self._chains[item.chain]
            return
        items[0].due = max(items[0].due, self.now)
        self._wait(items[0])

    def retry(self, item: Item[T], after: int) -> None:
        """It comes again after so many microseconds."""
        item.due = self.now + after
        self._wait(item)

    @property
    def waiting(self) -> Iterable[T]:
        """What is not done."""
        items = (item for chain in self._chains.values() for item in chain)
        return [item.what for item in sorted(items, key=lambda item: item.number)]

    def _wait(self, item: Item[T]) -> None:
        heappush(self._heads, (item.due, item.number, item.chain))
