"""Leases in memory: several relays of one process may share a `MemoryStore`. There are no sessions, so no suspects."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from postroad.message import SLOTS
from postroad.sink_filter import EVERYTHING
from postroad.stores.base import Lease
from postroad.stores.cursor import Cursor
from postroad.stores.leases import (
    Leases,
    Peer,
    RelayIdentity,
    RelayStatus,
    SinkSnapshot,
    relay_state,
    wrong_destination,
    wrong_filter,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postroad.sink_filter import SinkFilter
    from postroad.stores.base import Start
    from postroad.stores.leases import LivenessLock

__all__ = ["NO_OWNER", "MemoryLeases"]

NO_OWNER: Final = UUID(int=0)
"""The owner of a lane that has none."""
_DAY: Final = 86_400.0


class _Row(msgspec.Struct):
    """A row of `relays`."""

    identity: RelayIdentity
    started_at: float
    heartbeat_at: float
    alive_until: float
    heartbeats: int = 0


class MemoryLeases(Leases):
    """See `Leases` for the contract. `lanes` belongs to the store."""

    def __init__(self, lanes: dict[tuple[str, int], Lease], clock: Callable[[], float], end: Callable[[], int]) -> None:
        self._lanes = lanes
        self._clock = clock
        self._end = end
        self._until: dict[tuple[str, int], float] = {}
        self._relays: dict[UUID, _Row] = {}
        self._destinations: dict[str, str] = {}
        self._filters: dict[str, str | None] = {}
        self._served_at: dict[str, float] = {}

    async def create(
        self, sink: str, destination: str, *, lanes: int, start: Start, filter: SinkFilter = EVERYTHING
    ) -> None:
        kept = self._destinations.setdefault(sink, destination)
        if kept != destination:
            raise wrong_destination(sink, kept, destination)
        kept_filter = self._filters.setdefault(sink, filter.text)
        if kept_filter != filter.text:
            raise wrong_filter(sink, kept_filter, filter.text)
        self._served_at[sink] = self._clock()
        if any(name == sink for name, _ in self._lanes):
            return
        begin = Cursor(self._end() if start == "now" else 0)
        bounds = [n * SLOTS // lanes for n in range(lanes + 1)]
        for n, (first, beyond) in enumerate(pairwise(bounds)):
            self._lanes[sink, n] = Lease(sink, n, first, beyond - 1, NO_OWNER, 0, 0, begin, filter=filter.text)

    async def heartbeat(
        self, identity: RelayIdentity, seconds: float, liveness_lock: LivenessLock | None = None
    ) -> SinkSnapshot:
        now = self._clock()
        row = self._relays.setdefault(identity.owner, _Row(identity, now, now, now))
        row.heartbeat_at, row.alive_until, row.heartbeats = now, now + seconds, row.heartbeats + 1
        last = {each.identity.sink: each for each in sorted(self._relays.values(), key=lambda each: each.heartbeat_at)}
        self._relays = {
            owner: each
            for owner, each in self._relays.items()
            if each.alive_until > now - _DAY or each is last[each.identity.sink]
        }
        renewed = self._lanes_of(identity.owner)
        self._until |= dict.fromkeys(renewed, now + seconds)
        return self._snapshot(identity, [lane for _, lane in renewed])

    async def inspect(self, identity: RelayIdentity, liveness_lock: LivenessLock | None = None) -> SinkSnapshot:
        return self._snapshot(identity, ())

    async def take(
        self,
        identity: RelayIdentity,
        at_most: int,
        seconds: float,
        *,
        reclaim: Collection[int] = (),
        exclude: Collection[int] = (),
    ) -> Sequence[Lease]:
        kept = self._destinations.get(identity.sink), self._filters.get(identity.sink)
        if kept != (identity.destination, identity.filter):
            return []
        own = [(identity.sink, lane) for lane in reclaim if (identity.sink, lane) in self._lanes_of(identity.owner)]
        free = [place for place in self._lanes if place[0] == identity.sink and self._is_free(place, identity.owner)]
        chosen = [place for place in own + free if place[1] not in exclude][:at_most]
        for place in chosen:
            lane = self._lanes[place]
            self._lanes[place] = msgspec.structs.replace(
                lane, owner=identity.owner, epoch=lane.epoch + 1, version=lane.version + 1
            )
            self._until[place] = self._clock() + seconds
        return [self._lanes[place] for place in sorted(chosen)]

    async def release(self, lease: Lease) -> None:
        found = self._lanes[lease.sink, lease.lane]
        if (found.owner, found.epoch) == (lease.owner, lease.epoch):
            self._free((lease.sink, lease.lane))

    async def deregister(self, identity: RelayIdentity) -> None:
        for place in self._lanes_of(identity.owner):
            self._free(place)
        self._relays.pop(identity.owner, None)
        self._served_at[identity.sink] = self._clock()

    async def relays(self) -> Sequence[RelayStatus]:
        now = self._clock()
        return [self._status(row, now) for row in sorted(self._relays.values(), key=lambda row: row.started_at)]

    async def unserved(self) -> Mapping[str, float]:
        now = self._clock()
        served_at = dict(self._served_at)
        for row in self._relays.values():
            served_at[row.identity.sink] = max(served_at.get(row.identity.sink, 0.0), row.heartbeat_at)
        return {sink: now - at for sink, at in served_at.items()}

    def _status(self, row: _Row, now: float) -> RelayStatus:
        lanes = [lane for _, lane in self._lanes_of(row.identity.owner)]
        identity = row.identity
        return RelayStatus(
            owner=identity.owner,
            sink=identity.sink,
            host=identity.host,
            pid=identity.pid,
            version=identity.version,
            lanes=lanes,
            started_at=datetime.fromtimestamp(row.started_at, UTC),
            heartbeat_seconds=now - row.heartbeat_at,
            state=relay_state(alive=row.alive_until > now, lanes=lanes),
            lock=None,
        )

    def _snapshot(self, identity: RelayIdentity, renewed: Collection[int]) -> SinkSnapshot:
        now = self._clock()
        places = [place for place in self._lanes if place[0] == identity.sink]
        live = [row for row in self._relays.values() if row.identity.sink == identity.sink and row.alive_until > now]
        return SinkSnapshot(
            lanes=len(places),
            destination=self._destinations.get(identity.sink),
            filter=self._filters.get(identity.sink),
            mine={lane: self._lanes[sink, lane].epoch for sink, lane in self._lanes_of(identity.owner)},
            renewed=renewed,
            free=[place[1] for place in places if self._is_free(place, identity.owner)],
            peers=[Peer(row.identity.owner, len(self._lanes_of(row.identity.owner)), row.heartbeats) for row in live],
            suspects=(),
        )

    def _lanes_of(self, owner: UUID) -> list[tuple[str, int]]:
        return [place for place, lane in self._lanes.items() if lane.owner == owner]

    def _is_free(self, place: tuple[str, int], asking: UUID) -> bool:
        owner = self._lanes[place].owner
        return owner == NO_OWNER or (owner != asking and self._until[place] < self._clock())

    def _free(self, place: tuple[str, int]) -> None:
        lane = self._lanes[place]
        self._lanes[place] = msgspec.structs.replace(lane, owner=NO_OWNER, version=lane.version + 1)
