"""Everything at a glance, put together from a few queries that each look at little."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.lifecycle import BLOCKING, State
from postroad.stores.operating import MINUTES, Count, HeldKey, LaneReport, SinkReport, StatusReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.stores.asking import Ask

__all__ = ["status_report"]

WALK: Final = 5_000
"""So many rows ahead of a lane are counted."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Place = tuple[str, int]
"""A sink and a lane."""


async def status_report(ask: Ask) -> StatusReport:
    """Ask, and put the answers together."""
    ((scheduled, due_at, at),) = await ask("scheduled_report", WALK)
    lanes = await ask("lane_reports", WALK)
    about = {sink: (to, _datetime(served), relays) for sink, to, served, relays, _ in await ask("sink_reports")}
    unknown = (None, _datetime(at), 0)  # it was removed, or created, between two of these questions
    troubles: dict[Place, dict[State, tuple[int, float]]] = defaultdict(dict)
    unroutable: dict[Place, int] = {}
    for sink, lane, state, number, age, routed in await ask("trouble_reports"):
        troubles[sink, lane][State(state)] = (number, age or 0.0)
        if state == State.DROPPED:
            unroutable[sink, lane] = routed
    minutes: dict[Place, dict[int, tuple[int, int]]] = defaultdict(dict)
    for sink, lane, ago, published, refused in await ask("throughput", MINUTES):
        minutes[sink, lane][ago] = (published, refused)
    held = [HeldKey(sink, key, _datetime(at), who, why) for sink, key, at, who, why in await ask("held_keys", None)]
    reports: dict[str, list[LaneReport]] = defaultdict(list)
    for row in lanes:
        place = (row[0], row[1])
        reports[row[0]].append(_lane_report(row, troubles[place], minutes[place], unroutable.get(place, 0)))
    return StatusReport(
        at=_datetime(at),
        sinks=[
            SinkReport(
                sink=sink,
                destination=about.get(sink, unknown)[0],
                served_at=about.get(sink, unknown)[1],
                relays=about.get(sink, unknown)[2],
                lanes=reports_of_sink,
                published_per_minute=_per_minute(sink, minutes),
                held_keys=[each for each in held if each.sink == sink],
            )
            for sink, reports_of_sink in reports.items()
        ],
        scheduled=Count(scheduled, exact=scheduled < WALK),
        next_scheduled_at=None if due_at is None else _datetime(due_at),
    )


def _lane_report(
    row: Sequence[Any],
    troubles: Mapping[State, tuple[int, float]],
    minutes: Mapping[int, tuple[int, int]],
    unroutable: int,
) -> LaneReport:
    _, lane, position, owner, paused, seen, mine, through, log_end, late_seen, late_mine, lag = row
    unsent = [age for state, (_, age) in troubles.items() if state in BLOCKING]

    def number(*states: State) -> int:
        return sum(troubles.get(state, (0, 0.0))[0] for state in states)

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
    """What lies behind the end of the walk is taken to be like what was seen of it."""
    return Count(round(mine / walked * of) + late, exact=False)


def _per_minute(sink: str, minutes: Mapping[Place, Mapping[int, tuple[int, int]]]) -> list[int]:
    lanes = [numbers for (name, _), numbers in minutes.items() if name == sink]
    return [sum(numbers.get(ago, (0, 0))[0] for numbers in lanes) for ago in reversed(range(MINUTES))]


def _datetime(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
