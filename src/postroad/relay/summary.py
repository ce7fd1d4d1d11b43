"""What a relay did, in numbers and in a sentence. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from postroad.relay.progress import Counts
from postroad.relay.refusals import FEW_ROUTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.relay.lane import Lane

__all__ = ["Summary", "Totals"]


class Summary(msgspec.Struct, frozen=True):
    """What a relay did."""

    published: int
    pages: int
    seconds: float
    refused: int
    """Attempts that failed. Those messages are retried, or dead."""
    died: int
    """Messages that are not retried any more: an operator must decide about them."""
    lanes_lost: int
    """Lanes that another relay took."""
    lanes_with_deferred: int = 0
    """Lanes with messages that wait for their next attempt, a route, an operator, or an earlier one of their key."""
    skipped: int = 0
    """Not published, because an operator had skipped or poisoned them."""
    dropped: int = 0
    """Dropped, because no consumer has subscribed to them, and unroutable = "drop"."""
    blocked_routes: Sequence[str] = ()
    """Routes that messages wait for."""

    def __str__(self) -> str:
        rate = f" ({self.published / self.seconds:,.0f}/s)" if self.seconds > 0 and self.published else ""
        text = f"{self.published:,} published"
        text += f", {_count(self.refused, 'attempt')} failed" if self.refused else ""
        text += f", {self.died:,} dead" if self.died else ""
        text += f", {self.skipped:,} skipped" if self.skipped else ""
        text += f", {self.dropped:,} dropped" if self.dropped else ""
        text += f" in {self.seconds:.2f} s{rate}"
        if self.dropped:
            text += "; no consumer has subscribed to what was dropped"
        if self.lanes_lost:
            text += f"; another relay took {_count(self.lanes_lost, 'lane')}"
        if self.lanes_with_deferred:
            lanes = _count(self.lanes_with_deferred, "lane")
            text += f"; messages of {lanes} are deferred, see `postroad messages --state held` (or retrying, dead)"
        if self.blocked_routes:
            some = ", ".join(repr(route) for route in self.blocked_routes[:FEW_ROUTES])
            text += f"; {_count(len(self.blocked_routes), 'blocked route')}: {some}"
        return text


class Totals(msgspec.Struct):
    """The sums over all lanes that a relay has run."""

    counts: Counts = msgspec.field(default_factory=Counts)
    by_lane: dict[int, Counts] = msgspec.field(default_factory=dict)
    """The same for each lane, by its number."""
    refusal_causes: Counter[str] = msgspec.field(default_factory=Counter)
    lanes_lost: int = 0
    lanes_with_deferred: int = 0
    blocked_routes: set[str] = msgspec.field(default_factory=set)

    def add(self, lane: Lane) -> None:
        """Add a lane that has ended."""
        self.counts.add(lane.counts)
        self.by_lane.setdefault(lane.number, Counts()).add(lane.counts)
        self.refusal_causes.update(lane.refusal_causes)
        self.lanes_lost += lane.lost
        self.lanes_with_deferred += lane.has_deferred
        self.blocked_routes |= set(lane.blocked_routes)

    def summary(self, seconds: float) -> Summary:
        """The summary of a relay that ran for so long."""
        counts = msgspec.structs.asdict(self.counts)
        return Summary(
            seconds=seconds,
            lanes_lost=self.lanes_lost,
            lanes_with_deferred=self.lanes_with_deferred,
            blocked_routes=sorted(self.blocked_routes),
            **counts,
        )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
