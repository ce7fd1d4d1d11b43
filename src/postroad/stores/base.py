"""The contract of a store: what the relay asks of a database, including what happens to the one who loses a race.

tests/contracts/test_stores.py holds every store to these words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from postroad.stores.cursor import Cursor, Page, PageLimit

__all__ = ["Cleaned", "LaneStatus", "Lease", "Start", "Store"]

Start = Literal["oldest", "now"]


class Lease(msgspec.Struct, frozen=True):
    """A lane as its owner loaded it. The fence of every write is `owner`, `epoch` and `version`."""

    sink: str
    lane: int
    first_slot: int
    last_slot: int
    owner: UUID
    epoch: int
    version: int
    cursor: Cursor

    def settled(self, cursor: Cursor) -> Lease:
        """The lease after a settle of its own."""
        return msgspec.structs.replace(self, version=self.version + 1, cursor=cursor)


class LaneStatus(msgspec.Struct, frozen=True):
    """What an operator wants to know of a lane."""

    sink: str
    lane: int
    position: int
    pending: int
    lag_seconds: float
    """The age of the oldest message that waits; 0 when none does."""
    owner: UUID | None


class Cleaned(msgspec.Struct, frozen=True):
    """What one batch of retention did."""

    deleted: int
    through: int
    """Every row up to this position was looked at."""
    more: bool
    """Something was old enough, so the next batch may find more."""


class Store(Protocol):
    """A database with the log, the lanes and their cursors.

    Whatever goes wrong with the connection is raised as StoreUnavailable; the caller then forgets what it knew of its
    lanes and loads them again, because the database may have gone back in time.
    """

    async def open(self) -> None:
        """Connect, and check that this database may be read from.

        Raises StoreUnavailable, NotMigrated, ClientTooOld or LogNotReadable. A database that was restored into another
        cluster is brought in order here, once, and that is said in the log.
        """

    async def close(self) -> None:
        """Let go of all connections."""

    async def take_lanes(self, sink: str, owner: UUID, *, lanes: int, start: Start) -> Sequence[Lease]:
        """Make `owner` the owner of all lanes of a sink, raising their epochs; a new sink gets `lanes` lanes.

        Whoever owned a lane before finds out at its next write.
        """
        ...

    async def load(self, lease: Lease) -> Lease:
        """The lane as it is now. Raises LeaseLost when it has another owner or epoch."""
        ...

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        """What the lane has not dealt with, from `cursor` on, in one snapshot. Reading changes nothing.

        Raises StoreUnavailable also when the connection was made anew since this store took or loaded the lane.
        """
        ...

    async def settle(self, lease: Lease, cursor: Cursor) -> Lease:
        """Save the cursor. Raises LaneChanged, and writes nothing, unless the lane is as `lease` says."""
        ...

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int) -> Cleaned:
        """Delete, of the first `batch` rows after a position, those that every lane of every sink has passed and that
        are older than that. With no sink at all nothing has been passed.
        """
        ...

    async def status(self) -> Sequence[LaneStatus]:
        """Every lane of every sink."""
        ...
