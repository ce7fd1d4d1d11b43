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

A sink may have a filter. What it does not take is dealt with by being passed, and is on no page. A read for such a sink
reaches over a part of the log only, and finds all that the sink takes in that part.

Several lanes may be read for at once, by a sweep. It begins at the meet of their cursors, which has dealt with nothing
that one of them has not; each lane is given what its own cursor has not dealt with; and all of them end at the same
place.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from postroad.message import SLOTS, StoredMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

__all__ = ["Cursor", "Page", "PageLimit", "Sweep", "make_page", "meet", "share_out", "xmax_and_xip"]


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
    """The result of one read, in the order to publish it in, and where the cursor goes after it."""

    before: Cursor
    messages: Sequence[StoredMessage]
    after: Cursor
    snapshot: str | None
    """The snapshot that the page was read in."""
    version: int = 0
    """The lane's version when the page was read."""
    more: bool = False
    """The log goes on behind this page, even if it is empty: this part of the log has no rows for the lane."""

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


def make_page(
    before: Cursor,
    rows: Sequence[StoredMessage],
    *,
    limit: PageLimit,
    snapshot: str | None,
    log_end: int,
    horizon: int | None = None,
    version: int = 0,
    reach: int | None = None,
) -> Page:
    """Make a page of what one statement found in one snapshot: late rows, then next rows, each up to the limit.

    `log_end` is the highest position in the log, in any slot, seen by the same statement; `horizon` is one for that
    position, and so for every lower one. `reach` is the position up to which the statement looked for next rows; None:
    to the end of the log.
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
        # Nothing was left behind, so a lane whose slots are quiet comes as far as the log, or as the statement reached.
        # Retention may have emptied the log, and a position never falls.
        position = max(before.position, _end(log_end, reach))
    more = reach is not None and position < log_end
    return Page(before, rows, Cursor(position, snapshot, horizon=horizon), snapshot, version, more)


def _end(log_end: int, reach: int | None) -> int:
    """How far a read has come that has found all there is."""
    return log_end if reach is None else min(log_end, reach)


def _after_late_rows(before: Cursor, rows: Sequence[StoredMessage], limit: PageLimit) -> Cursor:
    if limit.reached(rows):
        return replace(before, late_position=rows[-1].position)
    return Cursor(before.position, before.late_snapshot, horizon=before.horizon)


# -- several lanes at once ---------------------------------------------------------------------------------------------


class Sweep(msgspec.Struct, frozen=True):
    """The result of one read for several lanes: rows of all their slots, by position."""

    messages: Sequence[StoredMessage]
    xids: Sequence[int] | None
    """The transaction of each row; None if the lanes' cursors were the same, so that no lane has dealt with any row."""
    snapshot: str | None
    log_end: int
    """The highest position in the log, or of a cursor, as far as positions were given out."""
    versions: Sequence[int | None]
    """Of each lane, as `Page.version`; None if the lane has another owner or epoch."""
    horizon: int | None = None
    """One for `log_end`."""
    reach: int | None = None
    """The position up to which the statement looked for next rows; None: to the end of the log."""


def meet(cursors: Iterable[Cursor]) -> Cursor:
    """The cursor that has dealt with a row only if all of these have: what any of them needs, a sweep from there finds.

    None of them may be catching up.
    """
    every = list(cursors)
    position, snapshots = min([each.position for each in every]), {each.snapshot for each in every}
    # Each is a horizon for its cursor's position, and so for the lowest; the lowest leaves the fewest rows to look at.
    horizon = min([each.horizon for each in every if each.horizon is not None], default=None)
    if len(snapshots) == 1:
        return Cursor(position, every[0].snapshot, horizon=horizon)
    parts = [xmax_and_xip(each) for each in snapshots]
    xmax = min([its_xmax for its_xmax, _ in parts])
    xip = sorted({xid for _, its_xip in parts for xid in its_xip if xid < xmax})
    return Cursor(position, f"{min([*xip, xmax])}:{xmax}:{','.join(map(str, xip))}", horizon=horizon)


