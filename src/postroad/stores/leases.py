"""The contract of leases: how relays share the lanes of a sink, and what becomes of the one who loses a lane.

tests/contracts/test_leases.py holds every store to these words. Time is the database's clock. A lane is free when it
has no owner, or when its lease is over; at any time at most one owner's writes succeed, because every write of a lane
names owner, epoch and version, and every taking changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from postroad.errors import InvalidSetting, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from postroad.stores.base import Lease, Start

__all__ = [
    "NOWHERE",
    "Beat",
    "Leases",
    "LivenessLock",
    "Peer",
    "RelayIdentity",
    "RelayState",
    "RelayStatus",
    "SinkSnapshot",
    "Suspect",
    "elsewhere",
    "relay_state",
    "still_served",
]

NOWHERE: Final = "null://"
"""The destination that confirms everything and keeps nothing. A sink that has delivered elsewhere never gets it."""

RelayState = Literal["active", "standby", "dead"]
"""It has lanes; it waits for some; it is heard of no more."""


def relay_state(*, alive: bool, lanes: Collection[int]) -> RelayState:
    """What is true of a relay."""
    return "dead" if not alive else "active" if lanes else "standby"


def elsewhere(sink: str, kept: str | None, wanted: str) -> InvalidSetting:
    """What is raised for a relay that would deliver to another destination than its sink does."""
    place = (
        f"sink {sink!r} delivers to {kept}" if kept else f"sink {sink!r} was made by a version that kept no destination"
    )
    if wanted == NOWHERE:
        return InvalidSetting(
            f"{place}, and {NOWHERE} would confirm its messages and keep none of them; "
            f"give {NOWHERE} a sink of its own: --sink NAME"
        )
    return InvalidSetting(
        f"{place}, and this relay would deliver to {wanted}; give it a sink of its own (--sink NAME), or move this "
        f"sink there, after stopping its relays: postroad sink retarget {sink} --to URL"
    )


def still_served(sink: str, relays: int) -> NotFound:
    """What is raised for a sink that can't be moved or removed now."""
    return NotFound(
        f"sink {sink!r} is still served, by {relays} relay{'' if relays == 1 else 's'}; stop its relays first "
        "(`postroad relays` shows them). One that died counts until its lease is over (the setting lease)"
    )


def removed(sink: str) -> NotFound:
    """What is raised for a sink that was there a moment ago."""
    return NotFound(f"sink {sink!r} is gone: it was removed meanwhile")


class RelayIdentity(msgspec.Struct, frozen=True):
    """A relay as the others see it."""

    owner: UUID
    """Random, anew for each start."""
    sink: str
    host: str
    pid: int
    version: str
    destination: str
    """What its publisher calls its destination: it gets lanes only while that is the sink's."""


class Peer(msgspec.Struct, frozen=True):
    """A relay that lives."""

    owner: UUID
    lanes: int
    """How many it has."""
    beats: int
    """How often it was heard of."""
    lock: int | None = None
    """The key of the advisory lock that it says it holds."""


class Suspect(msgspec.Struct, frozen=True):
    """A relay that said it would hold a lock for as long as it lives, and does not hold it."""

    owner: UUID
    beats: int
    """How often it has beaten: one that has beaten since is not dead."""


class SinkSnapshot(msgspec.Struct, frozen=True):
    """How things stand with a sink, from one snapshot."""

    lanes: int
    destination: str | None
    """Where the sink delivers to; None also when there is no such sink (any more)."""
    mine: Mapping[int, int]
    """The lanes that are this relay's, and their epochs."""
    renewed: Collection[int]
    """Of those, the lanes whose leases were renewed just now."""
    free: Collection[int]
    peers: Sequence[Peer]
    """All relays of the sink that live, the one that asks among them, by when they were started."""
    suspects: Sequence[Suspect]
    present: bool = True
    """The session that was named when asking still holds its lock, as the server knows; or none was named."""


