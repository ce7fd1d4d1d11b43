"""How far a lane has come, and how a page moves it on. Pure: no I/O, no clock.

The invariant, for the rows of the lane's slots:

    every row with `position <= cursor.position` that is visible in `cursor.snapshot` has been dealt with;
    every other row has not.

While a lane catches up on more late rows than fit on a page, a sub-cursor says how far: of the rows that `snapshot`
does not see and `late_snapshot` does, those up to `late_position` have been dealt with too.

A cursor may have a horizon: a transaction id such that no row of this or a later transaction has a position up to the
cursor's. It spares a lane that was away the search for late rows among all that was added since. It belongs to the
position: a page that may move the position has the horizon for it, and a pass over late rows keeps both. The comment of
read_page in sql/postgresql/queries.sql has the proof.

A store with one writer at a time (SQLite) has no late rows, no snapshots and no horizon: its cursor is the position
alone.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import StoredMessage

__all__ = ["Cursor", "Page", "PageLimit", "turn_page"]


class Cursor(msgspec.Struct, frozen=True):
    """What a lane has dealt with."""

    position: int
    snapshot: str | None = None
    late_position: int | None = None
    late_snapshot: str | None = None
    horizon: int | None = None

    @property
    def catching_up(self) -> bool:
        """Late rows are being read page by page."""
        return self.late_snapshot is not None


class PageLimit(msgspec.Struct, frozen=True):
    """How much one page may hold: it ends with the row that reaches either number."""

    rows: int
    payload_bytes: int
    """Of payloads and headers. What else a row has is short."""

    def reached(self, messages: Sequence[StoredMessage]) -> bool:
        """There may be more where these came from."""
        return len(messages) >= self.rows or sum([each.size for each in messages]) >= self.payload_bytes


class Page(msgspec.Struct, frozen=True):
    """What one look at the log found, in the order to publish it in, and where the cursor goes after it."""

    before: Cursor
    messages: Sequence[StoredMessage]
    after: Cursor
    snapshot: str | None
    """The snapshot that the page was read in."""
    version: int = 0
    """The lane's version when the page was read."""

    def cursor_after(self, dealt_with: int) -> Cursor:
        """Where the cursor goes when only the first so many messages have been dealt with."""
        if dealt_with == len(self.messages):
            return self.after
        if dealt_with == 0:
            return self.before
        before, position = self.before, self.messages[dealt_with - 1].position
        if before.catching_up:
            return replace(before, late_position=position)
        if position <= before.position:
            return replace(before, late_position=position, late_snapshot=self.snapshot)
        return Cursor(position, self.snapshot, horizon=self.after.horizon)


def turn_page(
    before: Cursor,
    rows: Sequence[StoredMessage],
    *,
    limit: PageLimit,
    snapshot: str | None,
    log_end: int,
    horizon: int | None = None,
    version: int = 0,
) -> Page:
    """Make a page of what one statement found in one snapshot: late rows, then next rows, each up to the limit.

    `log_end` is the highest position in the log, in any slot, seen by the same statement; `horizon` is one for that
    position, and so for every lower one.
    """
    if before.catching_up:
        return Page(before, rows, _after_late_rows(before, rows, limit), before.late_snapshot, version)
    late = bisect_right(rows, before.position, key=_position)
    if late and limit.reached(rows[:late]):
        # The next rows are left alone: they would move the position past late rows that are still to come.
        after = replace(before, late_position=rows[late - 1].position, late_snapshot=snapshot)
        return Page(before, rows[:late], after, snapshot, version)
    if late < len(rows) and limit.reached(rows[late:] if late else rows):
        position = rows[-1].position
    else:
        # Nothing was left behind, so a lane whose slots are quiet comes as far as the log. Retention may have emptied
        # the log, and a position never falls.
        position = max(before.position, log_end)
    return Page(before, rows, Cursor(position, snapshot, horizon=horizon), snapshot, version)


def _after_late_rows(before: Cursor, rows: Sequence[StoredMessage], limit: PageLimit) -> Cursor:
    if limit.reached(rows):
        return replace(before, late_position=rows[-1].position)
    return Cursor(before.position, before.late_snapshot, horizon=before.horizon)


_position = attrgetter("position")
