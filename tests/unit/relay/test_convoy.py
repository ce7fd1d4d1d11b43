"""Lanes that are read for and settled together, on a log in memory: who gets what, and what is dropped when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from uuid import UUID, uuid4

import pytest

from postroad import StoreUnavailable
from postroad.errors import LaneChanged
from postroad.message import slot_of
from postroad.relay.clock import Monotonic
from postroad.relay.convoy import Convoy
from postroad.relay.grouping import QUEUED
from postroad.stores.base import Lease, ManyLanes, Settlement
from postroad.stores.cursor import Cursor, Page, PageLimit, Sweep
from postroad.stores.memory import MemoryStore
from tests.clocks import FastClock
from tests.lanes import take_lanes
from tests.logs import MemoryLog, numbered

LANES = 4
LIMIT = PageLimit(2, 1 << 20)
KEYS = [next(f"k{n}" for n in range(999) if slot_of(f"k{n}", UUID(int=0)) // 256 == lane) for lane in range(LANES)]
"""One of each lane."""


class Watched:
    """Counts what is asked for many lanes at once, lets it wait, and fails when it is told to."""

    def __init__(self, many: ManyLanes) -> None:
        self._many = many
        self.reads: list[list[int]] = []
        self.settles: list[list[int]] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: Exception | None = None

    async def read(self, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit) -> Sweep:
        self.reads.append([lease.lane for lease, _ in lanes])
        sweep = await self._many.read(lanes, limit)
        await self._pass()
        return sweep

    async def settle(self, asked: Sequence[Settlement]) -> Sequence[Lease | None]:
        self.settles.append([each.lease.lane for each in asked])
        await self._pass()
        return await self._many.settle(asked)

    async def _pass(self) -> None:
        self.began.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error


class WatchedStore(MemoryStore):
    """Counts what lanes read and settle alone, too."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = Watched(self.many)
        self.many = self.watched  # type: ignore[assignment]
        self.alone: list[int] = []
        self.settled_alone: list[int] = []

    async def read(self, lease: Lease, cursor: Cursor, limit: PageLimit) -> Page:
        self.alone.append(lease.lane)
        return await super().read(lease, cursor, limit)


class Road:
    """A convoy and its lanes, which ask one by one or all at once."""

    def __init__(self, leases: Sequence[Lease], store: WatchedStore, log: MemoryLog) -> None:
        self.leases = list(leases)
        self.cursors = [lease.cursor for lease in leases]
        self.store, self.many, self.log = store, store.watched, log
        self.convoy = Convoy(store, clock=Monotonic(), fewest=2)
        for lease in leases:
            self.convoy.add(lease.lane)

    async def ask(self, lane: int) -> list[int]:
        """The numbers of the lane's next page."""
        page = await self.convoy.read(self.leases[lane], self.cursors[lane], LIMIT)
        assert page.before == self.cursors[lane]
        self.cursors[lane] = page.after
        return [int(message.payload) for message in page.messages]

    async def ask_all(self, lanes: Iterable[int] = range(LANES)) -> list[list[int]]:
        return await asyncio.gather(*(self.ask(lane) for lane in lanes))

    async def add(self, *numbers: int) -> None:
        """Messages of which each lane gets one after the other."""
        for number in numbers:
            await self.log.add(*numbered(number, key=KEYS[number % LANES]))


@pytest.fixture
async def road() -> AsyncIterator[Road]:
    log = MemoryLog()
    store = log.store = WatchedStore()
    made = Road(sorted(await take_lanes(store, lanes=LANES), key=lambda lease: lease.lane), store, log)
    yield made
    await made.convoy.close()


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_lanes_that_ask_are_read_for_in_one_sweep(road: Road) -> None:
    await road.add(*range(8))
    assert await road.ask_all() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert (road.many.reads, road.store.alone) == ([[0, 1, 2, 3]], [])


async def test_the_first_sweep_waits_until_all_lanes_have_asked(road: Road) -> None:
    await road.add(*range(8))
    first = asyncio.create_task(road.ask(2))
    await asyncio.sleep(0.01)
    assert road.many.reads == []
    await road.ask_all([0, 1, 3])
    assert await first == [2, 6]
    assert [sorted(lanes) for lanes in road.many.reads] == [[0, 1, 2, 3]]


