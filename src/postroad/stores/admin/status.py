"""The status report, assembled from a few queries that each read a bounded number of rows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.lifecycle import BLOCKING, State
from postroad.stores.admin.contract import MINUTES, Count, HeldKey, LaneReport, SinkReport, StatusReport
from postroad.stores.admin.session import from_microseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.stores.admin.session import Query

__all__ = ["held_keys", "status_report"]

WALK: Final = 5_000
"""How many rows ahead of a lane are counted exactly."""

LaneId = tuple[str, int]
"""A sink and a lane of it."""


async def status_report(query: Query) -> StatusReport:
    ((scheduled, due_at, at),) = await query("scheduled_report", WALK)
    lanes = await query("lane_reports", WALK)
    sinks = {sink: (to, from_microseconds(at), relays) for sink, to, at, relays, _ in await query("sink_reports")}
    unknown = (None, from_microseconds(at), 0)  # the sink was removed, or created, between two of these queries
    deferred: dict[LaneId, dict[State, tuple[int, float]]] = defaultdict(dict)
    unroutable: dict[LaneId, int] = {}
    for sink, lane, state, number, age, routed in await query("deferred_reports"):
        deferred[sink, lane][State(state)] = (number, age or 0.0)
        if state == State.DROPPED:
            unroutable[sink, lane] = routed
    minutes: dict[LaneId, dict[int, tuple[int, int]]] = defaultdict(dict)
    for sink, lane, ago, published, refused in await query("throughput", MINUTES):
        minutes[sink, lane][ago] = (published, refused)
    held = await held_keys(query, None)
    reports: dict[str, list[LaneReport]] = defaultdict(list)
    for row in lanes:
        id = (row[0], row[1])
        reports[row[0]].append(_lane_report(row, deferred[id], minutes[id], unroutable.get(id, 0)))
    return StatusReport(
        at=from_microseconds(at),
        sinks=[
            SinkReport(
                sink=sink,
                destination=sinks.get(sink, unknown)[0],
                served_at=sinks.get(sink, unknown)[1],
                relays=sinks.get(sink, unknown)[2],
                lanes=reports_of_sink,
                published_per_minute=_per_minute(sink, minutes),
                held_keys=[each for each in held if each.sink == sink],
            )
            for sink, reports_of_sink in reports.items()
        ],
        scheduled=Count(scheduled, exact=scheduled < WALK),
        next_scheduled_at=None if due_at is None else from_microseconds(due_at),
    )


async def held_keys(query: Query, sink: str | None) -> Sequence[HeldKey]:
    return [
        HeldKey(name, key, from_microseconds(since), who, reason)
        for name, key, since, who, reason in await query("held_keys", sink)
    ]


def _lane_report(
    row: Sequence[Any],
    deferred: Mapping[State, tuple[int, float]],
    minutes: Mapping[int, tuple[int, int]],
    unroutable: int,
) -> LaneReport:
    _, lane, position, owner, paused, seen, mine, through, log_end, late_seen, late_mine, lag = row
    unsent = [age for state, (_, age) in deferred.items() if state in BLOCKING]

    def number(*states: State) -> int:
        return sum(deferred.get(state, (0, 0.0))[0] for state in states)

    return LaneReport(
        lane=lane,
        position=position,
        pending=_pending(mine, late_mine, walked=through - position, of=log_end - position)
        if seen == WALK
        else Count(mine + late_mine, exact=late_seen < WALK),
        lag_seconds=max(0.0, lag or 0.0),
        oldest_unsent_seconds=max(0.0, lag or 0.0, *unsent),
        failing=number(State.RETRYING, State.SENDING),
        held=number(State.HELD),
        dead=number(State.DEAD),
        unroutable=unroutable,
        paused=bool(paused),
        owner=UUID(str(owner)) if owner else None,
        published_last_hour=sum(published for published, _ in minutes.values()),
        refused_last_hour=sum(refused for _, refused in minutes.values()),
    )


def _pending(mine: int, late: int, *, walked: int, of: int) -> Count:
    """Estimate: the rows after the walk are assumed to belong to this lane as often as those in it."""
    return Count(round(mine / walked * of) + late, exact=False)


def _per_minute(sink: str, minutes: Mapping[LaneId, Mapping[int, tuple[int, int]]]) -> list[int]:
    lanes = [numbers for (name, _), numbers in minutes.items() if name == sink]
    return [sum(numbers.get(ago, (0, 0))[0] for numbers in lanes) for ago in reversed(range(MINUTES))]
