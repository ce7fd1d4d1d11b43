"""What a relay knows about itself adds lanes that have ended to those that run."""

from __future__ import annotations

from postroad.relay.progress import Counts
from postroad.relay.stats import counted
from postroad.relay.summary import Totals


class SomeLane:
    """What the sums need of a lane."""

    def __init__(self, number: int, counts: Counts) -> None:
        self.number = number
        self.counts = counts
        self.lost = True
        self.has_deferred = False
        self.refusal_causes = {"route": 2}
        self.blocked_routes = frozenset({f"r{number}", "both"})


def test_lanes_are_added_up_by_number() -> None:
    totals = Totals()
    ended = SomeLane(1, Counts(published=10, pages=1))
    totals.add(ended)  # type: ignore[arg-type]
    running = [SomeLane(1, Counts(published=5, pages=1)), SomeLane(2, Counts(published=7, died=1))]
    for _ in range(2):  # reading changes nothing
        found = counted(totals, running)  # type: ignore[arg-type]
        assert found.by_lane == {1: Counts(published=15, pages=2), 2: Counts(published=7, died=1)}
        assert (found.refusal_causes, found.lanes_lost, found.routes_blocked) == ({"route": 6}, 3, 3)
