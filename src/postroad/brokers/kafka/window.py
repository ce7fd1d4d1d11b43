"""The records of one partition: which are delivered, which are finished, and what is committed about them. Pure.

- The committed offset never passes a record that is not finished.
- Records are delivered only below `until` of a commit that the broker has confirmed. So the next owner of the partition
  knows which records may have been begun: those that the commit names, and those up to there. All others were not.
- Records that were finished behind an unfinished one are not delivered again: the commit's metadata names the others.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["Progress", "Window"]

T = TypeVar("T")

LONGEST_LIST: Final = 3000
"""Bytes of metadata for unfinished records; Kafka takes 4,096 in all (offset.metadata.max.bytes)."""
_MARK: Final = "postroad-1"


class Progress(NamedTuple):
    """How far a partition has come, as it is committed. Of the records before `delivered`, all but `open` are finished.
    From there up to `until`, records may have been begun; from `until` on, none was.
    """

    offset: int
    """The first record that is not finished: where reading begins again."""
    delivered: int
    until: int
    open: tuple[int, ...] = ()

    def metadata(self) -> str:
        """The rest of it as text. When not all of `open` has room, what follows counts as not delivered."""
        steps, delivered, length = [], self.delivered, 0
        for last, offset in pairwise((self.offset, *self.open)):
            steps.append(str(offset - last))
            length += len(steps[-1]) + 1
            if length > LONGEST_LIST:
                steps.pop()
                delivered = offset
                break
        return f"{_MARK} {self.offset} {delivered - self.offset} {self.until - self.offset} {','.join(steps)}".rstrip()

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Progress | None:
        """What was committed; None if another program did it."""
        mark, *rest = (metadata or "").split(" ")
        try:
            numbers = [int(each) for each in rest[:3]]
            steps = [int(each) for each in rest[3].split(",")] if len(rest) == 4 else []
        except ValueError:
            return None
        if mark != _MARK or len(numbers) != 3 or numbers[0] != offset or min([*numbers, *steps]) < 0:
            return None
        open = tuple(accumulate(steps, initial=offset))[1:]
        return cls(offset, offset + numbers[1], offset + numbers[2], open)


class Window(Generic[T]):
    """The records of a partition that a consumer has, from its assignment on; at most `size` are delivered and open."""

    def __init__(self, size: int, start: int, before: Progress | None = None) -> None:
        """`start` is where reading begins, `before` what the partition's last owner has committed."""
        self._size = size
        self._before = before or Progress(start, start, start)
        self._open_before = frozenset(self._before.open)
        self._open: dict[int, None] = {}
        self._pending: deque[tuple[int, T]] = deque()
        self._position = start
        self._until = start
        self._committed: Progress | None = before

    @property
    def position(self) -> int:
        """The offset of the first record that was not delivered."""
        return self._pending[0][0] if self._pending else self._position

    @property
    def pending(self) -> int:
        """How many records wait to be delivered."""
        return len(self._pending)

    @property
    def open(self) -> int:
        """How many are delivered and not finished."""
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """Records wait that a commit would let be delivered."""
        return bool(self._pending) and 4 * (self._size - len(self._open)) >= self._size

    def arrive(self, offset: int, record: T) -> bool:
        """A record came from the broker; False if it came before, or the last owner has finished it."""
        if offset < self._position:
            return False
        self._position = offset + 1
        if offset < self._before.delivered and offset not in self._open_before:
            return False
        self._pending.append((offset, record))
        return True

    def reach(self, offset: int) -> None:
        """The broker has no record before this offset that did not arrive: some are gone, or were never visible."""
        self._position = max(self._position, offset)

    def take(self) -> list[tuple[int, T, bool | None]]:
        """What can be delivered now, with what is known of an earlier delivery: none (False), or unknown (None)."""
        taken: list[tuple[int, T, bool | None]] = []
        while self._pending and len(self._open) < self._size:
            offset, record = self._pending[0]
            if offset >= self._until:
                break
            self._pending.popleft()
            self._open[offset] = None
            taken.append((offset, record, None if offset < self._before.until else False))
        return taken

    def finish(self, offset: int) -> bool:
        """A delivered record is finished; False if it was not open."""
        if offset not in self._open:
            return False
        del self._open[offset]
        return True

    # -- commits -----------------------------------------------------------------------------------------------------

    @property
    def urgent(self) -> bool:
        """Records wait, or soon will, for a commit that lets more be delivered: a quarter of the window at least. For
        fewer, it would cost more than they do.
        """
        room = self._size - len(self._open)
        if self._pending and self._pending[0][0] >= self._until:
            return self.has_room
        return 2 * room > self._size > 2 * (self._until - self._position)

    @property
    def changed(self) -> bool:
        """Something was finished since the last commit."""
        last, now = self._committed, self.progress()
        return last is None or (now.offset, now.open) != (last.offset, last.open)

    def progress(self) -> Progress:
        """What to commit now, so that as many records may be delivered as there is room for."""
        room = self._size - len(self._open)
        waiting = len(self._pending)
        until = self._pending[room][0] if waiting > room else self._position + room - waiting
        return self._as_of(max(until, self._until))

    def last_progress(self) -> Progress:
        """What to commit when nothing more will be delivered."""
        return self._as_of(self.position)

    def confirm(self, progress: Progress) -> None:
        """The broker has committed this."""
        self._committed = progress
        self._until = max(self._until, progress.until)

    def _as_of(self, until: int) -> Progress:
        """What the last owner knew of records that have not arrived here yet is kept."""
        position, before = self.position, self._before
        unread = [offset for offset in before.open if offset >= position]
        open = (*self._open, *unread)
        return Progress(
            min(open[0], position) if open else position,
            max(position, before.delivered),
            max(until, before.until),
            open,
        )
