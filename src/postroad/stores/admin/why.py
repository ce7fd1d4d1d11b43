"""The look-ups of the explainer: what is known of a message or a key, read by index in one snapshot. See `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from postroad.errors import NotFound
from postroad.lifecycle import State
from postroad.message import slot_of
from postroad.sink_filter import SinkFilter
from postroad.stores.admin.answers import (
    DeferredFacts,
    KeyFacts,
    KeyWindow,
    LaneFacts,
    MessageFacts,
    PublishedFacts,
    SinkFacts,
    UnknownFacts,
)
from postroad.stores.admin.contract import Filter, HeldKey, Pause
from postroad.stores.admin.explain import explain, explain_key, explain_unknown
from postroad.stores.admin.explain_decided import DECIDED
from postroad.stores.admin.inspect import SCAN_LIMIT, audit_entries, list_messages, rows_at
from postroad.stores.admin.names import check_sink
from postroad.stores.admin.session import from_microseconds
from postroad.stores.admin.slots import followed_slots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from postroad.stores.admin.answers import Explanation, KeyExplanation
    from postroad.stores.admin.contract import FollowedSlot
    from postroad.stores.admin.session import Query

__all__ = ["key_window", "why_key", "why_message"]

AUDIT_LINES: Final = 1000
"""At most this many lines of the audit are searched, the newest first."""

MOST_WAITING: Final = 1000
"""At most this many deferred messages of a key are counted, or searched for keys with a source."""


# -- a message -------------------------------------------------------------------------------------------------------


async def why_message(query: Query, id: UUID, sink: str | None) -> Explanation:
    """The explanation of a message, at one sink or at all."""
    await check_sink(query, sink)
    facts = await _message(query, id, sink)
    return explain_unknown(await _unknown(query, id)) if facts is None else explain(facts)


async def _message(query: Query, id: UUID, sink: str | None) -> MessageFacts | None:
    found = await query("why_message", id) or await query("why_scheduled", id)
    if not found:
        return None
    position, type, topic, key, created_at, deliver_at, at = found[0]
    sinks = [] if position is None else await _sinks(query, position, key, sink)
    states = {each.state for there in sinks for each in (there.deferred, there.head) if each is not None}
    return MessageFacts(
        at=from_microseconds(at),
        id=id,
        type=type,
        topic=topic,
        key=key,
        position=position,
        created_at=from_microseconds(created_at),
        deliver_at=_time(deliver_at),
        sinks=sinks,
        audit=await audit_entries(query, AUDIT_LINES) if states & set(DECIDED) else (),
    )


async def _sinks(query: Query, position: int, key: str | None, sink: str | None) -> list[SinkFacts]:
    deferred = await _deferred(query, position)
    slots = await followed_slots(query)
    return [
        await _at_sink(query, _lane(row, slots.get(row[0])), position, key, deferred.get(row[0]))
        for row in await query("why_lanes", position, sink)
    ]


async def _at_sink(
    query: Query, lane: LaneFacts, position: int, key: str | None, deferred: DeferredFacts | None
) -> SinkFacts:
    """What else matters, which depends on whether the message is deferred, or published, or neither."""
    if deferred is None:
        passed = lane.reading == "passed"
        return SinkFacts(lane=lane, published=await _published(query, lane, position) if passed else None)
    if deferred.state in DECIDED or deferred.key is None:
        return SinkFacts(lane=lane, deferred=deferred)
    held = await query("why_hold", lane.sink, key, deferred.key)
    first = await query("why_head", lane.sink, lane.lane, deferred.key, position)
    head = (await _deferred(query, first[0][0])).get(lane.sink) if first else None
    return SinkFacts(lane=lane, deferred=deferred, hold=_hold(held), head=head)


async def _deferred(query: Query, position: int) -> dict[str, DeferredFacts]:
    return {row[0]: _deferred_row(row) for row in await query("why_deferred", position)}


async def _published(query: Query, lane: LaneFacts, position: int) -> PublishedFacts:
    ((delivered_at, before, after),) = await query("why_published", lane.sink, lane.lane, position)
    if delivered_at is not None:
        return PublishedFacts(None, _time(delivered_at))
    return PublishedFacts(_time(after), _time(before))


async def _unknown(query: Query, id: UUID) -> UnknownFacts:
    ((oldest_at, open_transactions, at),) = await query("why_unknown")
    return UnknownFacts(
        at=from_microseconds(at),
        id=id,
        made_at=_made_at(id),
        oldest_at=_time(oldest_at),
        open_transactions=open_transactions,
        audit=await audit_entries(query, AUDIT_LINES),
    )


def _made_at(id: UUID) -> datetime | None:
    """The time in a UUIDv7, in milliseconds. None for another UUID, or a time that no calendar has."""
    try:
        return from_microseconds((id.int >> 80) * 1000) if id.version == 7 else None
    except OverflowError:
        return None


# -- a key -----------------------------------------------------------------------------------------------------------


async def why_key(query: Query, key: str, sink: str | None) -> KeyExplanation | None:
    """The explanation of a key, at one sink or at all. None if there is no sink yet."""
    await check_sink(query, sink)
    lanes = await query("why_key_lanes", slot_of(key, UUID(int=0)), sink)
    if not lanes:
        return None
    facts = [await _key_at_sink(query, key, lane) for lane in lanes]
    return explain_key(key, facts[0].at, facts)


async def _key_at_sink(query: Query, key: str, row: Sequence[Any]) -> KeyFacts:
    sink, lane, position, at = row
    heads = await query("why_key_head", sink, lane, key, MOST_WAITING)
    first = heads or await query("why_key_unread", position, key, SCAN_LIMIT, sink)
    newest = [] if first else await query("why_key_newest", key, SCAN_LIMIT)
    return KeyFacts(
        at=from_microseconds(at),
        key=key,
        sink=sink,
        hold=_hold(await query("why_hold", sink, key, key)),
        waiting=heads[0][2] if heads else len(first),
        most=MOST_WAITING,
        first=await _message(query, _uuid(first[0][0]), sink) if first else None,
        newest=await _message(query, _uuid(newest[0][0]), sink) if newest else None,
        searched=SCAN_LIMIT,
    )


async def key_window(query: Query, sink: str, key: str, limit: int) -> KeyWindow:
    """A key's messages in order: half of the window for those that wait, the rest for the newest."""
    explained = await why_key(query, key, sink)
    if explained is None or not explained.answers:
        raise NotFound(f"sink {sink!r} has no lanes yet, so it has no messages of key {key!r}")
    ((_, lane, *_),) = await query("why_key_lanes", slot_of(key, UUID(int=0)), sink)
    heads = await query("why_key_head", sink, lane, key, MOST_WAITING)
    first = await query("key_waiting", sink, lane, heads[0][1], (limit + 1) // 2) if heads else []
    waiting = await rows_at(query, sink, [position for (position,) in first])
    newest = await list_messages(query, Filter(sink=sink, key=key), limit, below=None)
    rows = {row.position: row for row in (*waiting, *newest.messages[: limit - len(waiting)])}
    return KeyWindow(
        sink=sink,
        key=key,
        messages=[rows[position] for position in sorted(rows)],
        head=_uuid(heads[0][0]) if heads else None,
        waiting=heads[0][2] if heads else 0,
        hold=_hold(await query("why_hold", sink, key, key)),
        answer=explained.answers[0],
        looked_back_to=newest.looked_back_to,
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def _lane(row: Sequence[Any], slot: FollowedSlot | None) -> LaneFacts:
    sink, lane, position, reading, owner, lease_until, host, pid, heartbeat_at, served_at, relays, *rest = row
    since, who, reason, progressed_at, filter, taken = rest
    return LaneFacts(
        sink=sink,
        lane=lane,
        position=position,
        reading=reading,
        owner=None if owner is None else _uuid(owner),
        lease_until=_time(lease_until),
        host=host,
        pid=pid,
        heartbeat_at=_time(heartbeat_at),
        served_at=from_microseconds(served_at or 0),
        relays=relays,
        pause=None if since is None else Pause(from_microseconds(since), who, reason),
        progressed_at=_time(progressed_at),
        not_taken_by=None if taken in {True, None} else str(SinkFilter.of_text(filter)),
        slot=slot,
    )


def _deferred_row(row: Sequence[Any]) -> DeferredFacts:
    _, id, position, state, attempts, due_at, key, route, route_since, error, deferred_at, failed_at, rewound = row
    return DeferredFacts(
        id=_uuid(id),
        position=position,
        state=State(state),
        attempts=attempts,
        due_at=_time(due_at),
        key=key,
        route=route,
        route_since=_time(route_since),
        error=error,
        deferred_at=from_microseconds(deferred_at),
        failed_at=_time(failed_at),
        rewound=bool(rewound),
    )


def _hold(rows: Sequence[Sequence[Any]]) -> HeldKey | None:
    for sink, key, since, who, reason in rows:
        return HeldKey(sink, key, from_microseconds(since), who, reason)
    return None


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _uuid(value: UUID | str) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)
