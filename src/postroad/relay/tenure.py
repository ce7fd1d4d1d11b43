"""What a lane knows of its lease, and how relays share lanes. No wave begins that the lease may not outlast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from postroad.relay.clock import Clock
    from postroad.stores.base import Lease
    from postroad.stores.leases import Peer

__all__ = ["LeaseInDoubt", "Tenure", "fair_share"]

DOUBT_SECONDS: Final = 0.05
"""How often a lane in doubt asks again."""


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


class Tenure:
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
