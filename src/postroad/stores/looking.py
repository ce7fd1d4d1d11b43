"""What operators see. Nothing here changes anything, and nothing scans the log: see `LOOK`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from postroad.lifecycle import STORED, State
from postroad.stores.asking import Asking
from postroad.stores.operating import (
    LOOK,
    AuditEntry,
    Count,
    FailedAttempt,
    Found,
    HeldKey,
    MessageAtSink,
    MessageHistory,
    MessageRow,
)
from postroad.stores.reporting import status_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.stores.asking import Ask
    from postroad.stores.operating import Filter, StatusReport

__all__ = ["Looking", "as_datetime", "as_microseconds", "estimate"]

SAMPLE: Final = 5_000
"""Of so many messages in trouble the log is asked whether they match; if they say enough themselves, of none."""

_LAST: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Looking(Asking):
    """The first half of `Operating`."""

    async def sinks(self) -> Sequence[str]:
        async with self.session() as ask:
            return [sink for (sink,) in await ask("sinks")]

    async def status(self) -> StatusReport:
        async with self.session() as ask:
            return await status_report(ask)

    async def messages(self, which: Filter, limit: int = 100, *, below: int | None = None) -> Found:
        async with self.session() as ask:
            if which.ids:
                rows = [row for row in await rows_by_id(ask, which) if below is None or row.position < below]
                return Found(rows[:limit])
            if _is_in_trouble(which):
                return await self._in_trouble(ask, which, limit, _LAST if below is None else below)
            return await self._in_log(ask, which, limit, below)

    async def count(self, which: Filter) -> Count:
        async with self.session() as ask:
            if which.ids:
                return Count(len(await rows_by_id(ask, which)))
            if _is_in_trouble(which):
                return await self._count_trouble(ask, which)
            return await self._count_log(ask, which)

    async def message(self, id: UUID, *, payload_bytes: int = 65_536) -> MessageHistory | None:
        async with self.session() as ask:
            found = await ask("message", id) or await ask("scheduled_message", id)
            if not found:
                return None
            position, type, topic, key, content_type, headers, created_at, deliver_at = found[0]
            payload, size = await _payload(ask, id, payload_bytes)
            return MessageHistory(
                id=id,
                position=position,
                type=type,
                topic=topic,
                key=key,
                content_type=content_type,
                headers=_headers(headers),
                payload=payload,
                payload_size=size,
                created_at=as_datetime(created_at),
                deliver_at=None if deliver_at is None else as_datetime(deliver_at),
                sinks=[] if position is None else await self._at_sinks(ask, id, position),
                caused=[] if position is None else await self._caused(ask, id, position),
            )

    async def find_ids(self, digits: str, limit: int) -> Sequence[UUID]:
        first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        async with self.session() as ask:
            return [_uuid(id) for (id,) in await ask("find_ids", first, last, digits, LOOK, limit)]

    async def held_keys(self, sink: str | None = None) -> Sequence[HeldKey]:
        async with self.session() as ask:
            return [
                HeldKey(name, key, as_datetime(since), who, reason)
                for name, key, since, who, reason in await ask("held_keys", sink)
            ]

    async def audit(self, limit: int = 100) -> Sequence[AuditEntry]:
        async with self.session() as ask:
            return [
                AuditEntry(
                    number=number,
                    at=as_datetime(at),
                    who=who,
                    role=role,
                    command=command,
                    arguments=msgspec.json.decode(arguments),
                    reason=reason,
                    changed=changed,
                )
                for number, at, who, role, command, arguments, reason, changed in await ask("audit", limit)
            ]

    # -- one message -------------------------------------------------------------------------------------------------

    async def _at_sinks(self, ask: Ask, id: UUID, position: int) -> list[MessageAtSink]:
        failures = await ask("failures", position)
        return [
            MessageAtSink(
                row,
                [FailedAttempt(n, as_datetime(at), error) for sink, n, at, error in failures if sink == row.sink],
            )
            for row in sorted(map(_row, await ask("list_ids", [id], None)), key=lambda row: row.sink)
        ]

    async def _caused(self, ask: Ask, id: UUID, position: int) -> list[tuple[UUID, str]]:
        return [(_uuid(other), type) for other, type in await ask("caused", position, str(id), LOOK)]

    # -- many messages -----------------------------------------------------------------------------------------------

    async def _in_trouble(self, ask: Ask, which: Filter, limit: int, below: int) -> Found:
        bound = SAMPLE if asks_log(which) else _LAST
        rows = [_row(row) for row in await ask("list_trouble", *trouble_values(which), below, bound, limit)]
        if len(rows) == limit or bound == _LAST:
            return Found(rows)
        ((seen, through),) = await ask("look_back_trouble", *trouble_values(which)[:4], below, bound)
        return Found(rows, through if seen == bound else None)

    async def _count_trouble(self, ask: Ask, which: Filter) -> Count:
        values = trouble_values(which)
        ((seen, matching),) = await ask("count_trouble", *values, SAMPLE if asks_log(which) else _LAST)
        if seen < SAMPLE or not asks_log(which):
            return Count(matching)
        ((total, _),) = await ask("look_back_trouble", *values[:4], _LAST, _LAST)
        return Count(round(matching / seen * total), exact=seen == total)

    async def _in_log(self, ask: Ask, which: Filter, limit: int, below: int | None) -> Found:
        ((first, last, _, _),) = await ask("log_ends", which.sink)
        if last is None:
            return Found([])
        upto = last if below is None else below - 1
        ((_, lowest),) = await ask("look_back", upto, LOOK)
        if lowest is None:
            return Found([])
        query = "list_log" if await ask("sinks") else "list_added"
        rows = [_row(row) for row in await ask(query, lowest, upto, *_log_values(which), limit)]
        return Found(rows, lowest if len(rows) < limit and lowest > first else None)

    async def _count_log(self, ask: Ask, which: Filter) -> Count:
        ((first, last, behind, before),) = await ask("log_ends", which.sink)
        if last is None:
            return Count(0)
        upto = min(last, before) if which.state is State.PUBLISHED else last
        ((seen, lowest),) = await ask("look_back", upto, LOOK)
        if not seen:
            return Count(0)
        if await ask("sinks"):
            ((matching,),) = await ask("count_log", lowest, upto, *_log_values(which))
        else:
            matching = len(await ask("list_added", lowest, upto, *_log_values(which), LOOK))
        down_to = max(first, behind + 1) if which.state is State.WAITING else first
        return estimate(matching, looked_at=upto - lowest + 1, of=upto - down_to + 1, exact=lowest <= first)


async def _payload(ask: Ask, id: UUID, most: int) -> tuple[bytes, int | None]:
    """The beginning of a payload, and its size: nothing, unless it was asked for, if the role may not read payloads."""
    ((may_read,),) = await ask("may_read_payloads")
    if not most and not may_read:
        return b"", None
    rows = await ask("payload", id, most)
    payload, size = rows[0] if rows else (b"", None)
    return bytes(payload or b""), size  # SQLite has no part of nothing


def estimate(matching: int, *, looked_at: int, of: int, exact: bool) -> Count:
    """How many there are of something, when so many were found among the positions that were looked at."""
    return Count(matching) if exact else Count(max(matching, round(matching / looked_at * of)), exact=False)


async def rows_by_id(ask: Ask, which: Filter) -> list[MessageRow]:
    """The messages that a filter names, as far as its other fields match."""
    rows = map(_row, await ask("list_ids", list(which.ids), which.sink))
    return [row for row in rows if _matches(row, which)]


def _matches(row: MessageRow, which: Filter) -> bool:
    return (
        (which.state is None or row.state == which.state)
        and (which.key is None or row.key == which.key)
        and (which.type is None or row.type == which.type)
        and (which.topic is None or row.topic == which.topic)
        and (which.error is None or which.error.lower() in (row.error or "").lower())
        and (which.since is None or row.created_at >= which.since)
        and (which.before is None or row.created_at < which.before)
    )


def _is_in_trouble(which: Filter) -> bool:
    """Only messages with a row in `deferred` can match."""
    return which.error is not None or which.state in STORED


def asks_log(which: Filter) -> bool:
    """Of a message in trouble, the log must be asked whether it matches."""
    return not (which.type is None and which.topic is None and which.since is None and which.before is None)


def trouble_values(which: Filter, states: Sequence[State] = STORED) -> tuple[Any, ...]:
    """The values of the queries on messages in trouble."""
    wanted = [state.value for state in states if which.state in {None, state}]
    return (which.sink, wanted, which.key, which.error, asks_log(which), which.type, which.topic, *_times(which))


def _log_values(which: Filter) -> tuple[Any, ...]:
    states = None if which.state is None else [which.state.value]
    return (which.sink, states, which.key, which.type, which.topic, which.error, *_times(which))


def _times(which: Filter) -> tuple[int | None, int | None]:
    return (
        None if which.since is None else as_microseconds(which.since),
        None if which.before is None else as_microseconds(which.before),
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
        created_at=as_datetime(created_at),
        next_attempt_at=None if next_at is None else as_datetime(next_at),
        published_at=None if published_at is None else as_datetime(published_at),
    )


def _headers(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def as_datetime(microseconds: int) -> datetime:
    """A time of the database."""
    return _EPOCH + timedelta(microseconds=microseconds)


def as_microseconds(time: datetime) -> int:
    """A time for the database; one without a zone is meant to be local."""
    return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
