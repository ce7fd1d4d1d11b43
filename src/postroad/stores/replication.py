"""The contract of replication slots: what a relay asks about a slot by which another program reads the log.

The relay publishes nothing there. It notes how far the log has come, and when the slot's reader has confirmed that much
of the write-ahead log, the sink's cursor moves there. Only PostgreSQL has such slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from postroad.stores.base import Lease
    from postroad.stores.cursor import Cursor

__all__ = ["SCHEME", "Identity", "Look", "Replication", "ReplicationSlot", "slot_of_destination"]

SCHEME: Final = "slot://"


def slot_of_destination(destination: str | None) -> str | None:
    """The slot that a sink with this destination follows; None: it is published to."""
    return destination.removeprefix(SCHEME) if destination is not None and destination.startswith(SCHEME) else None


class Identity(msgspec.Struct, frozen=True):
    """What tells a slot from another one that has the same name."""

    transactions: int
    """How many transactions it has decoded. The number never falls while the server keeps its statistics."""
    timeline: str
    """That of the server. A standby that is promoted begins another one."""
    statistics: str
    """Since when the server has counted. A crash begins anew."""


class ReplicationSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A replication slot as it is."""

    identity: Identity
    active: bool
    """A reader is connected."""
    confirmed: int | None
    """How far its reader has confirmed to have carried the write-ahead log; None: it confirms nothing."""
    of_this_database: bool
    wal_status: str | None
    """`lost`: the server has removed a part of the write-ahead log that the reader needs."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one statement has seen."""

    cursor: Cursor
    """A lane that has dealt with every message which this statement could see."""
    lsn: int
    """The insert position of the write-ahead log, read after the statement's snapshot was taken. The commit of every
    transaction that the snapshot shows lies below it.
    """
    added: int
    """How many messages lie between the cursor that was given and this one."""
    version: int
    """The lane's."""
    slot: ReplicationSlot | None
    """None: there is none of this name."""
    kept: Identity | None
    """The slot that the sink has followed so far; None: it has not followed any."""
    lost: str | None = None
    """Why that slot is lost; an operator has not adopted it, or another one, since."""


class Replication(Protocol):
    """Replication slots, for the lane that follows one. Each call is fenced by owner and epoch: without effect, or
    LaneChanged, for one that has lost the lane. Raises StoreUnavailable also when the server was restarted since the
    lane was loaded: what was noted before means nothing then.
    """

    async def look(self, lease: Lease, slot: str, after: Cursor) -> Look:
        """Look at the log and the slot, in one statement."""
        ...

    async def keep(self, lease: Lease, slot: str, identity: Identity) -> None:
        """Remember which slot the sink follows. Nothing happens while it is lost."""

    async def lose(self, lease: Lease, slot: str, reason: str) -> None:
        """Pause the sink until an operator adopts the slot, and raise the lane's version."""
