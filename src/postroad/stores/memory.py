"""The log in memory, for tests: one process, one writer at a time, gone when the process ends.

    store = MemoryStore()
    with store.begin() as transaction:
        outbox.add(transaction, OrderCreated(...))

The messages are in the log when the block has ended without an error.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from postroad.errors import IdTaken
from postroad.lifecycle import FINAL, Mover, State, may_move
from postroad.message import StoredMessage
from postroad.schedule import Cancellation
from postroad.sink_filter import takes
from postroad.stores.base import (
    ANY_SIZE,
    FOLLOWERS,
    PROBES_PER_SECOND,
    Claim,
    Claimed,
    Cleaned,
    Lease,
    Loaded,
    Moved,
    Recorded,
    as_held,
    key_and_source,
    key_of,
)
from postroad.stores.cursor import Sweep, make_page, meet
from postroad.stores.memory_copies import MemoryCopies
from postroad.stores.memory_leases import MemoryLeases
from postroad.stores.memory_naps import MemoryNaps
from postroad.stores.naps import Tick

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from postroad.message import NewRow
    from postroad.schedule import Later
    from postroad.stores.base import Blocker, Deferred, Held, Settlement, Tally
    from postroad.stores.cursor import Cursor, Page, PageLimit

__all__ = ["MemoryStore", "MemoryTransaction"]

logger = logging.getLogger("postroad.stores.memory")


class _DeferredRow(msgspec.Struct):
    """A row of `deferred`; see the migrations for what the columns mean."""

    lane: int
    position: int
    key: str | None
    state: State
    attempts: int
    due_at: float | None
    route: str | None
    error: str | None
    blocks: bool
    first_failed_at: float | None
    last_failed_at: float | None
    deferred_at: float
    epoch: int | None = None
    unsure: bool = False

    @property
    def waits_in_line(self) -> bool:
        """It waits for an earlier message of its key, and for nothing else."""
        return self.state is State.HELD and self.due_at is None and self.route is None


class _Attempt(msgspec.Struct):
    """A row of `attempts`."""

    sink: str
    position: int
    attempt: int
    failed_at: float
    error: str


class MemoryTransaction:
    """Used as a connection by an Outbox or Inbox: its messages enter the log together, or not at all.

    A cancellation takes effect at once, because there are no row locks here, and a rollback undoes it.
    """

    def __init__(self, store: MemoryStore, processed: AbstractSet[tuple[str, str]]) -> None:
        self.rows: list[NewRow] = []
        self.later: list[Later] = []
        self.undo: list[Callable[[], None]] = []
        self.open = True
        self._added: dict[tuple[UUID, bool], NewRow] = {}
        self.noted: set[tuple[str, str]] = set()
        """Consumers and ids that enter the inbox."""
        self._processed = processed
        self._store = store
        self._kept: tuple[list[NewRow], list[Later], dict[tuple[UUID, bool], NewRow]] = ([], [], {})
        """What was added before the savepoint."""

    def savepoint(self) -> None:
        """Remember what was added up to now."""
        self._kept = (self.rows.copy(), self.later.copy(), self._added.copy())

    def rollback_to_savepoint(self) -> None:
        """Forget what was added since."""
        self.rows[:], self.later[:], self._added = *self._kept[:2], self._kept[2].copy()

    def add(self, rows: Sequence[NewRow], later: Sequence[Later]) -> None:
        """Add messages to the log, and `later` to the scheduled ones. Raises IdTaken."""
        for new, scheduled in [*((row, False) for row in rows), *((row, True) for row, _, _ in later)]:
            there = [self._added.setdefault((new.id, scheduled), new), *self._store.added(new.id, scheduled=scheduled)]
            if any(row is not new and _content(row) != _content(new) for row in there):
                raise IdTaken(f"another message has the id {new.id} already, with other content")
        self.rows.extend(rows)
        self.later.extend(later)

    def cancel(self, id: UUID) -> Cancellation:
        return self._store.cancel(self, id)

    def first_time(self, consumer: str, id: str) -> bool:
        """Record an id for a consumer; False if it was recorded before."""
        known = (consumer, id) in self._processed or (consumer, id) in self.noted
        self.noted.add((consumer, id))
        return not known


class MemoryStore:
    """A store that keeps everything in lists; see `Store` for the contract."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        """The time in seconds, by which messages are due."""
        self._log: list[StoredMessage] = []
        self._ids: set[UUID] = set()
        self._end = 0
        self._lanes: dict[tuple[str, int], Lease] = {}
        self.leases = MemoryLeases(self._lanes, clock, lambda: self._end)
        self._deferred: dict[tuple[str, int], _DeferredRow] = {}
        self._attempts: list[_Attempt] = []
        self._scheduled: dict[UUID, tuple[float, NewRow]] = {}
        self.copies = MemoryCopies(clock, lambda sink: any(its == sink for its, _ in self._lanes))
        self.naps = MemoryNaps(self)
        self.many = _ManyLanes(self)
        self.replication = None
        self.tallies: list[Tally] = []
        """What lanes have reported."""
        self._processed: set[tuple[str, str]] = set()
        self._one_writer = threading.RLock()

    @contextmanager
    def begin(self) -> Iterator[MemoryTransaction]:
        """A transaction: committed when the block ends, rolled back when it raises."""
        with self._one_writer:
            transaction = MemoryTransaction(self, self._processed)
            try:
                yield transaction
                self._append(transaction.rows)
                self._schedule(transaction.later)
                self._processed |= transaction.noted
                self.naps.notify()
            except BaseException:
                for put_back in reversed(transaction.undo):
                    put_back()
                raise
            finally:
                transaction.open = False

    def added(self, id: UUID, *, scheduled: bool) -> Sequence[StoredMessage | NewRow]:
        """The message with an id, in the log or among the scheduled ones."""
        if scheduled:
            return [self._scheduled[id][1]] if id in self._scheduled else ()
        return [message for message in self._log if message.id == id] if id in self._ids else ()

    def _append(self, rows: Sequence[NewRow]) -> None:
        for row in rows:
            if row.id not in self._ids:
                self._ids.add(row.id)
                self._end += 1
                self._log.append(row.stored(self._end, datetime.now(UTC)))

    def _schedule(self, later: Sequence[Later]) -> None:
        for row, at, after in later:
            due_at = self._clock() + after / 1e6 if after is not None else (at or 0) / 1e6
            self._scheduled.setdefault(row.id, (due_at, row))

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """The log lives as long as the object."""

    async def load(self, lease: Lease, *, by_source: bool = False) -> Loaded:
        found = self._lanes[lease.sink, lease.lane]
        if (found.owner, found.epoch) != (lease.owner, lease.epoch):
            raise lease.lost()
        loaded = self._lanes[lease.sink, lease.lane] = found.settled(found.cursor)
        now, rows = self._clock(), self._rows_of(lease)
        self._scope_keys(rows, by_source=by_source)
        heads = _heads(rows)
        for row in rows:
            if row.state is State.SENDING:
                row.state, row.epoch, row.unsure = State.RETRYING if row.attempts else State.HELD, None, True
                row.due_at = now if row.state is State.RETRYING or _may_go(row, heads) else None
            if row.state is State.HELD and row.route is None and _may_go(row, heads):
                row.due_at = _at_latest(now, row.due_at)
        waiting = [row for row in rows if row.route and row.state is State.HELD and _may_go(row, heads)]
        first_of_route = {row.route: row for row in reversed(waiting)}
        for number, row in enumerate(sorted(first_of_route.values(), key=lambda row: row.position)):
            row.due_at = _at_latest(now + number // PROBES_PER_SECOND, row.due_at)
        due = [row.due_at for row in rows if row.due_at is not None]
        due_in = max(0.0, min(due) - now) if due else None
        return Loaded(loaded, heads, list(filter(None, first_of_route)), due_in, log_end=self._end)

    def _scope_keys(self, rows: Sequence[_DeferredRow], *, by_source: bool) -> None:
        for row in rows:
            message = self._message(row.position)
            if row.key is not None and message is not None and (key_of(row.key) == row.key) is by_source:
                row.key = key_and_source(message) if by_source else message.key

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        found = self.sweep([lease], cursor.position, limit)
        (version,) = found.versions
        lease.check_read(cursor, version, self._end)
        return make_page(cursor, found.messages, limit=limit, snapshot=None, log_end=self._end, version=version or 0)

    def sweep(self, leases: Sequence[Lease], after: int, limit: PageLimit) -> Sweep:
        """The next messages of these lanes, and the lanes' versions."""
        rows: list[StoredMessage] = []
        size = 0
        for message in self._log:
            if len(rows) == limit.rows or size >= limit.payload_bytes:
                break
            if message.position > after and any(_reads(each, message) for each in leases):
                rows.append(message)
                size += message.size
        return Sweep(rows, [0] * len(rows), None, self._end, [self._version(lease) for lease in leases])

    def _version(self, lease: Lease) -> int | None:
        lane = self._lanes[lease.sink, lease.lane]
        return lane.version if (lane.owner, lane.epoch) == (lease.owner, lease.epoch) else None

    async def is_current(self, lease: Lease) -> bool:
        found = self._lanes[lease.sink, lease.lane]
        return (found.owner, found.epoch, found.version) == (lease.owner, lease.epoch, lease.version)

    async def settle(self, lease: Lease, cursor: Cursor, tally: Tally | None = None) -> Lease:
        if not await self.is_current(lease):
            raise lease.changed()
        if tally is not None:
            self.tallies.append(tally)
        settled = self._lanes[lease.sink, lease.lane] = lease.settled(cursor)
        return settled

    async def record(
        self,
        lease: Lease,
        cursor: Cursor,
        *,
        deferred: Sequence[Deferred] = (),
        held: Sequence[Held] = (),
        unsure_through: int = 0,
        published: Sequence[int] = (),
        freed: Collection[str] = (),
        tally: Tally | None = None,
    ) -> Recorded:
        settled = await self.settle(lease, cursor, tally)
        for each in [*deferred, *as_held(held, unsure_through)]:
            self._defer(lease, each)
        for position in published:
            self._deferred.pop((lease.sink, position), None)
        heads = _heads(self._rows_of(lease))
        remaining = {key: heads[key] for key in freed if key in heads}
        for position in remaining.values():
            head = self._deferred[lease.sink, position]
            if head.state is State.HELD:
                head.due_at = _at_latest(self._clock(), head.due_at)
        return Recorded(settled, remaining)

    def _defer(self, lease: Lease, new: Deferred) -> None:
        now, error, old = self._clock(), new.error_kept, self._deferred.get((lease.sink, new.position))
        first_failed_at, last_failed_at = (old.first_failed_at, old.last_failed_at) if old else (None, None)
        if new.counted:
            first_failed_at, last_failed_at = now if first_failed_at is None else first_failed_at, now
            self._attempts.append(_Attempt(lease.sink, new.position, new.attempts, now, error or ""))
        if old is not None and error is None:
            error = old.error
        message = self._message(new.position)
        if new.copy_to is not None and message is not None:
            self.copies.add(message, lease.sink, new)
        due_at = None if new.due_in is None else now + new.due_in
        self._deferred[lease.sink, new.position] = _DeferredRow(
            lease.lane, new.position, new.key, new.state, new.attempts, due_at, new.route, error, new.blocks,
            first_failed_at, last_failed_at, old.deferred_at if old else now,
            unsure=new.unsure or (old is not None and old.unsure),
        )  # fmt: skip

    async def claim(
        self, lease: Lease, limit: int, *, payload_bytes: int = ANY_SIZE, routes: Collection[str] = ()
    ) -> Claim:
        settled = await self.settle(lease, lease.cursor)
        now, rows = self._clock(), self._rows_of(lease)
        heads, behind = _choose(rows, now, limit, routes)
        chosen: list[_DeferredRow] = []
        messages: list[StoredMessage] = []
        for row in (heads + behind)[:limit]:
            if sum(each.size for each in messages) >= payload_bytes:
                break
            message = self._message(row.position)
            if message is None:
                self._forget_the_gone(lease, rows)
            else:
                chosen.append(row)
                messages.append(message)
        more = len(heads) > len(chosen)
        for row in chosen:
            row.state, row.due_at, row.epoch = State.SENDING, None, lease.epoch
        claimed = [
            Claimed(each, row.attempts, row.route, waited=now - row.deferred_at)
            for each, row in zip(messages, chosen, strict=True)
        ]
        claimed.sort(key=lambda each: each.message.position)
        due = [row.due_at for row in rows if row.due_at is not None and row.due_at > now]
        return Claim(settled, claimed, 0.0 if more else min(due) - now if due else None)

    def _message(self, position: int) -> StoredMessage | None:
        place = bisect_left(self._log, position, key=attrgetter("position"))
        found = self._log[place] if place < len(self._log) else None
        return found if found is not None and found.position == position else None

    def _forget_the_gone(self, lease: Lease, rows: Sequence[_DeferredRow]) -> None:
        gone = [row.position for row in rows if self._message(row.position) is None]
        for position in gone:
            del self._deferred[lease.sink, position]
        changed = lease.without_messages(len(gone))
        logger.warning("%s", changed)
        raise changed

    def _rows_of(self, lease: Lease) -> list[_DeferredRow]:
        """The deferred messages of a lane, by position."""
        mine = (row for (sink, _), row in self._deferred.items() if (sink, row.lane) == (lease.sink, lease.lane))
        return sorted(mine, key=lambda row: row.position)

    async def move_scheduled(self, limit: int) -> Moved:
        now = self._clock()
        due = [id for id, (due_at, _) in self._scheduled.items() if due_at <= now]
        due = sorted(due, key=lambda each: self._scheduled[each][0])[:limit]
        self._append([self._scheduled.pop(id)[1] for id in due])
        waiting = [due_at - now for due_at, _ in self._scheduled.values()]
        return Moved(len(due), max(0.0, min(waiting)) if waiting else None)

    def cancel(self, transaction: MemoryTransaction, id: UUID) -> Cancellation:
        was_scheduled = self._unschedule(transaction, id)
        message = next((message for message in self._log if message.id == id), None)
        if message is None:
            if any(row.id == id for row in transaction.rows):
                return Cancellation.TOO_LATE
            return Cancellation.CANCELED if was_scheduled else Cancellation.UNKNOWN
        lanes = [lane for lane in self._lanes.values() if _reads(lane, message)]
        rows = [self._deferred.get((lane.sink, message.position)) for lane in lanes]
        if not self._passed(message) or not all(row is not None and _may_be_canceled(row) for row in rows):
            return Cancellation.TOO_LATE
        for lane, row in zip(lanes, rows, strict=True):
            if row is not None and row.state is not State.CANCELED:
                transaction.undo.append(partial(self._replace, lane, row))
                canceled = msgspec.structs.replace(
                    row, state=State.CANCELED, blocks=False, due_at=None, route=None, epoch=None
                )
                self._replace(lane, canceled)
        return Cancellation.CANCELED

    def _unschedule(self, transaction: MemoryTransaction, id: UUID) -> bool:
        mine = [each for each in transaction.later if each.row.id == id]
        transaction.later = [each for each in transaction.later if each.row.id != id]
        waiting = self._scheduled.pop(id, None)
        if waiting is not None:
            transaction.undo.append(lambda: self._scheduled.update({id: waiting}))
        return bool(mine) or waiting is not None

    def _replace(self, lane: Lease, row: _DeferredRow) -> None:
        """As an operator would: the lane notices at its next write."""
        self._deferred[lane.sink, row.position] = row
        now = self._lanes[lane.sink, lane.lane]
        self._lanes[lane.sink, lane.lane] = now.settled(now.cursor)

    async def delete_passed(self, *, after: int, older_than: timedelta, batch: int, key: str | None = None) -> Cleaned:
        youngest = datetime.now(UTC) - older_than
        looked_at = [message for message in self._log if message.position > after][:batch]
        old = [message for message in looked_at if message.created_at <= youngest]
        needed = {position for (_, position), row in self._deferred.items() if row.state not in FINAL}
        meant = [message for message in old if key is None or message.key == key]
        passed = {message.position for message in meant if self._passed(message)} - needed - self.copies.positions
        self._log = [message for message in self._log if message.position not in passed]
        self._deferred = {place: row for place, row in self._deferred.items() if row.position not in passed}
        self._attempts = [attempt for attempt in self._attempts if attempt.position not in passed]
        through = looked_at[-1].position if looked_at else after
        behind = min((lane.cursor.position for lane in self._lanes.values()), default=0)
        return Cleaned(deleted=len(passed), through=through, more=bool(old), behind=behind)

    def _passed(self, message: StoredMessage) -> bool:
        lanes = [lane for lane in self._lanes.values() if _reads(lane, message)]
        return bool(self._lanes) and all(message.position <= lane.cursor.position for lane in lanes)

    async def blocked(self) -> Sequence[Blocker]:
        """There is one writer at a time, and no way to name it."""
        await asyncio.Event().wait()
        return ()

    async def forget_progress(self, *, older_than: timedelta, batch: int) -> int:
        """Tallies have no times here."""
        return 0

    def tick(self, sink: str, owner: UUID) -> Tick:
        """What a tick of a relay finds, without its naps."""
        theirs = [lane for lane in self._lanes.values() if (lane.sink, lane.owner) == (sink, owner)]
        return Tick(
            lanes={lane.lane: (lane.epoch, lane.version) for lane in theirs},
            has_work=[
                lane.lane
                for lane in theirs
                if lane.cursor.position < self._end or (lane.lane == 0 and self.copies.waits(sink))
            ],
            renewed_naps=(),
        )


