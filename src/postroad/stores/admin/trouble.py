"""Failures in groups: deferred messages with an error, by sink and by the pattern of the error.

Of each sink and state the newest MOST_GROUPED messages are read; where there are more, the numbers are lower bounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from postroad.lifecycle import State
from postroad.stores.admin.contract import Count, TroubleGroup
from postroad.stores.admin.error_patterns import normalise_error
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.session import from_microseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroad.stores.admin.session import Query

__all__ = ["trouble_groups"]

MOST_GROUPED: Final = 500
"""So many messages of each sink and state are read."""
EXAMPLES: Final = 5
"""So many of the newest messages of a group are named."""
LOOKED_UP: Final = 20
"""The types of a group are those of so many of its newest messages."""
STATES: Final = (State.RETRYING, State.SENDING, State.HELD, State.DEAD)


class _Failure(NamedTuple):
    """A row of the query `trouble`."""

    sink: str
    state: str
    position: int
    error: str
    first: int
    last: int


async def trouble_groups(query: Query, sink: str | None, limit: int) -> Sequence[TroubleGroup]:
    sinks = await check_sink(query, sink)
    groups: dict[tuple[str, str], list[_Failure]] = defaultdict(list)
    cut: set[tuple[str, str]] = set()
    patterns: dict[str, str] = {}
    for name in sinks if sink is None else [sink]:
        for state in STATES:
            rows = await query("trouble", name, state.value, MOST_GROUPED)
            if len(rows) == MOST_GROUPED:
                cut.add((name, state.value))
            for row in rows:
                failure = _Failure(name, state.value, *row)
                if failure.error not in patterns:
                    patterns[failure.error] = normalise_error(failure.error)
                groups[name, patterns[failure.error]].append(failure)
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:limit]
    found = [(pattern, sorted(rows, key=_newest_first)) for (_, pattern), rows in largest]
    messages = await _messages(query, [row.position for _, rows in found for row in rows[:LOOKED_UP]])
    return [_group(pattern, rows, cut, messages) for pattern, rows in found]


async def _messages(query: Query, positions: Sequence[int]) -> Mapping[int, tuple[UUID, str]]:
    rows = await query("trouble_messages", sorted(set(positions))) if positions else ()
    return {position: (id if isinstance(id, UUID) else UUID(id), type) for position, id, type in rows}


def _group(
    pattern: str, rows: Sequence[_Failure], cut: set[tuple[str, str]], messages: Mapping[int, tuple[UUID, str]]
) -> TroubleGroup:
    """One group. `rows` are its messages, newest first."""
    states = Counter(row.state for row in rows)
    known = [messages[row.position] for row in rows[:LOOKED_UP] if row.position in messages]
    return TroubleGroup(
        sink=rows[0].sink,
        pattern=pattern,
        example=rows[0].error,
        count=Count(len(rows), exact=not any(name == rows[0].sink for name, _ in cut)),
        states={State(state): number for state, number in sorted(states.items())},
        types=sorted({type for _, type in known}),
        first_at=from_microseconds(min(row.first for row in rows)),
        last_at=from_microseconds(max(row.last for row in rows)),
        ids=[id for id, _ in known[:EXAMPLES]],
    )


def _newest_first(row: _Failure) -> Any:
    return -row.last, -row.position
