"""What a relay counts and knows, read at one moment: for metrics and probes. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import msgspec

from postroad.relay.progress import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroad.relay.breaker import Breaker
    from postroad.relay.lane import Lane
    from postroad.relay.summary import Totals

__all__ = ["Phase", "RelayStats", "counted", "knows_broker"]

Phase = Literal["starting", "running", "draining", "ended", "failed"]


class RelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """A relay at one moment. Counts are since it was started."""

    sink: str
    phase: Phase
    """starting: the database was not reached yet. draining: it is being stopped. failed: it has ended with an error."""
    by_lane: Mapping[int, Counts]
    """Of every lane that it has run, by the lane's number."""
    refusal_causes: Mapping[str, int]
    lanes_lost: int
    lanes: int
    """How many lanes it owns."""
    broker_up: bool
    listening: bool | None
    """None: wakeup is off, or the relay does not run."""
    routes_blocked: int
    lease_remaining: float | None
    """Seconds until the first lease may end; None without a lane."""


class Counted(msgspec.Struct, frozen=True):
    """The sums over the lanes that a relay has run and those that it runs."""

    by_lane: Mapping[int, Counts]
    refusal_causes: Mapping[str, int]
    lanes_lost: int
    routes_blocked: int


def counted(totals: Totals, lanes: Iterable[Lane]) -> Counted:
    """Add the lanes that run to the totals of those that have ended. May be called from any thread."""
    by_lane = {number: msgspec.structs.replace(counts) for number, counts in list(totals.by_lane.items())}
    causes, lost, routes = Counter(totals.refusal_causes), totals.lanes_lost, set[str]()
    for lane in list(lanes):
        by_lane.setdefault(lane.number, Counts()).add(lane.counts)
        causes.update(dict(lane.refusal_causes))
        lost += lane.lost
        routes.update(list(lane.blocked_routes))
    return Counted(by_lane, causes, lost, len(routes))


def knows_broker(breaker: Breaker, by_lane: Mapping[int, Counts]) -> bool:
    """Whether the destination is available, as far as is known: it was reached, and no outage has begun since."""
    return not breaker.is_open and (breaker.was_reached or any(counts.published for counts in by_lane.values()))