async def test_the_first_sweep_does_not_wait_for_long(road: Road) -> None:
    road.convoy = Convoy(road.store, clock=FastClock(), fewest=2)
    for lane in range(LANES):
        road.convoy.add(lane)
    await road.add(*range(8))
    assert await road.ask_all([1, 2]) == [[1, 5], [2, 6]], "the others have not been loaded"


async def test_a_lane_is_read_for_while_it_publishes_until_enough_waits_for_it(road: Road) -> None:
    await road.add(*range(8 * 6))
    await road.ask_all()
    for _ in range(QUEUED + 1):
        await road.ask_all([0, 1, 2])
    assert [3 in lanes for lanes in road.many.reads] == [True] * (QUEUED + 1) + [False]
    assert road.store.alone == []
    for number in range(QUEUED):
        assert await road.ask(3) == [11 + 8 * number, 15 + 8 * number], "it was read already"
    assert len(road.many.reads) == QUEUED + 2


async def test_a_lane_that_was_left_behind_comes_back(road: Road) -> None:
    await road.add(*range(8 * 12))
    seen: list[list[list[int]]] = [[] for _ in range(LANES)]
    for number in range(40):
        lanes = range(LANES) if number % 5 == 0 or number > 20 else range(LANES - 1)
        for lane, page in zip(lanes, await road.ask_all(lanes), strict=True):
            seen[lane].append(page)
    assert [[number for page in pages for number in page] for pages in seen] == [
        list(range(lane, 8 * 12, LANES)) for lane in range(LANES)
    ]
    assert sorted(road.many.reads[-1]) == [0, 1, 2, 3]


async def test_a_lane_far_behind_reads_alone(road: Road) -> None:
    await road.add(*range(200))
    road.cursors[0:3] = [Cursor(150)] * 3
    assert await road.ask_all() == [[152, 156], [153, 157], [150, 154], [3, 7]]
    assert (sorted(road.many.reads[0]), road.store.alone) == ([0, 1, 2], [3])


async def test_an_empty_part_of_a_full_sweep_is_not_the_end(road: Road) -> None:
    await road.log.add(*numbered(*range(8), key=KEYS[0]), *numbered(8, key=KEYS[3]))
    pages = await asyncio.gather(
        *(road.convoy.read(lease, cursor, LIMIT) for lease, cursor in zip(road.leases, road.cursors, strict=True))
    )
    assert [page.more for page in pages] == [True] * LANES
    assert await road.convoy.read(road.leases[3], pages[3].after, LIMIT) != pages[3]


async def test_few_lanes_read_alone(road: Road) -> None:
    await road.add(*range(8))
    for lane in (1, 2, 3):
        road.convoy.remove(lane)
    assert await road.ask(0) == [0, 4]
    assert (road.many.reads, road.store.alone) == ([], [0])


async def test_a_page_is_for_the_cursor_that_it_was_read_from(road: Road) -> None:
    await road.add(*range(8 * 3))
    await road.ask_all()
    await road.ask_all([0, 1, 2])  # and a page waits for lane 3
    road.cursors[3] = Cursor(4)  # it has published half of its page
    assert await road.ask(3) == [7, 11]


# -- the end of the log ------------------------------------------------------------------------------------------------


async def test_the_end_of_the_log_is_news_only_to_those_who_asked_before_it_was_read(road: Road) -> None:
    """A lane naps, then reads, then sleeps: what was committed before it asked must not be missing."""
    await road.add(*range(4))
    await road.ask_all()
    road.many.began.clear()
    road.many.go_on.clear()
    early = [asyncio.create_task(road.ask(lane)) for lane in (0, 1)]
    await road.many.began.wait()  # the log was read, up to its end
    await road.add(4, 5, 6, 7)
    late = [asyncio.create_task(road.ask(lane)) for lane in (2, 3)]
    await asyncio.sleep(0)
    road.many.go_on.set()
    assert await asyncio.gather(*early) == [[], []]
    assert await asyncio.gather(*late) == [[6], [7]]


async def test_an_idle_lane_is_not_read_for(road: Road) -> None:
    await road.ask_all()
    await road.add(*range(8))
    await road.ask_all([0, 1])
    assert [sorted(lanes) for lanes in road.many.reads] == [[0, 1, 2, 3], [0, 1]]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


