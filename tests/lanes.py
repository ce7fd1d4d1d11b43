"""Lanes for tests that need no relay: created, and taken by an owner whose lease is over at once; and what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import msgspec

from postroad.sink_filter import EVERYTHING, SinkFilter
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.base import Lease, Start, Store
from postroad.stores.leases import RelayIdentity

HERE = "memory"
"""Where the sinks of these tests deliver to: what a MemoryBroker says of itself."""

__all__ = ["HERE", "identity", "pending", "take_lanes", "until_nothing_waits"]


def identity(sink: str = "s", owner: UUID | None = None, *, destination: str = HERE) -> RelayIdentity:
    """A relay of this sink."""
    return RelayIdentity(owner or uuid4(), sink, "a.host", 4711, "1.2.3", destination)


async def take_lanes(
    store: Store,
    sink: str = "s",
    owner: UUID | None = None,
    *,
    lanes: int = 1,
    start: Start = "oldest",
    filter: SinkFilter = EVERYTHING,
) -> Sequence[Lease]:
    """Create the sink, and take all its lanes, also those taken by this function before."""
    await store.leases.create(sink, HERE, lanes=lanes, start=start, filter=filter)
    who = msgspec.structs.replace(identity(sink, owner), filter=filter.text)
    snapshot = await store.leases.inspect(who)
    return await store.leases.take(who, snapshot.lanes, -1.0, reclaim=list(snapshot.mine))


async def pending(url: str) -> int:
    """How many messages all lanes have not dealt with."""
    async with Admin(PostgreSQLAdminDatabase(url)) as operating:
        sinks = (await operating.status()).sinks
    return sum(lane.pending.number for sink in sinks for lane in sink.lanes)


async def until_nothing_waits(url: str, seconds: float = 120) -> None:
    """Wait until all lanes have dealt with all messages."""
    async with asyncio.timeout(seconds):
        while await pending(url):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.2)  # to ask costs the relays time
