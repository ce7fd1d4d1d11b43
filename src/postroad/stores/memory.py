"""The log in memory, for tests: one process, one writer at a time, gone when the process ends.

store = MemoryStore()
with store.begin() as transaction:
outbox.add(transaction, OrderCreated(...))
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from postroad.errors import LaneChanged, LeaseLost
from postroad.message import SLOTS
from postroad.stores.base import Cleaned, LaneStatus, Lease
from postroad.stores.cursor import Cursor, turn_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from postroad.message import NewRow, StoredMessage
    from postroad.stores.base import Start
    from postroad.stores.cursor import Page, PageLimit

__all__ = ["MemoryStore", "MemoryTransaction"]


class MemoryTransaction:
    """What `Outbox.add` takes for a connection: rows that enter the log together, or not at all."""

    def __init__(self) -> None:
        self.rows: list[NewRow] = []
        self.open = True


class MemoryStore:
    """A store that keeps everything in lists; see `Store` for the contract."""

    def __init__(self) -> None:
        self._log: list[StoredMessage] = []
        self._ids: set[UUID] = set()
        self._end = 0
        self._lanes: dict[tuple[str, int], Lease] = {}

    @contextmanager
    def begin(self) -> Iterator[MemoryTransaction]:
        """A transaction: committed when the block ends, rolled back when it raises."""
        transaction = MemoryTransaction()
        try:
            yield transaction
            self._append(transaction.rows)
        finally:
            transaction.open = False

    def _append(self, rows: Sequence[NewRow]) -> None:
        for row in rows:
            if row.id not in self._ids:
                self._ids.add(row.id)
                self._end += 1
                self._log.append(row.stored(self._end, datetime.now(UTC)))

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """The log stays for as long as the object does."""

    async def take_lanes(self, sink: str, owner: UUID, *, lanes: int, start: Start) -> Sequence[Lease]:
        there = [lease for (name, _), lease in self._lanes.items() if name == sink]
        if not there:
            begin = Cursor(self._end if start == "now" else 0)
            bounds = [n * SLOTS // lanes for n in range(lanes + 1)]
            there = [
                Lease(sink, n, first, beyond - 1, owner, 0, 0, begin)
                for n, (first, beyond) in enumerate(pairwise(bounds))
            ]
        for lease in there:
            taken = msgspec.structs.replace(lease, owner=owner, epoch=lease.epoch + 1, version=lease.version + 1)
            self._lanes[sink, lease.lane] = taken
        return [self._lanes[sink, lease.lane] for lease in there]

    async def load(self, lease: Lease) -> Lease:
        found = self._lanes[lease.sink, lease.lane]
        if (found.owner, found.epoch) != (lease.owner, lease.epoch):
            raise LeaseLost(f"lane {lease.lane} of sink {lease.sink!r} was taken by another relay")
        return found

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        rows: list[StoredMessage] = []
        size = 0
        for message in self._log:
            if len(rows) == limit.rows or size >= limit.payload_bytes:
                break
            if message.position > cursor.position and lease.first_slot <= message.slot <= lease.last_slot:
                rows.append(message)
                size += len(message.payload)
        return turn_page(cursor, rows, limit=limit, snapshot=None, log_end=self._log[-1].position if self._log else 0)

    async def settle(self, lease: Lease, cursor: Cursor) -> Lease:
        found = self._lanes[lease.sink, lease.lane]
        if (found.owner, found.epoch, found.version) != (lease.owner, lease.epoch, lease.version):
            raise LaneChanged(f"lane {lease.lane} of sink {lease.sink!r} is no longer at version {lease.version}")
        settled = self._lanes[lease.sink, lease.lane] = lease.settled(cursor)
        return settled

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int) -> Cleaned:
        youngest = datetime.now(UTC) - older_than
        looked_at = [message for message in self._log if message.position > after][:batch]
        old = [message for message in looked_at if message.created_at <= youngest]
        passed = {message.position for message in old if self._passed(message)}
        self._log = [message for message in self._log if message.position not in passed]
        through = looked_at[-1].position if looked_at else after
        return Cleaned(deleted=len(passed), through=through, more=bool(old))

    def _passed(self, message: StoredMessage) -> bool:
        lanes = [lane for lane in self._lanes.values() if lane.first_slot <= message.slot <= lane.last_slot]
        return bool(lanes) and all(message.position <= lane.cursor.position for lane in lanes)

    async def status(self) -> Sequence[LaneStatus]:
        return [self._status_of(lane) for _, lane in sorted(self._lanes.items())]

    def _status_of(self, lane: Lease) -> LaneStatus:
        waiting = [
            message.created_at
            for message in self._log
            if message.position > lane.cursor.position and lane.first_slot <= message.slot <= lane.last_slot
        ]
        lag = (datetime.now(UTC) - min(waiting)).total_seconds() if waiting else 0.0
        return LaneStatus(lane.sink, lane.lane, lane.cursor.position, len(waiting), lag, lane.owner)
