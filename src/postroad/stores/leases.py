"""The contract of leases: lane ownership, lease expiry, and what happens to a relay that loses a lane.

tests/contracts/test_leases.py tests every store against it. Time is the database's clock. A lane is free when it has no
owner, or when its lease has expired. At most one owner's writes succeed at any time: every write of a lane's cursor
or its deferred messages names owner, epoch and version, and taking a lane changes all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from postroad.errors import InvalidSetting, NotFound
from postroad.sink_filter import EVERYTHING, SinkFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from postroad.stores.base import Lease, Start

__all__ = [
    "NOWHERE",
    "Heartbeat",
    "Leases",
    "LivenessLock",
    "Peer",
    "RelayIdentity",
    "RelayState",
    "RelayStatus",
    "SinkSnapshot",
    "Suspect",
    "relay_state",
    "sink_removed",
    "still_served",
    "wrong_destination",
    "wrong_filter",
]

NOWHERE: Final = "null://"
"""The destination that confirms everything and keeps nothing. A sink that has delivered elsewhere never gets it."""

RelayState = Literal["active", "standby", "dead"]
"""It owns lanes; it owns none; its heartbeats have stopped."""


def relay_state(*, alive: bool, lanes: Collection[int]) -> RelayState:
    """The state of a relay that owns these lanes."""
    return "dead" if not alive else "active" if lanes else "standby"


def wrong_destination(sink: str, kept: str | None, wanted: str) -> InvalidSetting:
    """The error for a relay whose publisher has another destination than the sink."""
    place = (
        f"sink {sink!r} delivers to {kept}"
        if kept
        else f"sink {sink!r} was created by a version that kept no destination"
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


def wrong_filter(sink: str, kept: str | None, wanted: str | None) -> InvalidSetting:
    """The error for a relay with another filter than the sink."""
    return InvalidSetting(
        f"sink {sink!r} takes {SinkFilter.of_text(kept)}, and this relay would take {SinkFilter.of_text(wanted)}; give "
        "it the same filter (topics, exclude_topics, types, sources), or give the sink this one, after stopping its "
        f"relays: postroad sink filter {sink}"
    )


def still_served(sink: str, relays: int) -> NotFound:
    """The error for a sink that can't be moved or removed while relays serve it."""
    return NotFound(
        f"sink {sink!r} is still served, by {relays} relay{'' if relays == 1 else 's'}; stop its relays first "
        "(`postroad relays` lists them). A relay that died counts until its lease has expired (the setting lease)"
    )


def sink_removed(sink: str) -> NotFound:
    """The error for a sink that was removed between two statements of one command."""
    return NotFound(f"sink {sink!r} was removed meanwhile")


class RelayIdentity(msgspec.Struct, frozen=True):
    """A relay as other relays and operators see it."""

    owner: UUID
    """Random, new for each start."""
    sink: str
    host: str
    pid: int
    version: str
    destination: str
    """What its publisher calls its destination. The relay gets lanes only while the sink has the same one."""
    filter: str | None = None
    """Its filter, see `SinkFilter.text`. The relay gets lanes only while the sink has the same one."""


class Peer(msgspec.Struct, frozen=True):
    """A relay whose heartbeat has not expired."""

    owner: UUID
    lanes: int
    """How many lanes it owns."""
    heartbeats: int
    """How many heartbeats it has sent: a higher number shows that it is alive."""
    lock: int | None = None
    """The key of the advisory lock that its row says it holds."""


class Suspect(msgspec.Struct, frozen=True):
    """A relay whose row says that it holds its liveness lock, and the server says that it does not."""

    owner: UUID
    heartbeats: int
    """How many heartbeats it had sent: a relay that has sent another one since is alive."""


class SinkSnapshot(msgspec.Struct, frozen=True):
    """Lanes and relays of a sink, from one database snapshot."""

    lanes: int
    destination: str | None
    """Where the sink delivers to; None also when the sink does not exist (any more)."""
    mine: Mapping[int, int]
    """The lanes that this relay owns, and their epochs."""
    renewed: Collection[int]
    """Of those, the lanes whose leases this statement renewed."""
    free: Collection[int]
    peers: Sequence[Peer]
    """All live relays of the sink, including the asking one, in the order in which they were started."""
    suspects: Sequence[Suspect]
    filter: str | None = None
    """Which messages the sink takes; None: all."""
    lock_held: bool = True
    """The server confirms that the given session holds its lock; also True when no session was given."""


