"""What a database says about itself in numbers, for metrics. Every query reads a bounded number of rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from postroad.lifecycle import BLOCKING, State
from postroad.stores.admin.contract import DatabaseNumbers, LaneNumbers, SinkNumbers
from postroad.stores.admin.status import pending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.stores.admin.session import Query
    from postroad.stores.leases import RelayStatus

__all__ = ["database_numbers"]

WALK: Final = 1_000
"""How many rows ahead of each lane are read; where there are more, the number of pending messages is an estimate."""
MOST_DEFERRED: Final = 10_000
"""So many deferred messages of each sink and state are counted. The first is found in any case, and its age."""
MOST_SCHEDULED: Final = 10_000
DEFERRED_STATES: Final = (State.RETRYING, State.SENDING, State.HELD, State.DEAD)
RELAY_STATES: Final = ("active", "standby", "dead")

_Deferred = dict[State, tuple[int, float]]


async def database_numbers(query: Query, relays: Sequence[RelayStatus]) -> DatabaseNumbers:
    ((position, oldest),) = await query("log_numbers")
    ((scheduled, due_at, at),) = await query("scheduled_report", MOST_SCHEDULED)
    lanes = await query("lane_reports", WALK)
    deferred: dict[str, _Deferred] = defaultdict(dict)
    for sink, state, number, age in await query("deferred_numbers", MOST_DEFERRED):
        deferred[sink][State(state)] = (number, age or 0.0)
    held = {row[0]: row[1] for row in await query("hold_numbers")}
    states = Counter((relay.sink, relay.state) for relay in relays)
    of_sink: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for row in lanes:
        of_sink[row[0]].append(row)
    return DatabaseNumbers(
        sinks=[
            _sink(
                sink,
                rows,
                deferred[sink],
                held_keys=held.get(sink, 0),
                relays={state: states[sink, state] for state in RELAY_STATES},
            )
            for sink, rows in of_sink.items()
        ],
        log_position=position,
        oldest_row_seconds=max(0.0, oldest),
        scheduled=scheduled,
        overdue_seconds=0.0 if due_at is None else max(0.0, (at - due_at) / 1e6),
        table_bytes={row[0]: row[1] for row in await query("table_bytes")},
    )


def _sink(
    sink: str, rows: Sequence[Sequence[Any]], deferred: _Deferred, *, held_keys: int, relays: Mapping[str, int]
) -> SinkNumbers:
    lanes = [LaneNumbers(row[1], pending(row, WALK).number, max(0.0, row[-1] or 0.0)) for row in rows]
    unsent = [age for state, (_, age) in deferred.items() if state in BLOCKING]
    return SinkNumbers(
        sink=sink,
        lanes=lanes,
        oldest_unsent_seconds=max(0.0, *(lane.lag_seconds for lane in lanes), *unsent),
        paused=any(row[4] for row in rows),
        held_keys=held_keys,
        deferred={state: deferred.get(state, (0, 0.0))[0] for state in DEFERRED_STATES},
        relays=relays,
    )
