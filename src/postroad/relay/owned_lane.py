"""What a lane knows of its lease, and how relays share lanes. No wave begins that the lease may not outlast.

What is shared among those that live is not left to one who does not come for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from postroad.relay.clock import Clock
    from postroad.stores.base import Lease
    from postroad.stores.leases import Peer, SinkSnapshot

__all__ = ["FreeLanes", "LeaseInDoubt", "OwnedLane", "acting_without_lock", "fair_share"]

DOUBT_SECONDS: Final = 0.05
"""How often a lane in doubt asks again."""
LEFT_SECONDS: Final = 1.0
"""How long a free lane is left to the one whose share it is."""


class LeaseInDoubt(PostroadError):
    """The lease may end before what is about to begin, as far as this relay knows."""


def fair_share(lanes: int, peers: Sequence[Peer], me: UUID) -> int:
    """How many of the lanes are for this relay. All relays that see the same share them without rest.

    Who has more lanes already comes first, then who was there first: nothing moves that need not.
    """
    places = [peer.owner for peer in sorted(peers, key=lambda peer: -peer.lanes)]
    if me not in places:
        places.append(me)
    share, rest = divmod(lanes, len(places))
    return share + (places.index(me) < rest)


def acting_without_lock(peers: Sequence[Peer], me: UUID, lock_id: int) -> bool:
    """Whether it is for this relay to work without the lock: nobody who lives says that it holds it, and of those who
    have lanes, or if nobody has, of all, this one was there first.
    """
    if any(peer.lock == lock_id and peer.owner != me for peer in peers):
        return False
    first = next(iter([peer for peer in peers if peer.lanes] or peers), None)
    return first is not None and first.owner == me


class FreeLanes:
    """Lanes that are free and that nobody takes.

    Who lives, as far as is known, and leaves a lane of its share for a second, is not counted until it is heard of
    again.
    """

    def __init__(self, me: UUID) -> None:
        self._me = me
        self._since: dict[int, float] = {}
        self._absent: dict[UUID, int] = {}
        """How often they had been heard of when they left a lane."""
        self.left = False
        """One has been free for some time."""

    def look(self, snapshot: SinkSnapshot, now: float) -> Sequence[Peer]:
        """Note what is free. The peers that count."""
        self._since = {lane: self._since.get(lane, now) for lane in snapshot.free}
        self.left = any(now - since >= LEFT_SECONDS for since in self._since.values())
        if self.left:
            self._absent |= {
                peer.owner: peer.beats
                for peer in snapshot.peers
                if peer.owner != self._me and peer.lanes < fair_share(snapshot.lanes, snapshot.peers, peer.owner)
            }
        return [peer for peer in snapshot.peers if self._absent.get(peer.owner) != peer.beats]


class OwnedLane:
    """A lease, from when it was taken until it is given up or lost."""

    def __init__(self, lease: Lease, until: float, clock: Clock) -> None:
        self.lease = lease
        """As it was taken last."""
        self.until = until
        """When the relay's own clock shows this, no wave begins any more."""
        self.lost = False
        """Another has the lane."""
        self.leaving = False
        """The lane is to be given up after the page under way."""
        self.over = False
        """The lane does not run any more."""
        self.stop: Callable[[], None] = lambda: None
        """Stops the lane. Set by the one who starts it."""
        self._clock = clock

    def check(self, loaded: Lease) -> None:
        """Raise LeaseInDoubt unless a wave may begin by what was loaded with this lease."""
        lane, sink = self.lease.lane, self.lease.sink
        if not self._holds():
            raise LeaseInDoubt(f"the lease of lane {lane} of sink {sink!r} could not be renewed in time")
        if loaded.epoch != self.lease.epoch:
            raise LeaseInDoubt(f"lane {lane} of sink {sink!r} was taken anew")

    async def decided(self, stopping: asyncio.Event) -> None:
        """Wait until a wave may begin, or the lane is lost, or is to stop anyway."""
        while not (self._holds() or self.lost or stopping.is_set()):
            await self._clock.wait(stopping, DOUBT_SECONDS)

    def leave(self) -> None:
        """Let the lane end after the page under way."""
        self.leaving = True
        self.stop()

    def lose(self) -> None:
        """Let the lane end: it is another's."""
        self.lost = True
        self.stop()

    def _holds(self) -> bool:
        return not self.lost and self._clock.now() < self.until
