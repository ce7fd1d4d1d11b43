"""The convoy: one read for many lanes of a relay, and one write that settles those that ask at the same time.

Where every lane reads alone, each walks over the rows of all others, and a message costs as much as there are lanes.
In a convoy one statement, a sweep, reads the rows of many lanes, and `share_out` gives each lane its own. `grouping`
decides which lanes travel together. A lane asks for the page after its cursor, as if it read alone. Each page is one
that the lane's own read could have returned.

- A page that waits for a lane was read from where the page before it ends. It is dropped if the lane asks from
  anywhere else, and when the lane leaves.
- An error of a read, or a lane that is not as it was loaded, drops all waiting pages of all lanes: the database may
  have been put back to an earlier time. After an error each lane reads, or settles, alone: the error may be about one
  of them.
- An empty last page is given only to a lane that asked before the read began. So a lane that naps, then reads, then
  sleeps has read after its nap.
- Every lane is fenced by its own lease, in a joint write too. A lane that such a write leaves out settles alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from postroad.errors import PostroadError
from postroad.relay.grouping import FEWEST, LanePosition, gather, rows_of_sweep
from postroad.stores.base import Settlement
from postroad.stores.cursor import PageLimit, share_out
from postroad.waiting import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroad.relay.clock import Clock
    from postroad.stores.base import Lease, ManyLanes, Store, Tally
    from postroad.stores.cursor import Cursor, Page, Sweep

__all__ = ["Convoy"]

FIRST_SECONDS: Final = 1.0
"""How long the first sweep waits for lanes that are being loaded."""
CLOSING_SECONDS: Final = 1.0


class _Member:
    """A lane that has asked, and has had no empty last page since."""

    def __init__(self, lease: Lease, cursor: Cursor) -> None:
        self.lease = lease
        self.next = cursor
        """From where the next read for it begins."""
        self.pages: deque[Page] = deque()
        """What it has not asked for yet."""
        self.asking: asyncio.Future[Page] | None = None
        """It waits for a page."""
        self.alone = False
        """Its next read is one of its own."""
        self.reading = False
        """It reads alone at the moment."""

    @property
    def asks(self) -> bool:
        return self.asking is not None and not self.asking.done()

    def continues_from(self, cursor: Cursor) -> bool:
        return cursor == (self.pages[0].before if self.pages else self.next)

    def give(self, pages: Sequence[Page]) -> None:
        self.pages += pages
        if pages:
            self.next = pages[-1].after


class Convoy:
    """Reads and settles for the lanes of one relay; `read` and `settle` are those of a `Store`."""

    def __init__(self, store: Store, *, clock: Clock, fewest: int = FEWEST) -> None:
        self._store = store
        self._many = store.many
        self._clock = clock
        self._fewest = fewest
        self._lanes: set[int] = set()
        """All lanes that run, whether they have asked or not."""
        self._not_asked: set[int] = set()
        """Those that have not asked yet."""
        self._all_asked = asyncio.Event()
        self._begun = False
        self._members: dict[int, _Member] = {}
        self._cleared = 0
        self._reading: asyncio.Task[None] | None = None
        self._reading_alone: set[asyncio.Task[Page]] = set()
        """Reads of lanes that asked for a page of a sweep, and can't have one."""
        self._settling: asyncio.Task[None] | None = None
        self._settlements: list[tuple[Settlement, asyncio.Future[Lease | None]]] = []

    # -- lanes come and go -------------------------------------------------------------------------------------------

    def add(self, lane: int) -> None:
        """A lane begins to run."""
        self._lanes.add(lane)
        self._not_asked.add(lane)
        self._all_asked.clear()

    def remove(self, lane: int) -> None:
        """A lane has ended."""
        self._lanes.discard(lane)
        self.leave(lane)

    def leave(self, lane: int) -> None:
        """The lane does not go on from where it was: it is loaded again, or ends."""
        self._has_asked(lane)
        self._members.pop(lane, None)

    def clear(self) -> None:
        """Forget everything that was read, and what a read that is under way will find."""
        self._cleared += 1
        for member in self._members.values():
            if member.pages:
                member.next = member.pages[0].before
                member.pages.clear()

    async def close(self) -> None:
        """End what is under way. No lane runs any more."""
        tasks = [task for task in (self._reading, self._settling, *self._reading_alone) if task is not None]
        if tasks:
            await cancel_and_wait(*tasks, seconds=CLOSING_SECONDS)

    def _has_asked(self, lane: int) -> None:
        self._not_asked.discard(lane)
        if not self._not_asked:
            self._all_asked.set()

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> asyncio.Future[Page]:
        """Begin to read the lane's next page; see `Store.read`.

        There is a task only for a read of one lane. Many lanes have small pages, for which a task each would cost more
        than publishing does: a sweep wakes the lanes themselves.
        """
        if self._many is None or len(self._lanes) < self._fewest:
            return asyncio.create_task(self._store.read(lease, cursor, limit))
        self._has_asked(lease.lane)
        member = self._members.get(lease.lane)
        if member is None or not member.continues_from(cursor):
            member = self._members[lease.lane] = _Member(lease, cursor)
        member.lease = lease
        if not member.pages and (member.alone or member.next.catching_up):
            return self._begin_alone(member, limit)
        member.asking = asyncio.get_running_loop().create_future()
        if member.pages:
            self._give_next(member)
        elif self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._sweep_while_asked(self._many, limit), name="postroad convoy")
        return member.asking

    def _give_next(self, member: _Member) -> None:
        """Give a lane that asks the next page that waits for it."""
        if member.asking is not None:
            member.asking.set_result(page := member.pages.popleft())
            self._forget_at_end(member, page)

    def _forget_at_end(self, member: _Member, page: Page) -> None:
        if not (page.messages or page.more) and self._members.get(member.lease.lane) is member:
            del self._members[member.lease.lane]  # it has nothing to do, and may sleep for long

    def _begin_alone(self, member: _Member, limit: PageLimit) -> asyncio.Task[Page]:
        member.alone, member.reading = False, True
        return asyncio.create_task(self._read_alone(member, limit), name="postroad lane alone")

    async def _read_alone(self, member: _Member, limit: PageLimit) -> Page:
        try:
            page = await self._store.read(member.lease, member.next, limit)
        finally:
            member.reading = False
        member.next = page.after
        self._forget_at_end(member, page)
        return page

    def _read_alone_next(self, member: _Member, limit: PageLimit) -> None:
        """Begin a read of the lane's own, if it asks; otherwise its next read is one."""
        asking, member.asking = member.asking, None
        if asking is None or asking.done():
            member.alone = True
            return
        reading = self._begin_alone(member, limit)
        self._reading_alone.add(reading)
        reading.add_done_callback(self._reading_alone.discard)
        reading.add_done_callback(partial(_copy_result, asking))
        asking.add_done_callback(lambda _: reading.cancel())  # the lane may need it no more

    async def _sweep_while_asked(self, many: ManyLanes, limit: PageLimit) -> None:
        if not self._begun:
            await self._clock.wait(self._all_asked, FIRST_SECONDS)
            self._begun = True
        try:
            while asking := [member for member in self._members.values() if member.asks]:
                await self._sweep_once(many, asking, limit)
        except Exception as error:
            self.clear()
            for member in self._members.values():
                if isinstance(error, PostroadError):  # it may be about one lane: each finds out by a read of its own
                    self._read_alone_next(member, limit)
                elif member.asking is not None and not member.asking.done():
                    member.asking.set_exception(error)

    async def _sweep_once(self, many: ManyLanes, asking: Sequence[_Member], limit: PageLimit) -> None:
        """Read for the lanes that ask and are near each other, and let the others read alone."""
        positions = [
            LanePosition(lane, member.next.position, member.asks, len(member.pages))
            for lane, member in self._members.items()
            if not (member.alone or member.reading or member.next.catching_up)
        ]
        lanes = gather(positions, batch_size=limit.rows, fewest=self._fewest)
        members = [self._members[lane] for lane in lanes]
        for member in asking:
            if member not in members:
                self._read_alone_next(member, limit)
        if members:
            await self._sweep(many, members, limit)

    async def _sweep(self, many: ManyLanes, members: Sequence[_Member], limit: PageLimit) -> None:
        cleared, asked = self._cleared, [member for member in members if member.asks]
        lanes = [(member.lease, member.next) for member in members]
        rows = PageLimit(rows_of_sweep(limit.rows, len(members)), limit.payload_bytes)
        sweep = await many.read(lanes, rows)
        if cleared != self._cleared:
            return
        if changed := _changed(sweep, lanes):
            self.clear()
            for member in members:
                if member.lease.lane in changed:
                    self._read_alone_next(member, limit)  # its own read says what is wrong
            return
        slots = [(range(lease.first_slot, lease.last_slot + 1), cursor) for lease, cursor in lanes]
        for member, pages in zip(members, share_out(sweep, slots, limit=rows, page_rows=limit.rows), strict=True):
            if self._members.get(member.lease.lane) is not member:
                continue
            if pages is None:
                self._read_alone_next(member, limit)
            else:
                self._queue_pages(member, pages, asked=member in asked)

    def _queue_pages(self, member: _Member, pages: Sequence[Page], *, asked: bool) -> None:
        member.give([page for page in pages if page.messages or page.more or asked])
        if member.pages and member.asks:
            self._give_next(member)

    # -- settling ----------------------------------------------------------------------------------------------------

    async def settle(self, lease: Lease, cursor: Cursor, tally: Tally | None = None) -> Lease:
        """Save the lane's cursor; see `Store.settle`."""
        settled = None
        if self._many is not None and len(self._lanes) >= self._fewest:
            answer: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
            self._settlements.append((Settlement(lease, cursor, tally), answer))
            if self._settling is None or self._settling.done():
                self._settling = asyncio.create_task(self._settle_while_asked(self._many), name="postroad settling")
            settled = await answer
        if settled is None:
            settled = await self._store.settle(lease, cursor, tally)
        if (member := self._members.get(lease.lane)) is not None:
            member.lease = settled
        return settled

    async def _settle_while_asked(self, many: ManyLanes) -> None:
        while self._settlements:
            these, self._settlements = [each for each in self._settlements if not each[1].done()], []
            settled: Sequence[Lease | None] = [None] * len(these)
            if len(these) > 1:
                try:
                    settled = await many.settle([asked for asked, _ in these])
                except PostroadError:
                    pass  # each settles alone, and gets the error that is its own
                except Exception as error:
                    for _, answer in these:
                        if not answer.done():
                            answer.set_exception(error)
                    continue
            for (_, answer), lease in zip(these, settled, strict=True):
                if not answer.done():
                    answer.set_result(lease)


def _copy_result(asking: asyncio.Future[Page], reading: asyncio.Task[Page]) -> None:
    """Give a lane that asked the result of its own read."""
    error = None if reading.cancelled() else reading.exception()
    if asking.done():
        return
    if reading.cancelled():
        asking.cancel()
    elif error is not None:
        asking.set_exception(error)
    else:
        asking.set_result(reading.result())


def _changed(sweep: Sweep, lanes: Sequence[tuple[Lease, Cursor]]) -> Collection[int]:
    """The lanes that the sweep shows not to be as they were loaded."""
    changed = []
    for (lease, cursor), version in zip(lanes, sweep.versions, strict=True):
        try:
            lease.check_read(cursor, version, sweep.log_end)
        except PostroadError:
            changed.append(lease.lane)
    return changed
