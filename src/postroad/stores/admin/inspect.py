"""Queries about messages. They change nothing and never scan the whole log: see `SCAN_LIMIT`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from postroad.lifecycle import FINAL, STORED, State
from postroad.stores.admin.contract import (
    AuditEntry,
    AuditFilter,
    Count,
    FailedAttempt,
    Filter,
    MessageAtSink,
    MessageHistory,
    MessagePage,
    MessageRow,
)
from postroad.stores.admin.error_patterns import normalise_error
from postroad.stores.admin.session import from_microseconds, to_microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.admin.session import Query

__all__ = [
    "NEWEST",
    "SCAN_LIMIT",
    "audit_entries",
    "count_messages",
    "deferred_values",
    "end_of_log",
    "estimate",
    "find_deferred",
    "find_ids",
    "has_pattern",
    "headers_of",
    "list_messages",
    "message_history",
    "rows_at",
    "rows_by_id",
    "waiting_of_key",
]

SCAN_LIMIT: Final = 10_000
"""At most this many rows of the log are read for a question that no index answers."""

SAMPLE: Final = 5_000
"""At most this many deferred messages are looked up in the log, if the filter needs fields that only the log has."""

NEWEST: Final = 1000
"""A key is searched for among this many of the newest messages."""

AUDIT_SEARCHED: Final = 20_000
"""A filter of the audit is applied to this many lines."""

_LAST_POSITION: Final = 2**63 - 1


# -- one message -----------------------------------------------------------------------------------------------------


async def message_history(query: Query, id: UUID, payload_bytes: int) -> MessageHistory | None:
    """Everything about a message. None if it does not exist (any more)."""
    found = await query("message", id) or await query("scheduled_message", id)
    if not found:
        return None
    position, type, topic, key, content_type, headers, created_at, deliver_at = found[0]
    payload, size = await _payload(query, id, payload_bytes)
    return MessageHistory(
        id=id,
        position=position,
        type=type,
        topic=topic,
        key=key,
        content_type=content_type,
        headers=headers_of(headers),
        payload=payload,
        payload_size=size,
        created_at=from_microseconds(created_at),
        deliver_at=None if deliver_at is None else from_microseconds(deliver_at),
        sinks=[] if position is None else await _at_sinks(query, id, position),
        caused=[] if position is None else await _caused(query, id, position),
    )


async def _payload(query: Query, id: UUID, most: int) -> tuple[bytes, int | None]:
    """The beginning of the payload, and its size.

    If nothing of it was asked for and the role may not read payloads, neither is read, so that no error is raised.
    """
    ((may_read,),) = await query("may_read_payloads")
    if not most and not may_read:
        return b"", None
    rows = await query("payload", id, most)
    payload, size = rows[0] if rows else (b"", None)
    return bytes(payload or b""), size  # SQLite returns NULL for a part of an empty payload


async def _at_sinks(query: Query, id: UUID, position: int) -> list[MessageAtSink]:
    failures = await query("failures", position)
    return [
        MessageAtSink(
            row,
            [FailedAttempt(n, from_microseconds(at), error) for sink, n, at, error in failures if sink == row.sink],
        )
        for row in sorted(map(_row, await query("list_ids", [id], None)), key=lambda row: row.sink)
    ]


async def _caused(query: Query, id: UUID, position: int) -> list[tuple[UUID, str]]:
    return [(_uuid(other), type) for other, type, _ in await query("caused", position, str(id), SCAN_LIMIT)]


async def find_ids(query: Query, digits: str, limit: int) -> Sequence[UUID]:
    """Ids that begin with these hexadecimal digits, or end with them; the latter among the newest messages only."""
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    return [_uuid(id) for (id,) in await query("find_ids", first, last, digits, SCAN_LIMIT, limit)]


async def end_of_log(query: Query) -> int:
    """The position of the newest message in the log; 0 if the log is empty."""
    ((_, last, _, _),) = await query("log_ends", None)
    return last or 0


# -- many messages ---------------------------------------------------------------------------------------------------


async def list_messages(query: Query, which: Filter, limit: int, below: int | None) -> MessagePage:
    if which.ids:
        rows = [row for row in await rows_by_id(query, which) if below is None or row.position < below]
        return MessagePage(rows[:limit])
    if _only_deferred(which):
        return await _list_deferred(query, which, limit, _LAST_POSITION if below is None else below)
    return await _list_log(query, which, limit, below)


async def count_messages(query: Query, which: Filter) -> Count:
    if which.ids:
        return Count(len(await rows_by_id(query, which)))
    if _only_deferred(which):
        return await _count_deferred(query, which)
    return await _count_log(query, which)


async def rows_by_id(query: Query, which: Filter) -> list[MessageRow]:
    """The messages that a filter names by id, if its other fields match as well."""
    rows = map(_row, await query("list_ids", list(which.ids), which.sink))
    return [row for row in rows if _matches(row, which)]


async def rows_at(query: Query, sink: str, positions: Sequence[int]) -> list[MessageRow]:
    """The messages at these positions, at one sink."""
    return [_row(row) for row in await query("list_positions", list(positions), sink)] if positions else []


def _matches(row: MessageRow, which: Filter) -> bool:
    return (
        (which.state is None or row.state == which.state)
        and (which.key is None or row.key == which.key)
        and (which.type is None or row.type == which.type)
        and (which.topic is None or row.topic == which.topic)
        and (which.error is None or which.error.lower() in (row.error or "").lower())
        and has_pattern(row.error, which)
        and (which.since is None or row.created_at >= which.since)
        and (which.before is None or row.created_at < which.before)
    )


def _only_deferred(which: Filter) -> bool:
    """Whether only messages with a row in `deferred` can match."""
    return which.error is not None or which.error_pattern is not None or which.state in STORED


def has_pattern(error: str | None, which: Filter) -> bool:
    """Whether an error has the pattern that the filter asks for, if it asks for one."""
    return which.error_pattern is None or (error is not None and normalise_error(error) == which.error_pattern)


async def find_deferred(
    query: Query, which: Filter, states: Sequence[State], after: tuple[str, int], rows: int
) -> tuple[list[tuple[str, int]], tuple[str, int] | None]:
    """Sinks and positions of deferred messages that match, oldest first, among `rows` that match without the pattern.

    Also returns where to continue; None: that were all.
    """
    sink, position = after
    found = await query("find_deferred", *deferred_values(which, states), position, sink, rows)
    places = [(sink, position) for sink, position, error in found if has_pattern(error, which)]
    return places, (found[-1][0], found[-1][1]) if len(found) == rows else None


async def _list_deferred(query: Query, which: Filter, limit: int, below: int) -> MessagePage:
    if which.error_pattern is not None:
        found = [_row(row) for row in await query("list_deferred", *deferred_values(which), below, SAMPLE, SAMPLE)]
        rows = [row for row in found if has_pattern(row.error, which)]
        if len(rows) >= limit:
            return MessagePage(rows[:limit])
        ((seen, through),) = await query("look_back_deferred", *deferred_values(which)[:4], below, SAMPLE)
        return MessagePage(rows, through if seen == SAMPLE else None)
    bound = SAMPLE if _needs_log(which) else _LAST_POSITION
    rows = [_row(row) for row in await query("list_deferred", *deferred_values(which), below, bound, limit)]
    if len(rows) == limit or bound == _LAST_POSITION:
        return MessagePage(rows)
    ((seen, through),) = await query("look_back_deferred", *deferred_values(which)[:4], below, bound)
    return MessagePage(rows, through if seen == bound else None)


async def _count_deferred(query: Query, which: Filter) -> Count:
    if which.error_pattern is not None:
        places, more = await find_deferred(query, which, STORED, ("", 0), SCAN_LIMIT)
        return Count(len(places), exact=more is None)
    values = deferred_values(which)
    ((seen, matching),) = await query("count_deferred", *values, SAMPLE if _needs_log(which) else _LAST_POSITION)
    if seen < SAMPLE or not _needs_log(which):
        return Count(matching)
    ((total, _),) = await query("look_back_deferred", *values[:4], _LAST_POSITION, _LAST_POSITION)
    return Count(round(matching / seen * total), exact=seen == total)


async def _list_log(query: Query, which: Filter, limit: int, below: int | None) -> MessagePage:
    ((first, last, _, _),) = await query("log_ends", which.sink)
    if last is None:
        return MessagePage([])
    upto = last if below is None else below - 1
    ((_, lowest),) = await query("look_back", upto, SCAN_LIMIT)
    if lowest is None:
        return MessagePage([])
    name = "list_log" if await query("sinks") else "list_added"
    rows = [_row(row) for row in await query(name, lowest, upto, *_log_values(which), limit)]
    return MessagePage(rows, lowest if len(rows) < limit and lowest > first else None)


async def _count_log(query: Query, which: Filter) -> Count:
    ((first, last, behind, before),) = await query("log_ends", which.sink)
    if last is None:
        return Count(0)
    upto = min(last, before) if which.state is State.PUBLISHED else last
    ((seen, lowest),) = await query("look_back", upto, SCAN_LIMIT)
    if not seen:
        return Count(0)
    if await query("sinks"):
        ((matching,),) = await query("count_log", lowest, upto, *_log_values(which))
    else:
        matching = len(await query("list_added", lowest, upto, *_log_values(which), SCAN_LIMIT))
    down_to = max(first, behind + 1) if which.state is State.WAITING else first
    return estimate(matching, looked_at=upto - lowest + 1, of=upto - down_to + 1, exact=lowest <= first)


def estimate(matching: int, *, looked_at: int, of: int, exact: bool) -> Count:
    """Extrapolate the number of matches from the positions that were looked at to all positions."""
    return Count(matching) if exact else Count(max(matching, round(matching / looked_at * of)), exact=False)


async def waiting_of_key(query: Query, sink: str, key: str) -> int:
    """How many messages of a key are not published and not decided about, among its newest NEWEST messages."""
    found = await list_messages(query, Filter(sink=sink, key=key), NEWEST, below=None)
    return sum(row.state not in FINAL and row.state is not State.DEAD for row in found.messages)


# -- the audit -------------------------------------------------------------------------------------------------------


async def audit_entries(query: Query, limit: int, which: AuditFilter | None = None) -> Sequence[AuditEntry]:
    which = which or AuditFilter()
    wanted = (which.who, which.command, which.text, *_times(which), which.below, AUDIT_SEARCHED)
    return [
        AuditEntry(
            number=number,
            at=from_microseconds(at),
            who=who,
            role=role,
            command=command,
            arguments=msgspec.json.decode(arguments),
            reason=reason,
            changed=changed,
        )
        for number, at, who, role, command, arguments, reason, changed in await query("audit", limit, *wanted)
    ]


# -- parameters and rows of queries ----------------------------------------------------------------------------------


def _needs_log(which: Filter) -> bool:
    """Whether the filter has fields that a row of `deferred` does not have, but the row of the log does."""
    return not (which.type is None and which.topic is None and which.since is None and which.before is None)


def deferred_values(which: Filter, states: Sequence[State] = STORED) -> tuple[Any, ...]:
    """The parameters of the queries on deferred messages."""
    wanted = [state.value for state in states if which.state in {None, state}]
    return (which.sink, wanted, which.key, which.error, _needs_log(which), which.type, which.topic, *_times(which))


def _log_values(which: Filter) -> tuple[Any, ...]:
    states = None if which.state is None else [which.state.value]
    return (which.sink, states, which.key, which.type, which.topic, which.error, *_times(which))


def _times(which: Filter | AuditFilter) -> tuple[int | None, int | None]:
    return (
        None if which.since is None else to_microseconds(which.since),
        None if which.before is None else to_microseconds(which.before),
    )


def _row(row: Sequence[Any]) -> MessageRow:
    sink, lane, position, id, type, topic, key, state, attempts, error, route, created_at, next_at, published_at = row
    return MessageRow(
        sink=sink,
        lane=lane,
        position=position,
        id=_uuid(id),
        type=type,
        topic=topic,
        key=key,
        state=State(state),
        attempts=attempts,
        error=error,
        route=route,
        created_at=from_microseconds(created_at),
        next_attempt_at=None if next_at is None else from_microseconds(next_at),
        published_at=None if published_at is None else from_microseconds(published_at),
    )


def headers_of(text: str) -> dict[str, str]:
    """A message's headers; none if the stored text is not a JSON object of strings."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
