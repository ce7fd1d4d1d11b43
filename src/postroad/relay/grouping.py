"""Which lanes of a relay are read for in one sweep, and which read alone. Pure: no I/O, no clock, no event loop.

- A lane that asks is read for, in a sweep or alone.
- A lane that does not ask, because it is publishing, is read for too, until it has `QUEUED` pages waiting. Then it is
  left behind: no lane waits for a slow one.
- A sweep begins at the position of its last lane. So a lane that is far behind most others reads alone, until it has
  come near: it would make the others read again what they have. One that is far ahead reads alone because it would wait
  for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["FEWEST", "FEWEST_FILTERED", "MOST_ROWS", "QUEUED", "LanePosition", "gather", "rows_of_sweep"]

FEWEST: Final = 8
"""Fewer lanes than this read alone: sharing out costs more than it saves."""
FEWEST_FILTERED: Final = 2
"""The same for a sink with a filter: it has little to share out, and a read costs little but the walk over the log."""
QUEUED: Final = 2
"""So many pages wait for a lane at most, unless one sweep had more for it."""
MOST_ROWS: Final = 8000
"""Larger sweeps are not faster."""
SWEEPS_BEHIND: Final = 4
PAGES_AHEAD: Final = 2


class LanePosition(msgspec.Struct, frozen=True):
    """A lane, and the position from where the next read for it begins."""

    lane: int
    position: int
    asks: bool
    queued: int = 0


def rows_of_sweep(batch_size: int, lanes: int) -> int:
    """How many rows a sweep for so many lanes reads."""
    return min(MOST_ROWS, batch_size * lanes)


def gather(positions: Iterable[LanePosition], *, batch_size: int, fewest: int = FEWEST) -> Collection[int]:
    """The lanes to read for in one sweep; empty if all that ask should read alone, as do those that are not in it."""
    candidates = [each for each in positions if each.asks or each.queued < QUEUED]
    if len(candidates) < fewest:
        return ()
    middle = sorted([each.position for each in candidates])[len(candidates) // 2]
    first = middle - SWEEPS_BEHIND * rows_of_sweep(batch_size, len(candidates))
    last = middle + PAGES_AHEAD * batch_size * len(candidates)  # what a page of one lane is worth in positions
    near = [each for each in candidates if first <= each.position <= last]
    if len(near) < fewest or not any(each.asks for each in near):
        return ()
    return [each.lane for each in near]
