"""How pages move a cursor, in every situation the log can be in."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from postroad import StoredMessage
from postroad.stores.cursor import Cursor, Page, PageLimit, Sweep, make_page, meet, share_out

LIMIT = PageLimit(rows=3, payload_bytes=100)
BEFORE = Cursor(10, "S")


def message(position: int, size: int = 1) -> StoredMessage:
    return StoredMessage(position, UUID(int=position), "t", None, 0, "t", b"x" * size, "c", "{}", 0)


def turn(*positions: int, log_end: int = 50, before: Cursor = BEFORE, size: int = 1) -> Page:
    rows = [message(position, size) for position in positions]
    return make_page(before, rows, limit=LIMIT, snapshot="S2", log_end=log_end)


def positions(page: Page) -> list[int]:
    return [each.position for each in page.messages]


def test_a_full_page_ends_at_its_last_row() -> None:
    assert turn(11, 12, 13).after == Cursor(13, "S2")


def test_a_page_is_full_by_bytes_too() -> None:
    """Each has two bytes of headers."""
    assert turn(11, 12, size=48).after == Cursor(12, "S2")
    assert turn(11, 12, size=47).after == Cursor(50, "S2")


def test_a_page_that_is_not_full_comes_as_far_as_the_log() -> None:
    assert turn(11, 12).after == Cursor(50, "S2")


def test_a_quiet_lane_comes_as_far_as_the_log() -> None:
    assert turn().after == Cursor(50, "S2")


def test_a_position_never_falls() -> None:
    assert turn(log_end=0).after == Cursor(10, "S2")
    assert turn(4, log_end=4).after == Cursor(10, "S2")


def test_late_rows_come_before_next_rows() -> None:
    page = turn(3, 5, 11)
    assert positions(page) == [3, 5, 11]
    assert page.after == Cursor(50, "S2")


def test_next_rows_alone_fill_a_page_behind_late_ones() -> None:
    assert turn(3, 5, 11, 12, 13).after == Cursor(13, "S2")


def test_late_rows_that_fill_the_page_leave_the_next_rows_for_later() -> None:
    page = turn(3, 4, 5, 11, 12)
    assert positions(page) == [3, 4, 5]
    assert page.after == Cursor(10, "S", 5, "S2")


def test_catching_up_goes_on_in_the_first_looks_snapshot() -> None:
    catching_up = Cursor(10, "S", 5, "S2")
    assert turn(6, 7, 8, before=catching_up).after == Cursor(10, "S", 8, "S2")
    assert turn(6, before=catching_up).after == Cursor(10, "S2")
    assert turn(before=catching_up).after == Cursor(10, "S2")


def test_a_page_left_half_way_remembers_what_was_dealt_with() -> None:
    page = turn(3, 5, 11, 12)
    assert page.cursor_after(0) == BEFORE
    assert page.cursor_after(1) == Cursor(10, "S", 3, "S2")
    assert page.cursor_after(2) == Cursor(10, "S", 5, "S2")
    assert page.cursor_after(3) == Cursor(11, "S2")
    assert page.cursor_after(4) == page.after
    late = turn(6, 7, 8, before=Cursor(10, "S", 5, "S2"))
    assert late.cursor_after(2) == Cursor(10, "S", 7, "S2")


@settings(deadline=None)
@given(
    log=st.lists(st.integers(1, 3), min_size=0, max_size=60),
    limits=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 8)), min_size=1),
    data=st.data(),
)
def test_a_single_writers_log_is_read_once_and_in_order(
    log: list[int], limits: list[tuple[int, int]], data: st.DataObject
) -> None:
    """The model of a store without late rows: any page sizes, any beginnings of pages dealt with."""
    rows = [message(position, size) for position, size in enumerate(log, start=1)]
    cursor, seen, step = Cursor(0), [], 0
    while True:
        limit = PageLimit(*limits[step % len(limits)])
        step += 1
        found: list[StoredMessage] = []
        for row in rows:
            if row.position > cursor.position and not limit.reached(found):
                found.append(row)
        page = make_page(cursor, found, limit=limit, snapshot=None, log_end=len(rows))
        dealt_with = data.draw(st.integers(min(1, len(found)), len(found)))
        seen += positions(page)[:dealt_with]
        cursor = page.cursor_after(dealt_with)
        if not found:
            break
    assert seen == [row.position for row in rows]


# -- several lanes at once ---------------------------------------------------------------------------------------------

LOW, HIGH = range(512), range(512, 1024)


def test_the_meet_of_equal_cursors_is_the_cursor() -> None:
    assert meet([Cursor(7, "5:9:6"), Cursor(7, "5:9:6")]) == Cursor(7, "5:9:6")
    assert meet([Cursor(7), Cursor(5)]) == Cursor(5)


def test_the_meet_has_the_lowest_position_the_lowest_xmax_and_all_that_was_in_progress_below_it() -> None:
    assert meet([Cursor(9, "5:12:5,7,11"), Cursor(7, "6:10:6,7")]) == Cursor(7, "5:10:5,6,7")
    assert meet([Cursor(7, "12:12:"), Cursor(9, "10:10:")]) == Cursor(7, "10:10:")


def test_the_meet_has_the_lowest_horizon() -> None:
    assert meet([Cursor(9, "5:9:", horizon=12), Cursor(7, "5:9:", horizon=15)]) == Cursor(7, "5:9:", horizon=12)
    assert meet([Cursor(9, "5:9:", horizon=12), Cursor(7, "6:10:", horizon=15)]).horizon == 12
    assert meet([Cursor(9, "5:9:", horizon=12), Cursor(7, "5:9:")]).horizon == 12
    assert meet([Cursor(9, "5:9:"), Cursor(7, "5:9:")]).horizon is None


def row(position: int, slot: int = 0) -> StoredMessage:
    return StoredMessage(position, UUID(int=position), "t", None, slot, "t", b"x", "c", "{}", 0)


def shared(
    rows: Sequence[tuple[int, int, int]], *cursors: Cursor, sweep_rows: int = 10, page_rows: int = 10, log_end: int = 50
) -> list[list[tuple[list[int], Cursor, bool]] | None]:
    """For a lane of the lower slots, and one of the higher ones, the positions of each page, where it ends, and `more`.

    A row is its position, its slot and its xid.
    """
    messages = [row(position, slot) for position, slot, _ in rows]
    xids = [xid for _, _, xid in rows] if len(set(cursors)) > 1 else None
    sweep = Sweep(messages, xids, "20:20:", log_end, [1, 2], horizon=25)
    lanes = list(zip([LOW, HIGH], cursors, strict=True))
    portions = share_out(sweep, lanes, limit=PageLimit(sweep_rows, 100), page_rows=page_rows)
    for portion, cursor, version in zip(portions, cursors, [1, 2], strict=True):
        ends = [cursor, *(page.after for page in portion or ())]
        for page, before in zip(portion or (), ends, strict=False):
            assert (page.before, page.version) == (before, version), "the pages follow one another"
    return [
        None if portion is None else [(positions(page), page.after, page.more) for page in portion]
        for portion in portions
    ]


def test_each_lane_gets_the_rows_of_its_slots() -> None:
    at = Cursor(10, "5:9:")
    end = Cursor(50, "20:20:", horizon=25)
    assert shared([(11, 0, 9), (12, 1023, 9), (13, 511, 9)], at, at) == [
        [([11, 13], end, False)],
        [([12], end, False)],
    ]


def test_no_lane_gets_what_it_has_dealt_with() -> None:
    """Of the lower lane, 8 was in progress, and so was 10, at its xmax; the upper one has come further."""
    low, high = Cursor(10, "5:10:8"), Cursor(12, "5:11:")
    rows = [(3, 0, 8), (4, 0, 9), (5, 0, 10), (6, 600, 8), (7, 600, 11), (11, 0, 7), (12, 600, 7), (13, 600, 7)]
    end = Cursor(50, "20:20:", horizon=25)
    assert shared(rows, low, high) == [[([3, 5, 11], end, False)], [([7, 13], end, False)]]


def test_an_empty_part_of_a_full_sweep_is_not_the_end_of_the_log() -> None:
    at, end = Cursor(10, "5:9:"), Cursor(12, "20:20:", horizon=25)
    assert shared([(11, 0, 9), (12, 0, 9)], at, at, sweep_rows=2) == [[([11, 12], end, True)], [([], end, True)]]
    end = Cursor(50, "20:20:", horizon=25)
    assert shared([(11, 0, 9), (12, 0, 9)], at, at) == [[([11, 12], end, False)], [([], end, False)]]


def test_a_sweep_that_ends_before_a_lanes_position_says_nothing_to_it() -> None:
    """The lane's cursor can't be moved, and could not say that late rows up to there were dealt with."""
    low, high = Cursor(10, "5:9:"), Cursor(30, "5:12:11")
    assert shared([(11, 0, 9), (12, 600, 11)], low, high, sweep_rows=2) == [
        [([11], Cursor(12, "20:20:", horizon=25), True)],
        [],
    ]
    assert shared([(11, 0, 9), (30, 600, 11)], low, high, sweep_rows=2) == [
        [([11], Cursor(30, "20:20:", horizon=25), True)],
        [([30], Cursor(30, "20:20:", horizon=25), True)],
    ]


def test_a_lane_gets_its_rows_in_pages() -> None:
    at = Cursor(10, "5:9:")
    rows = [(3, 0, 9), (11, 0, 9), (12, 0, 9), (13, 600, 9), (14, 0, 9), (15, 0, 9)]
    assert shared(rows, at, at, page_rows=2) == [
        [
            ([3, 11], Cursor(11, "20:20:", horizon=25), True),
            ([12, 14], Cursor(14, "20:20:", horizon=25), True),
            ([15], Cursor(50, "20:20:", horizon=25), False),
        ],
        [([13], Cursor(50, "20:20:", horizon=25), False)],
    ]


def test_a_lane_with_more_late_rows_than_fit_on_a_page_catches_up_alone() -> None:
    at = Cursor(10, "5:9:")
    rows = [(3, 0, 9), (4, 0, 9), (5, 600, 9), (11, 0, 9)]
    assert shared(rows, at, at, page_rows=2) == [None, [([5], Cursor(50, "20:20:", horizon=25), False)]]


def test_when_a_sweep_has_no_room_for_all_late_rows_every_lane_reads_alone() -> None:
    at = Cursor(10, "5:9:")
    assert shared([(3, 0, 9), (4, 0, 9), (11, 600, 9)], at, at, sweep_rows=2) == [None, None]


def test_positions_never_fall_in_a_sweep() -> None:
    low, high = Cursor(10, "5:9:"), Cursor(60, "5:9:")
    assert shared([], low, high) == [
        [([], Cursor(50, "20:20:", horizon=25), False)],
        [([], Cursor(60, "20:20:", horizon=25), False)],
    ]
