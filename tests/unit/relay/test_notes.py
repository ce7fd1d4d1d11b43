"""When the cursor of a sink that follows a replication slot may move, and when the slot is not to be relied upon."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from postroad.relay.notes import MOST, Notes, why_lost
from postroad.stores.cursor import Cursor
from postroad.stores.replication import Identity, Look, ReplicationSlot, slot_of_destination

KEPT = Identity(transactions=10, timeline="00000001", statistics="1")
SLOT = ReplicationSlot(identity=KEPT, active=True, confirmed=100, of_this_database=True, wal_status="reserved")


def look(position: int, lsn: int, added: int, **more: Any) -> Look:
    given = {"slot": SLOT, "kept": KEPT, "version": 1, **more}
    return Look(cursor=Cursor(position, f"{position}:{position}:"), lsn=lsn, added=added, **given)


def confirmed(lsn: int | None, *, active: bool = True) -> ReplicationSlot:
    return replace(SLOT, confirmed=lsn, active=active)


def test_the_cursor_moves_to_the_last_note_that_was_confirmed() -> None:
    notes = Notes(Cursor(0))
    for number in (1, 2, 3):
        notes.add(look(10 * number, 100 * number, added=10))
    assert notes.carried(confirmed(99)) is None
    assert notes.carried(confirmed(250)) == (Cursor(20, "20:20:"), 20)
    assert notes.waiting == 10
    assert notes.carried(confirmed(250)) is None
    assert notes.carried(confirmed(300)) == (Cursor(30, "30:30:"), 10)
    assert notes.waiting == 0


def test_a_note_has_the_lsn_of_its_own_look() -> None:
    """That of an earlier look lies below commits that only this look has seen."""
    notes = Notes(Cursor(0))
    notes.add(look(0, 100, added=0))
    notes.add(look(5, 200, added=5))
    assert notes.carried(confirmed(150)) is None


def test_nothing_is_noted_where_nothing_was_added() -> None:
    notes = Notes(Cursor(0))
    notes.add(look(0, 100, added=0))
    assert notes.carried(confirmed(1000)) is None
    assert notes.after == Cursor(0, "0:0:")


def test_a_slot_that_no_program_reads_moves_nothing() -> None:
    notes = Notes(Cursor(0))
    notes.add(look(10, 100, added=10))
    assert notes.carried(confirmed(1000, active=False)) is None
    assert notes.carried(confirmed(None)) is None


def test_many_notes_are_thinned_out_and_count_the_same() -> None:
    notes = Notes(Cursor(0))
    last = 10 * MOST
    for number in range(1, last + 1):
        notes.add(look(number, number, added=1))
        assert len(notes._notes) <= MOST
    assert notes.carried(confirmed(last)) == (Cursor(last, f"{last}:{last}:"), last)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({}, None),
        ({"slot": None, "kept": None}, None),
        ({"kept": None}, None),
        ({"slot": confirmed(None), "kept": None}, None),
        ({"slot": replace(SLOT, active=False)}, None),
        ({"slot": replace(SLOT, wal_status="unreserved")}, None),
        ({"slot": replace(SLOT, identity=replace(KEPT, transactions=11))}, None),
        ({"slot": replace(SLOT, identity=replace(KEPT, transactions=0, statistics="2"))}, None),
        ({"slot": None}, "does not exist any more"),
        ({"slot": confirmed(None)}, "has no confirmed_flush_lsn"),
        ({"slot": replace(SLOT, of_this_database=False)}, "belongs to another database"),
        ({"slot": replace(SLOT, of_this_database=False), "kept": None}, "belongs to another database"),
        ({"slot": replace(SLOT, wal_status="lost")}, "is lost"),
        ({"slot": replace(SLOT, identity=replace(KEPT, transactions=9))}, "was dropped and made anew"),
        ({"slot": replace(SLOT, identity=replace(KEPT, transactions=99, timeline="2"))}, "the server was promoted"),
        ({"lost": "it was lost before"}, "it was lost before"),
    ],
)
def test_a_slot_that_is_not_the_one_that_was_followed_is_lost(seen: dict[str, Any], reason: str | None) -> None:
    found = why_lost("shop", look(1, 1, added=1, **seen))
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_the_slot_of_a_destination() -> None:
    assert [slot_of_destination(each) for each in ("slot://shop", "amqp://host", None)] == ["shop", None, None]
