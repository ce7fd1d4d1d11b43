"""Sinks that follow a replication slot: another program carries their messages, so operators can't decide about them.

What can be done: see how far it has come, pause and resume the sink, adopt a slot that was lost, and remove the sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.errors import InvalidSetting, NotFound
from postroad.stores.admin.audit import AuditedChange
from postroad.stores.admin.contract import Done, FollowedSlot
from postroad.stores.admin.names import check_sink
from postroad.stores.replication import slot_of_destination

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroad.stores.admin.contract import By
    from postroad.stores.admin.session import AdminDatabase, Query

__all__ = ["adopt_slot", "check_carrier", "check_resumable", "followed_slots", "preview_adopt_slot", "published_sinks"]


async def followed_slots(query: Query) -> Mapping[str, FollowedSlot]:
    """The slots that sinks follow, by sink. A sink whose slot was never there is not among them."""
    return {
        sink: FollowedSlot(name=slot, lost=lost, active=active, wal_status=status, behind_bytes=behind)
        for sink, slot, lost, active, status, behind in await query("replication_slots")
    }


async def published_sinks(query: Query, sink: str | None, what: str) -> set[str]:
    """The sinks to which relays publish, so that operators can decide about their messages.

    Raises InvalidSetting if the named one, or every one, follows a replication slot. `what`: such as "held".
    """
    every = {name: slot_of_destination(destination) for name, destination, *_ in await query("sink_reports")}
    named = every if sink is None else {sink: every.get(sink)}
    if named and all(named.values()):
        name, slot = next(iter(named.items()))
        raise InvalidSetting(
            f"sink {name!r} follows the replication slot {slot!r}: another program carries its messages, so here they "
            f"can't be {what}"
        )
    return {name for name, slot in every.items() if slot is None}


async def check_carrier(query: Query, sink: str, what: str) -> None:
    """Raise InvalidSetting if the sink follows a replication slot."""
    await published_sinks(query, sink, what)


async def check_resumable(query: Query, sink: str) -> None:
    """Raise InvalidSetting if the sink is paused because its replication slot is lost."""
    slot = (await followed_slots(query)).get(sink)
    if slot is not None and slot.lost is not None:
        raise InvalidSetting(
            f"sink {sink!r} is paused because {slot.lost}; what it has not passed may never have been carried. Have it "
            f"carried, then adopt the slot for sink {sink}"
        )


async def preview_adopt_slot(query: Query, sink: str) -> FollowedSlot:
    """The lost slot of a sink, as it is now. Raises NotFound if it is not lost, or if there is no slot to adopt."""
    await check_sink(query, sink)
    slot = (await followed_slots(query)).get(sink)
    if slot is None or slot.lost is None:
        raise NotFound(f"sink {sink!r} has lost no replication slot")
    if slot.active is None:
        raise NotFound(f"there is no replication slot {slot.name!r}; start the program that creates it, then adopt it")
    if slot.wal_status == "lost":
        raise NotFound(
            f"the replication slot {slot.name!r} can't be read any more, because write-ahead log is missing; drop it "
            f"(select pg_drop_replication_slot('{slot.name}')) and have it created again, then adopt it"
        )
    return slot


async def adopt_slot(database: AdminDatabase, sink: str, by: By) -> Done:
    """Let the sink follow the slot as it is now."""
    async with database.write() as query:
        slot = await preview_adopt_slot(query, sink)
        lanes = {(name, lane) for name, lane, _, _ in await query("lock_for_change", sink)}
        if not await query("adopt_slot", sink, slot.name):
            return Done(0)
        arguments = {"sink": sink, "slot": slot.name, "lost": slot.lost}
        await AuditedChange("sink adopt-slot", arguments, by).record(query, len(lanes), lanes)
    return Done(len(lanes))