class RelayStatus(msgspec.Struct, frozen=True):
    """What an operator wants to know of a relay."""

    owner: UUID
    sink: str
    host: str
    pid: int
    version: str
    lanes: Sequence[int]
    started_at: datetime
    heartbeat_seconds: float
    """How long ago it was heard of."""
    state: RelayState
    lock: int | None
    """The key of the advisory lock that it holds."""


class LivenessLock(Protocol):
    """A session of the relay's own that ends when its process does, by which others see at once that it died.

    What a relay said it holds and does not hold makes it a suspect. A held lock never prolongs a lease.
    """

    @property
    def holds(self) -> bool:
        """The session is there, and has the lock."""
        ...

    @property
    def lost(self) -> bool:
        """The session is gone, and the lock with it."""
        ...

    async def lock(self) -> bool:
        """Try to get the lock, and say so in the relay's row. Nobody is waited for."""
        ...

    async def holder(self) -> str | None:
        """Who has the lock, in words; None: nobody."""
        ...

    def close(self) -> None:
        """Let go of the lock."""


class Beat(msgspec.Struct, frozen=True):
    """What `Leases.beat` is asked, for others to carry along."""

    identity: RelayIdentity
    seconds: float
    liveness_lock: LivenessLock | None


class Leases(Protocol):
    """Who has which lane of a sink until when. Whatever goes wrong with the connection is StoreUnavailable."""

    async def create(self, sink: str, destination: str, *, lanes: int, start: Start) -> None:
        """Give a new sink its destination and its lanes. One that is there stays as it is; one without a destination,
        which was made by a version that kept none, gets this one, unless it is NOWHERE.

        Raises InvalidSetting, and writes nothing, when the sink delivers elsewhere. Of several relays that create a
        sink at once, one decides where it delivers to.
        """

    async def beat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        """The relay lives, and has its lanes, for so many seconds from now; and how things stand.

        A lane that somebody else has locked is not waited for, nor renewed; one that another has taken stays his. A
        lease that was over, and whose lane nobody has taken, is renewed. Without a presence that holds, as the server
        knows, the relay says that it holds no lock. Relays that died more than a day ago are
        forgotten, but the last one of a sink that no relay serves.
        """
        ...

    async def look(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        """How things stand. Changes nothing."""
        ...

    async def bury(
        self, identity: RelayIdentity, suspects: Collection[Suspect], liveness_lock: LivenessLock | None = None
    ) -> Collection[UUID]:
        """Of the suspects, take those for dead that are, free their lanes, and say who they were. Whose lane somebody
        has locked stays a suspect until that one is free, too.

        Dead is who holds no lock although it said so, on a server that was not started anew since, who was last heard
        of more than a second ago, and who has not beaten since it was suspected.
        """
        ...

    async def take(
        self,
        identity: RelayIdentity,
        at_most: int,
        seconds: float,
        *,
        again: Collection[int] = (),
        but: Collection[int] = (),
    ) -> Sequence[Lease]:
        """Make the relay the owner of up to so many lanes that are free, raising their epochs.

        First come, of the lanes that are its own already, those of `again`; those of `but` are left alone. Whoever
        owned a lane before finds out at its next write. What somebody has locked is passed over: nobody waits. Nothing
        is taken unless the sink delivers to the relay's destination.
        """
        ...

    async def give_up(self, lease: Lease) -> None:
        """The lane is free, and others are told, unless it has another owner or epoch already."""

    async def leave(self, identity: RelayIdentity) -> None:
        """The relay is no more; its lanes are free, and others are told."""

    async def attend(
        self, identity: RelayIdentity, lock: int | None, stirred: Callable[[], None]
    ) -> LivenessLock | None:
        """Open a session by which others see when this relay dies. It has beaten before.

        Without a number the lock is its own, and it has it at once; a number may be another's. `stirred` is called
        when lanes may have become free, when a relay has come, and when the session was lost. None where there is no
        such thing: in a file, or behind a pooler that lends a session to one transaction after the other.
        """
        ...

    async def relays(self) -> Sequence[RelayStatus]:
        """Every relay of every sink."""
        ...

    async def unserved(self) -> Mapping[str, float]:
        """For each sink, how many seconds ago a relay last served it; about 0 while one does."""
        ...