class RelayStatus(msgspec.Struct, frozen=True):
    """A relay as `postroad relays` shows it."""

    owner: UUID
    sink: str
    host: str
    pid: int
    version: str
    lanes: Sequence[int]
    started_at: datetime
    heartbeat_seconds: float
    """Seconds since its last heartbeat."""
    state: RelayState
    lock: int | None
    """The key of the advisory lock that it holds, if any."""


class LivenessLock(Protocol):
    """A session of the relay's own that holds a lock and ends with its process, so that other relays see at once when
    the process died.

    A relay whose row says that it holds the lock, and which does not, becomes a suspect. Holding the lock never extends
    a lease.
    """

    @property
    def held(self) -> bool:
        """The session is open and holds the lock."""
        ...

    @property
    def lost(self) -> bool:
        """The session has ended without `close`, and the lock with it."""
        ...

    async def acquire(self) -> bool:
        """Try to get the lock, without waiting for it, and save that in the relay's row."""
        ...

    async def holder(self) -> str | None:
        """The session that holds the lock, for people to read; None when it is free."""
        ...

    def close(self) -> None:
        """Release the lock and end the session."""


class Heartbeat(msgspec.Struct, frozen=True):
    """The arguments of `Leases.heartbeat`, for `Naps.tick` to send it in the same statement."""

    identity: RelayIdentity
    seconds: float
    liveness_lock: LivenessLock | None


class Leases(Protocol):
    """Lane ownership and lease expiry. Raises StoreUnavailable when the database is unavailable."""

    async def create(
        self, sink: str, destination: str, *, lanes: int, start: Start, filter: SinkFilter = EVERYTHING
    ) -> None:
        """Create a sink with its destination, filter and lanes. An existing sink stays as it is; one without a
        destination, which was created by a version that kept none, gets this one, unless it is NOWHERE.

        Raises InvalidSetting, and writes nothing, when the sink has another destination or filter. When several relays
        create a sink at once, the first one decides these and the others are checked against it.
        """

    async def heartbeat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        """Extend the relay's registration and the leases of its lanes to `seconds` from now, and return the snapshot.

        Never waits for a row lock: a lane that another transaction has locked is not renewed this time. A lane that
        another relay has taken stays with that relay. An expired lease whose lane was not taken is renewed. Unless the
        server confirms that the session holds its lock, the relay's row says that it holds none. Deletes relays that
        died more than a day ago, except the last relay of a sink that no relay serves.
        """
        ...

    async def inspect(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        """Return the snapshot. Writes nothing."""
        ...

    async def evict(self, identity: RelayIdentity, suspects: Collection[Suspect]) -> Collection[UUID]:
        """Free the lanes of those suspects that are dead, and return their owners. An evicted relay that is alive after
        all finds out at its next write. A suspect with a lane that another transaction has locked keeps that lane, is
        not returned, and stays a suspect.

        Dead is a relay whose row says that it holds a lock which it does not hold, on a server that was not restarted
        since, whose last heartbeat is more than a second old, and which has sent no heartbeat since it was suspected.
        By default there are no sessions, and so no suspects.
        """
        return ()

    async def take(
        self,
        identity: RelayIdentity,
        at_most: int,
        seconds: float,
        *,
        reclaim: Collection[int] = (),
        exclude: Collection[int] = (),
    ) -> Sequence[Lease]:
        """Make the relay the owner of up to `at_most` free lanes, and raise their epochs.

        Lanes of `reclaim` that the relay owns already come first; lanes of `exclude` are left alone. A previous owner
        finds out at its next write. Lanes that another transaction has locked are skipped, never waited for. Takes
        nothing unless the sink's destination and filter are the relay's.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Free the lane and notify other relays. Does nothing when the lane has another owner or epoch."""

    async def deregister(self, identity: RelayIdentity) -> None:
        """Delete the relay, free its lanes, and notify other relays."""

    async def open_session(
        self, identity: RelayIdentity, lock: int | None, on_change: Callable[[], None]
    ) -> LivenessLock | None:
        """Open the session by which other relays see that this one died. The relay has sent a heartbeat before.

        Without `lock` the key is the relay's own, and it gets the lock at once; a key that is given may be held by
        another relay. `on_change` is called when lanes may have become free, when a relay was started, and when the
        session was lost. Returns None, as by default, where there are no sessions: in a file, or behind a transaction
        pooler.
        """
        return None

    async def relays(self) -> Sequence[RelayStatus]:
        """Every relay of every sink."""
        ...

    async def unserved(self) -> Mapping[str, float]:
        """For each sink, how many seconds ago a relay last served it; about 0 while one does."""
        ...
