"""How pages move a cursor, in every situation the log can be in."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from postroad import StoredMessage
from postroad.stores.cursor import Cursor, Page, PageLimit, turn_page

LIMIT = PageLimit(rows=3, payload_bytes=100)
BEFORE = Cursor(10, "S")


def message(position: int, size: int = 1) -> StoredMessage:
    return StoredMessage(position, UUID(int=position), "t", None, 0, "t", b"x" * size, "c", "{}", 0)


def turn(*positions: int, log_end: int = 50, before: Cursor = BEFORE, size: int = 1) -> Page:
    rows = [message(position, size) for position in positions]
    return turn_page(before, rows, limit=LIMIT, snapshot="S2", log_end=log_end)


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
        page = turn_page(cursor, found, limit=limit, snapshot=None, log_end=len(rows))
        dealt_with = data.draw(st.integers(min(1, len(found)), len(found)))
        seen += positions(page)[:dealt_with]
        cursor = page.cursor_after(dealt_with)
        if not found:
            break
    assert seen == [row.position for row in rows]
