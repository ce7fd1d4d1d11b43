"""What people ask about a running system. Nothing here changes anything, and nothing here knows SQL.

Every way of looking (the command line today) asks these functions, so all of them give the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.base import LaneStatus, Store

__all__ = ["StatusReport", "Totals", "status"]


class Totals(msgspec.Struct, frozen=True):
    """All lanes together. A message that two sinks still have to send counts twice."""

    sinks: int
    lanes: int
    pending: int
    lag_seconds: float
    """The age of the oldest message that waits anywhere; 0 when none does."""


class StatusReport(msgspec.Struct, frozen=True):
    """How far every lane of every sink has come."""

    lanes: Sequence[LaneStatus]
    totals: Totals


async def status(store: Store) -> StatusReport:
    """Ask an open store how far its lanes have come."""
    lanes = await store.status()
    return StatusReport(lanes, _totals(lanes))


def _totals(lanes: Sequence[LaneStatus]) -> Totals:
    return Totals(
        sinks=len({lane.sink for lane in lanes}),
        lanes=len(lanes),
        pending=sum(lane.pending for lane in lanes),
        lag_seconds=max((lane.lag_seconds for lane in lanes), default=0.0),
    )
