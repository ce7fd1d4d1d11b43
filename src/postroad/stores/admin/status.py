"""The status report, assembled from a few queries that each read a bounded number of rows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.lifecycle import BLOCKING, State
from postroad.sink_filter import EVERYTHING, SinkFilter
from postroad.stores.admin.consumers import consumer_reports
from postroad.stores.admin.contract import (
    MINUTES,
    BlockedRoutes,
    Count,
    FollowedSlot,
    HeldKey,
    LaneReport,
    Pause,
    SinkReport,
    StatusReport,
)
from postroad.stores.admin.session import from_microseconds
from postroad.stores.admin.slots import followed_slots
from postroad.stores.replication import slot_of_destination

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from postroad.stores.admin.session import Query

__all__ = ["held_keys", "pending", "status_report"]

WALK: Final = 5_000
"""How many rows ahead of a lane are counted exactly."""

_FAILING: Final = {State.SENDING: State.RETRYING}
"""A message that is being sent again counts as failing."""

LaneId = tuple[str, int]
"""A sink and a lane of it."""

_Lease = tuple[int, float | None, float | None]
"""A lane's epoch, for how many seconds it is leased, and for how many it naps."""
_NO_LEASE: _Lease = (0, None, None)


async def status_report(query: Query) -> StatusReport:
    ((scheduled, due_at, at),) = await query("scheduled_report", WALK)
    lanes = await query("lane_reports", WALK)
    sinks = {
        sink: (to, from_microseconds(at), relays, SinkFilter.of_text(filter))
        for sink, to, filter, at, relays, _ in await query("sink_reports")
    }
    unknown = (
        None,
        from_microseconds(at),
        0,
        EVERYTHING,
    )  # the sink was removed, or created, between two of these queries
    deferred: dict[LaneId, dict[State, tuple[int, float]]] = defaultdict(dict)
    unroutable: dict[LaneId, int] = {}
    since: dict[tuple[str, State], datetime] = {}
    waits_for_route = False
    for sink, lane, state, number, age, routed, first in await query("deferred_reports"):
        deferred[sink, lane][State(state)] = (number, age or 0.0)
        if state == State.DROPPED:
            unroutable[sink, lane] = routed
        else:
            waits_for_route = waits_for_route or routed > 0
        place, began = (sink, _FAILING.get(State(state), State(state))), from_microseconds(first)
        since[place] = min(began, since.get(place, began))
    minutes: dict[LaneId, dict[int, tuple[int, int]]] = defaultdict(dict)
    for sink, lane, ago, published, refused in await query("throughput", MINUTES):
        minutes[sink, lane][ago] = (published, refused)
    leases = {(sink, lane): (epoch, lease, nap) for sink, lane, epoch, lease, nap in await query("lane_leases")}
    held = await held_keys(query, None)
    pauses = {sink: Pause(from_microseconds(began), who, reason) for sink, began, who, reason in await query("pauses")}
    blocked = await _blocked_routes(query) if waits_for_route else {}
    slots = await followed_slots(query)
    copies = {sink: (number, from_microseconds(first)) for sink, number, first in await query("waiting_copies")}
    reports: dict[str, list[LaneReport]] = defaultdict(list)
    for row in lanes:
        id = (row[0], row[1])
        reports[row[0]].append(
            _lane_report(row, deferred[id], minutes[id], unroutable.get(id, 0), leases.get(id, _NO_LEASE))
        )
    return StatusReport(
        at=from_microseconds(at),
        sinks=[
            SinkReport(
                sink=sink,
                destination=sinks.get(sink, unknown)[0],
                served_at=sinks.get(sink, unknown)[1],
                relays=sinks.get(sink, unknown)[2],
                filter=sinks.get(sink, unknown)[3],
                lanes=reports_of_sink,
                published_per_minute=_per_minute(sink, minutes),
                held_keys=[each for each in held if each.sink == sink],
                pause=pauses.get(sink),
                slot=slots.get(sink) or _unseen_slot(sinks.get(sink, unknown)[0]),
                blocked=blocked.get(sink),
                failing_since=since.get((sink, State.RETRYING)),
                dead_since=since.get((sink, State.DEAD)),
                copies=copies.get(sink, (0, None))[0],
                copies_since=copies.get(sink, (0, None))[1],
            )
            for sink, reports_of_sink in reports.items()
        ],
        scheduled=Count(scheduled, exact=scheduled < WALK),
        next_scheduled_at=None if due_at is None else from_microseconds(due_at),
        consumers=await consumer_reports(query, from_microseconds(at)),
    )


def _unseen_slot(destination: str | None) -> FollowedSlot | None:
    """The slot of a sink that has never seen it."""
    name = slot_of_destination(destination)
    return None if name is None else FollowedSlot(name=name)


async def _blocked_routes(query: Query) -> Mapping[str, BlockedRoutes]:
    return {
        sink: BlockedRoutes(number, route, from_microseconds(since))
        for sink, number, route, since in await query("blocked_routes")
    }


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
    lease: _Lease,
) -> LaneReport:
    _, lane, position, owner, paused, *_, lag = row
    unsent = [age for state, (_, age) in deferred.items() if state in BLOCKING]

    def number(*states: State) -> int:
        return sum(deferred.get(state, (0, 0.0))[0] for state in states)

    return LaneReport(
        lane=lane,
        position=position,
        pending=pending(row, WALK),
        lag_seconds=max(0.0, lag or 0.0),
        oldest_unsent_seconds=max(0.0, lag or 0.0, *unsent),
        failing=number(State.RETRYING, State.SENDING),
        held=number(State.HELD),
        dead=number(State.DEAD),
        unroutable=unroutable,
        paused=bool(paused),
        owner=UUID(str(owner)) if owner else None,
        epoch=lease[0],
        lease_seconds=lease[1],
        nap_seconds=None if lease[1] is None else lease[2],
        gap=max(0, row[8] - position),
        published_last_hour=sum(published for published, _ in minutes.values()),
        refused_last_hour=sum(refused for _, refused in minutes.values()),
    )


def pending(row: Sequence[Any], walk: int) -> Count:
    """How many messages a lane has not processed, from its row of `lane_reports`, for which `walk` rows were read.

    Where there are more, it is an estimate: the rows after the walk are assumed to belong to this lane as often as
    those in it.
    """
    _, _, position, _, _, seen, mine, through, log_end, late_seen, late_mine, _ = row
    if seen < walk:
        return Count(mine + late_mine, exact=late_seen < walk)
    return Count(round(mine / (through - position) * (log_end - position)) + late_mine, exact=False)


def _per_minute(sink: str, minutes: Mapping[LaneId, Mapping[int, tuple[int, int]]]) -> list[int]:
    lanes = [numbers for (name, _), numbers in minutes.items() if name == sink]
    return [sum(numbers.get(ago, (0, 0))[0] for numbers in lanes) for ago in reversed(range(MINUTES))]
