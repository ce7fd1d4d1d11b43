"""What a lane that follows a replication slot notes, and when its cursor may move to a note. Pure: no I/O, no clock.

- A note is a cursor and a position of the write-ahead log (LSN) below which every commit lies that the cursor's
  snapshot shows. `Replication.look` reads both in one statement.
- The cursor moves to a note when the slot has confirmed the note's LSN, and only while a reader is connected. A slot
  that Debezium has just created has confirmed everything before it, although the snapshot which Debezium takes then is
  not carried yet; it connects to the slot afterwards.
- Notes belong to one server from its start to its end. After a crash, positions, transaction ids and LSNs that were
  noted and not on disk are given out again.
- A slot that may not be the one that was followed before confirms nothing: see `why_lost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from postroad.stores.cursor import Cursor
    from postroad.stores.replication import Identity, Look, ReplicationSlot

__all__ = ["Carried", "Notes", "why_lost"]

MOST: Final = 100
"""If a slot confirms nothing for long, so many notes are kept; every second one is dropped then."""


class _Note(NamedTuple):
    cursor: Cursor
    lsn: int
    noted: int
    """How many messages were noted up to here."""


class Carried(NamedTuple):
    """What the slot's reader has carried."""

    cursor: Cursor
    messages: int


class Notes:
    """The notes since the lane was loaded."""

    def __init__(self, cursor: Cursor) -> None:
        self.after = cursor
        """What lies behind it was not noted yet."""
        self._notes: list[_Note] = []
        self._noted = self._carried = 0

    @property
    def waiting(self) -> int:
        """How many messages were noted and are not carried yet."""
        return self._noted - self._carried

    def add(self, look: Look) -> None:
        """Note what a look has seen, unless it has seen no message."""
        self.after = look.cursor
        if look.added:
            self._noted += look.added
            self._notes.append(_Note(look.cursor, look.lsn, self._noted))
            if len(self._notes) > MOST:
                del self._notes[1:-1:2]

    def carried(self, slot: ReplicationSlot) -> Carried | None:
        """The last note that the slot has confirmed, which is then forgotten; None if there is none."""
        if not slot.active or slot.confirmed is None:
            return None
        reached = [note for note in self._notes if note.lsn <= slot.confirmed]
        if not reached:
            return None
        del self._notes[: len(reached)]
        before, self._carried = self._carried, reached[-1].noted
        return Carried(reached[-1].cursor, self._carried - before)


def why_lost(name: str, look: Look) -> str | None:
    """Why the slot can't be relied upon: messages may be in the log that its reader has not carried and never will.

    None: it can; also if the sink has followed no slot yet, and there is none of this name.
    """
    slot, kept, named = look.slot, look.kept, f"the replication slot {name!r}"
    if look.lost is not None:
        return look.lost
    if slot is None:
        return None if kept is None else f"{named} does not exist any more"
    problems = (
        (
            slot.confirmed is None and kept is not None,
            "has no confirmed_flush_lsn: it is being created, or is physical",
        ),
        (not slot.of_this_database, "belongs to another database"),
        (slot.wal_status == "lost", "is lost: the server has removed write-ahead log that its reader needs"),
    )
    unusable = next((text for wrong, text in problems if wrong), None)
    return _another(slot.identity, kept, named) if unusable is None else f"{named} {unusable}"


def _another(now: Identity, kept: Identity | None, named: str) -> str | None:
    """Why the slot may be another one than that which was kept."""
    if kept is None:
        return None
    if now.timeline != kept.timeline:
        return f"the server was promoted (timeline {kept.timeline} became {now.timeline}), and slots may not have moved"
    if now.statistics == kept.statistics and now.transactions < kept.transactions:
        decoded = f"it has decoded {now.transactions:,} transactions, and had decoded {kept.transactions:,}"
        return f"{named} was dropped and made anew: {decoded}"
    return None
