"""A lane that this relay owns, and its lease. No wave begins in the last fifth of the lease
(`heartbeats.MARGIN`); one that has begun is not cut short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError

if TYPE_CHECKING:
    import asyncio

    from postroad.relay.clock import Clock
    from postroad.stores.base import Lease

__all__ = ["LeaseInDoubt", "OwnedLane"]

DOUBT_SECONDS: Final = 0.05
"""How often a lane whose lease is in doubt checks again."""


class LeaseInDoubt(PostroadError):
    """The last fifth of the lease has begun without a renewal, or the lane was reclaimed: no wave may begin."""


class OwnedLane:
    """The one copy of a lane's lease, shared by the lane, which works by it, and `LaneOwnership`, which renews it.

    The lane loads with `load_lease`, assigns to `lease` what its own writes return, calls `check` before each wave, and
    `wait_until_decided` when that raises. Everything else is for `LaneOwnership`.
    """

    def __init__(self, lease: Lease, valid_until: float, clock: Clock) -> None:
        self.lease = lease
        """As the lane loaded it, or last wrote it."""
        self.valid_until = valid_until
        """From when on, by the relay's own clock, no wave begins."""
        self.lost = False
        """Another relay owns the lane."""
        self.releasing = False
        """The lane was told to end after the page in progress, so that another relay can take it."""
        self.ended = False
        """The lane does not run any more."""
        self._reclaimed: Lease | None = None
        """The relay has taken the lane again since it was loaded."""
        self._clock = clock

    # -- for the lane ------------------------------------------------------------------------------------------------

    def load_lease(self) -> Lease:
        """The lease to load the lane with: as it was taken last."""
        if self._reclaimed is not None:
            self.lease, self._reclaimed = self._reclaimed, None
        return self.lease

    def check(self) -> None:
        """Raise LeaseInDoubt unless a wave may begin."""
        lane, sink = self.lease.lane, self.lease.sink
        if not self._is_valid():
            raise LeaseInDoubt(f"the lease of lane {lane} of sink {sink!r} could not be renewed in time")
        if self._reclaimed is not None:
            raise LeaseInDoubt(f"lane {lane} of sink {sink!r} was reclaimed; it must be loaded again")

    async def wait_until_decided(self, stopping: asyncio.Event) -> None:
        """Wait until the lease is valid again, the lane is lost, or `stopping` is set."""
        while not (self._is_valid() or self.lost or stopping.is_set()):
            await self._clock.wait(stopping, DOUBT_SECONDS)

    def lose(self) -> bool:
        """A store raised LeaseLost for `lease`. Returns False, and the lane is not lost, when this relay has reclaimed
        it meanwhile: then the lane loads it again.
        """
        self.lost = self.lost or self._reclaimed is None
        return self.lost

    # -- for LaneOwnership -------------------------------------------------------------------------------------------

    @property
    def latest(self) -> Lease:
        """The lease with the epoch in which the relay owns the lane, whether the lane was loaded with it or not."""
        return self._reclaimed or self.lease

    @property
    def kept(self) -> bool:
        """The relay owns the lane, and is not releasing it."""
        return not (self.lost or self.releasing)

    def reclaim(self, lease: Lease, valid_until: float) -> None:
        """The relay has taken the lane again, with a new epoch. The lane finds out before its next wave."""
        self._reclaimed, self.valid_until = lease, valid_until

    def _is_valid(self) -> bool:
        return not self.lost and self._clock.now() < self.valid_until