def xmax_and_xip(snapshot: str | None) -> tuple[int, list[int]]:
    """The parts of a snapshot that decide visibility: xmax, and the ids of transactions in progress."""
    assert snapshot is not None  # noqa: S101 - a lane's row has one
    _, xmax, xip = snapshot.split(":")
    return int(xmax), [int(xid) for xid in xip.split(",")] if xip else []


def share_out(
    sweep: Sweep, lanes: Sequence[tuple[range, Cursor]], *, limit: PageLimit, page_rows: int
) -> Sequence[Sequence[Page] | None]:
    """For each lane, given as its slots and its cursor, the pages that a sweep from the meet of the cursors has for it.

    `limit` is that of the sweep, and `page_rows` that of a page. A lane gets no page if the sweep ended before the
    lane's position; and None if it has more late rows than fit on a page, so that it has to catch up alone.
    """
    rows, base = sweep.messages, min([cursor.position for _, cursor in lanes])
    first = bisect_right(rows, base, key=_position)
    if first and limit.reached(rows[:first]):
        return [None] * len(lanes)  # whose late rows were left out is not known
    full = first < len(rows) and limit.reached(rows[first:] if first else rows)
    position = rows[-1].position if full else _end(sweep.log_end, sweep.reach)
    more = full or position < sweep.log_end
    end = Cursor(position, sweep.snapshot, horizon=sweep.horizon)
    return [
        _pages_of_lane(mine, cursor, end=end, version=version or 0, page_rows=page_rows, more=more)
        for mine, (_, cursor), version in zip(_by_lane(sweep, lanes), lanes, sweep.versions, strict=True)
    ]


def _by_lane(sweep: Sweep, lanes: Sequence[tuple[range, Cursor]]) -> Sequence[list[StoredMessage]]:
    """The rows of each lane's slots, without those that its cursor has dealt with."""
    found: list[list[StoredMessage]] = [[] for _ in lanes]
    if sweep.xids is None:
        append_for: list[Callable[[StoredMessage], None]] = [found[0].append] * SLOTS
        for (slots, _), its in zip(lanes, found, strict=True):
            append_for[slots.start : slots.stop] = [its.append] * len(slots)
        for message in sweep.messages:
            append_for[message.slot](message)
        return found
    lane_of = [0] * SLOTS
    for number, (slots, _) in enumerate(lanes):
        lane_of[slots.start : slots.stop] = [number] * len(slots)
    dealt_with = [_DealtWith(cursor) for _, cursor in lanes]
    for message, xid in zip(sweep.messages, sweep.xids, strict=True):
        number = lane_of[message.slot]
        if not dealt_with[number].has(message.position, xid):
            found[number].append(message)
    return found


class _DealtWith:
    """Which rows a cursor has dealt with."""

    def __init__(self, cursor: Cursor) -> None:
        self._position = cursor.position
        self._xmax: float = float("inf")
        self._xip: Collection[int] = ()
        if cursor.snapshot is not None:
            self._xmax, xip = xmax_and_xip(cursor.snapshot)
            self._xip = frozenset(xip)

    def has(self, position: int, xid: int) -> bool:
        return position <= self._position and xid < self._xmax and xid not in self._xip


def _pages_of_lane(
    rows: Sequence[StoredMessage],
    before: Cursor,
    *,
    end: Cursor,
    version: int,
    page_rows: int,
    more: bool,
) -> Sequence[Page] | None:
    """One lane's rows of a sweep that ended at `end`, as pages that follow one another."""
    if more and end.position < before.position:
        return ()  # a cursor can't say that it has dealt with late rows up to here only; a later sweep finds them again
    if bisect_right(rows, before.position, key=_position) >= page_rows:
        return None
    pages = []
    for start in range(0, len(rows), page_rows) or (0,):
        chunk = rows[start : start + page_rows]
        last = start + page_rows >= len(rows)
        after = replace(end, position=max(before.position, end.position) if last else chunk[-1].position)
        pages.append(Page(before, chunk, after, end.snapshot, version, more or not last))
        before = after
    return pages


_position = attrgetter("position")