def _reads(lane: Lease, message: StoredMessage) -> bool:
    """Whether the message is one of the lane's slots, and its sink takes it."""
    mine = lane.first_slot <= message.slot <= lane.last_slot
    return mine and takes(lane.filter, message.topic, message.type, message.headers_json)


def _may_be_canceled(row: _DeferredRow) -> bool:
    return row.state is State.CANCELED or (may_move(row.state, State.CANCELED, Mover.APPLICATION) and not row.unsure)


def _heads(rows: Sequence[_DeferredRow]) -> dict[str, int]:
    """Of each key the first message that others wait for."""
    return {row.key: row.position for row in reversed(rows) if row.blocks and row.key is not None}


def _at_latest(now: float, due_at: float | None) -> float:
    return now if due_at is None else min(now, due_at)


def _may_go(row: _DeferredRow, heads: dict[str, int]) -> bool:
    return row.key is None or heads[row.key] == row.position


def _choose(
    rows: Sequence[_DeferredRow], now: float, limit: int, routes: Collection[str]
) -> tuple[list[_DeferredRow], list[_DeferredRow]]:
    """The heads that may be sent, and the messages that may be sent behind those within the limit."""
    heads = _heads(rows)
    ready = [
        row
        for row in rows
        if row.state in {State.RETRYING, State.HELD}
        and ((row.due_at is not None and row.due_at <= now) or row.route in routes)
        and _may_go(row, heads)
    ]
    ready.sort(key=lambda row: (row.due_at is None, row.due_at or 0.0, row.position))
    # A message that probes a blocked route is sent by itself: those behind it would only be deferred with it.
    sure = [head for head in ready[:limit] if head.state is State.HELD and (head.route is None or head.route in routes)]
    behind = [each for head in sure if head.key for each in _behind(rows, head)]
    return ready, sorted(behind, key=lambda row: row.position)


def _behind(rows: Sequence[_DeferredRow], head: _DeferredRow) -> list[_DeferredRow]:
    """The messages behind a head, up to the first that is due at a time of its own, or dead."""
    behind = [row for row in rows if row.key == head.key and row.blocks and row.position > head.position]
    return list(takewhile(lambda row: row.waits_in_line, behind[:FOLLOWERS]))


class _ManyLanes:
    """Several lanes at once; see `ManyLanes` for the contract."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def read(self, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit) -> Sweep:
        return self._store.sweep([lease for lease, _ in lanes], meet(cursor for _, cursor in lanes).position, limit)

    async def settle(self, asked: Sequence[Settlement]) -> Sequence[Lease | None]:
        return [
            await self._store.settle(each.lease, each.cursor, each.tally)
            if await self._store.is_current(each.lease)
            else None
            for each in asked
        ]


def _content(message: StoredMessage | NewRow) -> tuple[object, ...]:
    """What must be equal in two messages with the same id."""
    headers = message.headers_json if isinstance(message, StoredMessage) else message.headers
    source = msgspec.json.decode(headers).get("source")
    return (message.topic, message.key, message.type, bytes(message.payload), message.content_type, source)
