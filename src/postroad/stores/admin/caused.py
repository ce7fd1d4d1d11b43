"""Looks up the neighbourhood of a message: its cause, what it caused here, and which consumers here have handled it.

The inbox is asked by index if the message's source is known. Otherwise the newest RECENT messages of each consumer are
searched. See `causation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.received import identity_of
from postroad.stores.admin.causation import Causation, Handled, KnownMessage
from postroad.stores.admin.inspect import SCAN_LIMIT, headers_of
from postroad.stores.admin.rewind import position_at
from postroad.stores.admin.session import from_microseconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroad.stores.admin.session import Query

__all__ = ["causation"]

RECENT: Final = 1_000
"""So many of the newest messages of each consumer are searched for an id whose source is not known."""


async def causation(query: Query, id: UUID, identity: str | None) -> Causation:
    found = await query("message", id) or await query("scheduled_message", id)
    message, cause, position = None, None, None
    if found:
        position, type, _, _, _, text, created_at, _ = found[0]
        headers = headers_of(text)
        message = KnownMessage(id=str(id), type=type, created_at=from_microseconds(created_at))
        cause, identity = headers.get("causation_id"), identity_of(str(id), headers.get("source"))
    handled = await _handled(query, str(id), identity)
    known = identity or (handled[0].identity if handled else None)
    caused, searched_all = await _caused(query, str(id), position, handled)
    return Causation(
        id=str(id),
        identity=known,
        message=message,
        cause=cause,
        caused=caused,
        searched_all=searched_all,
        handled=handled,
    )


async def _handled(query: Query, id: str, identity: str | None) -> Sequence[Handled]:
    if identity is None:
        rows = [*await query("handled", [id]), *await query("handled_recently", f" {id}", RECENT)]
    else:
        rows = [*await query("handled", [identity])]
    return [
        Handled(
            consumer=consumer,
            identity=name,
            type=type,
            outcome="processed" if processed_at is not None else "dead",
            at=from_microseconds(dead_at if processed_at is None else processed_at),
            error=error,
        )
        for consumer, name, type, processed_at, dead_at, error in rows
    ]


async def _caused(
    query: Query, id: str, position: int | None, handled: Sequence[Handled]
) -> tuple[Sequence[KnownMessage], bool]:
    """What a message caused, among the SCAN_LIMIT rows after it, or after the first consumer here handled it; for one
    that is not known here, among the newest. Also returns whether that were all rows that matter.
    """
    ((first, last, _, _),) = await query("log_ends", None)
    if last is None:
        return [], True
    if position is None and handled:
        begun = min(each.at for each in handled)
        position = await position_at(query, round(begun.timestamp() * 1_000_000), first, last) - 1
    from_the_first = True
    if position is None:
        ((_, lowest),) = await query("look_back", last, SCAN_LIMIT)
        position, from_the_first = lowest - 1, lowest <= first
    rows = await query("caused", position, id, SCAN_LIMIT)
    found = [KnownMessage(id=str(other), type=type, created_at=from_microseconds(at)) for other, type, at in rows]
    return found, last - position <= SCAN_LIMIT and from_the_first
