"""When a relay's next heartbeat is due, and until when its leases count. Pure: no I/O, no clock, no event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.relay.plan import EAGER_SECONDS

if TYPE_CHECKING:
    from postroad.stores.leases import SinkSnapshot

__all__ = ["HEARTBEATS_PER_LEASE", "LATE_FACTOR", "MARGIN", "HeartbeatSchedule"]

HEARTBEATS_PER_LEASE: Final = 3
MARGIN: Final = 0.2
"""The part of a lease that is kept for a wave that has begun."""
LATE_FACTOR: Final = 1.2
"""How late the heartbeat of a tick may be, as a factor, before the relay sends one by itself."""


class HeartbeatSchedule:
    """The heartbeats of one relay. Times are those of the relay's own clock."""

    def __init__(self, lease: float, *, tick: float | None) -> None:
        """`lease`: the length of a lease; `tick`: how often a tick sends a heartbeat along; both in seconds."""
        self.interval = lease / HEARTBEATS_PER_LEASE
        self._lease = lease
        carried = tick is not None and tick <= self.interval
        self._latest = self.interval * (LATE_FACTOR if carried else 1)
        self._sent_at = float("-inf")
        """When the last heartbeat that was answered was sent."""

    def is_due(self, now: float) -> bool:
        """Whether the next statement should be a heartbeat, and not only an inspection."""
        return now >= self._sent_at + self.interval

    def wait_seconds(self, now: float) -> float:
        """How long to wait before sending a heartbeat, if no tick has sent one by then."""
        return max(EAGER_SECONDS, self._sent_at + self._latest - now)

    def answered(self, snapshot: SinkSnapshot, sent_at: float) -> None:
        """A heartbeat was answered. If it has skipped a lane that was locked, the next one is due at once."""
        self._sent_at = sent_at if len(snapshot.renewed) == len(snapshot.mine) else float("-inf")

    def lease_end(self, sent_at: float) -> float:
        """When no wave may begin any more by a lease that was taken or renewed by a statement sent at this time. The
        database counts from when it got the statement, which is later.
        """
        return sent_at + self._lease * (1 - MARGIN)