async def test_after_an_error_everything_that_waits_is_dropped_and_each_lane_reads_alone(road: Road) -> None:
    await road.add(*range(8 * 4))
    await road.ask_all()
    await road.ask_all([0, 1, 2])  # and a page waits for lane 3
    road.many.error = StoreUnavailable("gone")
    sweeps = len(road.many.reads)
    assert await asyncio.gather(*(road.ask(lane) for lane in (0, 1, 2))) == [[16, 20], [17, 21], [18, 22]]
    assert 3 not in road.store.alone
    assert await road.ask(3) == [11, 15]
    assert 3 in road.store.alone, "the page that waited was dropped, and read again"
    road.many.error = None
    assert len(road.many.reads) <= sweeps + 1
    await road.ask_all()
    assert len(road.many.reads) > sweeps, "then they travel together again"


async def test_what_is_being_read_when_everything_is_cleared_is_dropped(road: Road) -> None:
    await road.add(*range(8))
    road.many.go_on.clear()
    asking = asyncio.create_task(road.ask_all())
    await road.many.began.wait()
    road.convoy.clear()
    road.many.go_on.set()
    assert await asking == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert len(road.many.reads) == 2


async def test_a_lane_that_another_relay_took_hears_it_and_the_others_go_on(road: Road) -> None:
    await road.add(*range(8 * 3))
    await road.ask_all()
    stolen = road.store._lanes["s", 2]
    road.store._lanes["s", 2] = Lease("s", 2, 512, 767, uuid4(), stolen.epoch + 1, stolen.version + 1, stolen.cursor)
    got = await asyncio.gather(*(road.ask(lane) for lane in range(LANES)), return_exceptions=True)
    assert [each for each in got if isinstance(each, list)] == [[8, 12], [9, 13], [11, 15]]
    assert isinstance(got[2], LaneChanged)


async def test_a_lane_that_leaves_is_read_for_no_more(road: Road) -> None:
    await road.add(*range(8 * 4))
    await road.ask_all()
    road.convoy.leave(1)
    await road.ask_all([0, 2, 3])
    assert [1 in lanes for lanes in road.many.reads] == [True, False]
    assert await road.ask(1) == [9, 13]


# -- settling ----------------------------------------------------------------------------------------------------------


async def settle(road: Road, lanes: Iterable[int]) -> list[Lease | BaseException]:
    to = [road.convoy.settle(road.leases[lane], Cursor(lane + 1)) for lane in lanes]
    return await asyncio.gather(*to, return_exceptions=True)


async def test_lanes_that_settle_at_once_are_settled_together(road: Road) -> None:
    assert await settle(road, range(LANES)) == [lease.settled(Cursor(lease.lane + 1)) for lease in road.leases]
    assert road.many.settles == [[0, 1, 2, 3]]


async def test_a_lane_that_settles_by_itself_does_so_alone(road: Road) -> None:
    assert await settle(road, [2]) == [road.leases[2].settled(Cursor(3))]
    assert road.many.settles == []


async def test_what_is_asked_meanwhile_is_settled_next(road: Road) -> None:
    road.many.go_on.clear()
    first = asyncio.create_task(settle(road, [0, 1]))
    await road.many.began.wait()
    second = asyncio.create_task(settle(road, [2, 3]))
    await asyncio.sleep(0)
    road.many.go_on.set()
    assert await first + await second == [lease.settled(Cursor(lease.lane + 1)) for lease in road.leases]
    assert road.many.settles == [[0, 1], [2, 3]]


async def test_a_changed_lane_hears_it_and_the_others_are_settled(road: Road) -> None:
    await road.store.settle(road.leases[1], Cursor(9))
    first, changed, *others = await settle(road, range(LANES))
    assert isinstance(changed, LaneChanged)
    assert [first, *others] == [road.leases[lane].settled(Cursor(lane + 1)) for lane in (0, 2, 3)]


async def test_after_an_error_of_a_joint_settle_each_lane_settles_alone(road: Road) -> None:
    road.many.error = StoreUnavailable("the server was restarted since one of the lanes was loaded")
    leases = await settle(road, range(LANES))
    assert [lease.version for lease in leases if isinstance(lease, Lease)] == [2] * LANES
