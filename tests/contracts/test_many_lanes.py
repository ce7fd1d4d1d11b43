"""The contract of reading and settling several lanes at once, on every store that can."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroad import StoreUnavailable
from postroad.errors import LaneChanged, LogReset
from postroad.message import SLOTS, slot_of
from postroad.stores.base import Lease, ManyLanes, Settlement, Tally
from postroad.stores.cursor import Cursor, Page, PageLimit, share_out
from postroad.stores.postgresql import PostgreSQLStore
from postroad.stores.postgresql_many import _values
from tests.contracts.test_postgresql import rows_looked_at
from tests.lanes import take_lanes
from tests.logs import OUTBOX, PLENTY, Log, PostgreSQLLog, log_fixture, numbered
from tests.services.postgresql import PostgreSQL

LANES = 4
ANY = UUID(int=0)
log = log_fixture("memory", "postgresql15", "postgresql18", opened=True)
pg_log = log_fixture("postgresql", opened=True)


async def take(log: Log, lanes: int = LANES) -> list[Lease]:
    return sorted(await take_lanes(log.store, "s", uuid4(), lanes=lanes), key=lambda lease: lease.lane)


def many(log: Log) -> ManyLanes:
    assert log.store.many is not None
    return log.store.many


async def sweep(
    log: Log, lanes: Sequence[tuple[Lease, Cursor]], limit: PageLimit = PLENTY, page_rows: int = 1000
) -> list[Page]:
    """The pages of one sweep, of which each lane gets one."""
    found = await many(log).read(lanes, limit)
    for (lease, cursor), version in zip(lanes, found.versions, strict=True):
        lease.check_read(cursor, version, found.log_end)
    slots = [(range(lease.first_slot, lease.last_slot + 1), cursor) for lease, cursor in lanes]
    portions = share_out(found, slots, limit=limit, page_rows=page_rows)
    pages = [portion[0] for portion in portions if portion]
    assert len(pages) == len(lanes)
    return pages


def at_their_cursors(leases: Sequence[Lease]) -> list[tuple[Lease, Cursor]]:
    return [(lease, lease.cursor) for lease in leases]


def numbers(pages: Sequence[Page]) -> list[int]:
    return sorted(int(message.payload) for page in pages for message in page.messages)


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_each_lane_gets_what_a_read_of_its_own_returns(log: Log) -> None:
    leases = await take(log)
    await log.add(*numbered(*range(200)))
    pages = await sweep(log, at_their_cursors(leases))
    alone = [await log.store.read(lease, lease.cursor, PLENTY) for lease in leases]
    assert [page.messages for page in pages] == [page.messages for page in alone]
    assert all(page.messages for page in pages)
    assert [page.version for page in pages] == [page.version for page in alone]
    assert [page.after.position for page in pages] == [page.after.position for page in alone]
    assert len({page.after for page in pages}) == 1, "all of them end at the same place"


async def test_lanes_that_are_not_neighbours(log: Log) -> None:
    leases = await take(log)
    await log.add(*numbered(*range(200)))
    first, _, third, last = leases
    for some in ([first, third], [third, last], [last], [last, first]):
        pages = await sweep(log, at_their_cursors(some))
        alone = [await log.store.read(lease, lease.cursor, PLENTY) for lease in some]
        assert [page.messages for page in pages] == [page.messages for page in alone]


async def test_every_slot_has_its_bit(log: Log) -> None:
    leases = await take(log, 64)
    keys = {slot_of(f"k{number}", ANY): f"k{number}" for number in range(20_000)}
    assert len(keys) == SLOTS
    await log.add(*[message for slot, key in sorted(keys.items()) for message in numbered(slot, key=key)])
    pages = await sweep(log, at_their_cursors(leases), PageLimit(2000, 1 << 30))
    assert [[each.slot for each in page.messages] for page in pages] == [
        list(range(lease.first_slot, lease.last_slot + 1)) for lease in leases
    ]


async def test_lanes_at_different_places_get_each_row_once(log: Log) -> None:
    leases = await take(log)
    await log.add(*numbered(*range(50)))
    ahead = await log.store.read(leases[0], leases[0].cursor, PLENTY)
    await log.add(*numbered(*range(50, 100)))
    further = await log.store.read(leases[1], leases[1].cursor, PLENTY)
    lanes = [(leases[0], ahead.after), (leases[1], further.after), *at_their_cursors(leases[2:])]
    pages = await sweep(log, lanes)
    assert numbers([*pages, ahead, further]) == list(range(100))
    assert not pages[1].messages
    assert [page.before for page in pages] == [cursor for _, cursor in lanes]


async def test_a_full_sweep_ends_where_its_last_row_is(log: Log) -> None:
    leases = await take(log)
    await log.add(*numbered(*range(20)))
    lanes, seen = at_their_cursors(leases), list[Page]()
    for _ in range(2):
        pages = await sweep(log, lanes, PageLimit(10, 1 << 30))
        assert all(page.more for page in pages)
        seen += pages
        lanes = [(lease, page.after) for lease, page in zip(leases, pages, strict=True)]
    assert numbers(seen) == list(range(20))
    assert not any(page.messages or page.more for page in await sweep(log, lanes, PageLimit(10, 1 << 30)))


@pytest.mark.parametrize("apart", [False, True])
async def test_a_sweep_keeps_to_its_bytes(log: Log, apart: bool) -> None:
    leases = await take(log)
    await log.add(*numbered(*range(20)))
    lanes, first = at_their_cursors(leases), list(range(20))
    if apart:
        page = await log.store.read(leases[0], leases[0].cursor, PLENTY)
        lanes[0] = (leases[0], page.after)
        first = sorted(set(first) - set(numbers([page])))
    large = [number * 10**2000 for number in range(1, 10)]
    await log.add(*[message for number in large for message in numbered(number, key=f"k{number // 10**2000}")])
    limit, seen = PageLimit(1000, 5000), list[Page]()
    for _ in range(3):
        found = await many(log).read(lanes, limit)
        assert sum(message.size for message in found.messages) >= limit.payload_bytes
        assert sum(message.size for message in found.messages[:-1]) < limit.payload_bytes
        assert not any(message.is_unread for message in found.messages)
        pages = await sweep(log, lanes, limit)
        assert all(page.more for page in pages)
        seen += pages
        lanes = [(lease, page.after) for lease, page in zip(leases, pages, strict=True)]
    last = await sweep(log, lanes, limit)
    assert not any(page.messages or page.more for page in last)
    assert numbers(seen) == sorted([*first, *large])


async def test_a_lane_of_another_owner_has_no_version_and_the_others_have_theirs(log: Log) -> None:
    leases = await take(log)
    await take_lanes(log.store, "s", uuid4(), lanes=LANES)  # another relay owns all of them now
    (mine,) = [lease for lease in await take(log) if lease.lane == 2]
    others = [lease for lease in leases if lease.lane != 2]
    found = await many(log).read(at_their_cursors([mine, *[_of(mine, lease) for lease in others]]), PLENTY)
    assert found.versions == [mine.version, None, None, None]


def _of(mine: Lease, lease: Lease) -> Lease:
    """An old lease, with the owner that all leases of a relay have."""
    return Lease(
        lease.sink, lease.lane, lease.first_slot, lease.last_slot, mine.owner, lease.epoch, lease.version, lease.cursor
    )


async def test_a_lane_that_was_written_shows_it(log: Log) -> None:
    leases = await take(log)
    settled = await log.store.settle(leases[1], leases[1].cursor)
    found = await many(log).read(at_their_cursors(leases), PLENTY)
    assert found.versions == [leases[0].version, settled.version, leases[2].version, leases[3].version]


# -- reading, where transactions commit in any order -------------------------------------------------------------------


async def test_late_rows_come_first_and_once(pg_log: PostgreSQLLog, connect_pg: Any) -> None:
    """The lanes have read at different times: rows of one transaction are late for some, and dealt with by others."""
    log, leases = pg_log, await take(pg_log)
    slow, fast = await connect_pg(), await connect_pg()
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(*range(40)))
    async with fast.transaction():
        await OUTBOX.add_many(fast, numbered(*range(40, 80)))
    seen = [await log.store.read(lease, lease.cursor, PLENTY) for lease in leases[:2]]
    await transaction.commit()
    seen += [await log.store.read(lease, lease.cursor, PLENTY) for lease in leases[2:]]
    async with fast.transaction():
        await OUTBOX.add_many(fast, numbered(*range(80, 120)))
    pages = await sweep(log, [(lease, page.after) for lease, page in zip(leases, seen, strict=True)])
    assert numbers([*seen, *pages]) == list(range(120))
    assert all(page.messages for page in pages)
    for page in pages:
        assert [each.position for each in page.messages] == sorted(each.position for each in page.messages)
    assert not any(page.messages for page in await sweep(log, [(lease, pages[0].after) for lease in leases]))


async def test_more_late_rows_than_fit_are_left_to_each_lane(pg_log: PostgreSQLLog, connect_pg: Any) -> None:
    log, leases = pg_log, await take(pg_log)
    slow = await connect_pg()
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(*range(40)))
    await log.add(*numbered(40))
    cursor = (await sweep(log, at_their_cursors(leases)))[0].after
    await transaction.commit()
    slots = [(range(lease.first_slot, lease.last_slot + 1), cursor) for lease in leases]
    limit = PageLimit(30, 1 << 30)
    found = await many(log).read([(lease, cursor) for lease in leases], limit)
    assert share_out(found, slots, limit=limit, page_rows=30) == [None] * LANES
    limit = PageLimit(41, 1 << 30)
    found = await many(log).read([(lease, cursor) for lease in leases], limit)
    assert None not in share_out(found, slots, limit=limit, page_rows=30)


async def test_a_log_emptied_by_retention_ends_where_the_furthest_lane_is(pg_log: PostgreSQLLog) -> None:
    """Not where the last row is, nor where the last lane is: that would look like a database that was put back."""
    log, leases = pg_log, await take(pg_log)
    await log.add(*numbered(*range(20)))
    pages = await sweep(log, at_their_cursors(leases))
    settled = await many(log).settle([Settlement(lease, page.after) for lease, page in zip(leases, pages, strict=True)])
    await log.make_older(timedelta(days=1))
    await log.store.delete_passed(after=0, older_than=timedelta(0), batch=100)
    lanes = [(lease, lease.cursor) for lease in settled if lease]
    lanes[0] = (lanes[0][0], Cursor(5, lanes[0][1].snapshot))
    assert [page.after.position for page in await sweep(log, lanes)] == [20] * LANES


async def test_a_log_that_ends_before_a_lane_was_put_back(pg_log: PostgreSQLLog) -> None:
    log, leases = pg_log, await take(pg_log)
    await log.add(*numbered(1))
    lanes = at_their_cursors(leases)
    lanes[2] = (leases[2], Cursor(7, leases[2].cursor.snapshot))
    found = await many(log).read(lanes, PLENTY)
    leases[1].check_read(leases[1].cursor, found.versions[1], found.log_end)
    with pytest.raises(LaneChanged, match="put back"):
        leases[2].check_read(lanes[2][1], found.versions[2], found.log_end)
    saved = _saved_at(leases[2], lanes[2][1])
    with pytest.raises(LogReset):
        saved.check_read(saved.cursor, found.versions[2], found.log_end)


def _saved_at(lease: Lease, cursor: Cursor) -> Lease:
    return Lease(
        lease.sink, lease.lane, lease.first_slot, lease.last_slot, lease.owner, lease.epoch, lease.version, cursor
    )


@pytest.mark.parametrize("apart", [False, True])
async def test_a_sweep_looks_at_its_own_rows_only(pg_log: PostgreSQLLog, connect_pg: Any, apart: bool) -> None:
    """Also the first one after an absence, when all rows are newer than the cursors' snapshots, and one is late."""
    log, leases = pg_log, await take(pg_log)
    connection, slow = await connect_pg(), await connect_pg()
    transaction = slow.transaction()
    await transaction.start()
    await OUTBOX.add_many(slow, numbered(1))
    await log.add(*numbered(2))
    pages = await sweep(log, at_their_cursors(leases))
    settled = await many(log).settle([Settlement(each, page.after) for each, page in zip(leases, pages, strict=True)])
    leases = [(await log.store.load(lease)).lease for lease in settled if lease]
    cursors = [lease.cursor for lease in leases]
    if apart:
        cursors[2] = (await log.store.read(leases[2], cursors[2], PLENTY)).after
    await transaction.commit()
    for _ in range(40):
        await connection.execute(
            "insert into postroad.outbox (id, topic, slot, type, payload, content_type, headers) "
            "select gen_random_uuid(), 't', i % 1024, 't', '', 'c', '{}' from generate_series(1, 500) i"
        )
    await connection.execute("analyze postroad.outbox")
    store = log.store
    assert isinstance(store, PostgreSQLStore)
    await store._prepare(connection)
    values = _values(leases, cursors)(100, 999)
    for query in ("read_many", "read_many_apart"):
        plan = await connection.fetchval(f"explain (analyze, format json) {store._sql[query]}", *values)
        assert rows_looked_at(json.loads(plan)[0]["Plan"]) < 500, "20,000 rows were added, and 100 are read"
    pages = await sweep(log, list(zip(leases, cursors, strict=True)), PageLimit(100, 1 << 20))
    assert sum(len(page.messages) for page in pages) == 101
    assert sum(message.payload == b"1" for page in pages for message in page.messages) == 1


# -- settling ----------------------------------------------------------------------------------------------------------


async def test_lanes_are_settled_together(log: Log) -> None:
    leases = await take(log)
    await log.add(*numbered(*range(50)))
    pages = await sweep(log, at_their_cursors(leases))
    asked = [Settlement(lease, page.after) for lease, page in zip(leases, pages, strict=True)]
    settled = await many(log).settle(asked)
    assert settled == [lease.settled(page.after) for lease, page in zip(leases, pages, strict=True)]
    for lease in settled:
        assert lease is not None
        assert await log.store.is_current(lease)
        assert (await log.store.load(lease)).lease.cursor == lease.cursor


async def test_a_cursor_that_is_catching_up_is_settled_whole(pg_log: PostgreSQLLog) -> None:
    leases = await take(pg_log)
    snapshot = leases[0].cursor.snapshot
    moved = [Cursor(3, snapshot, 2, snapshot), Cursor(4, snapshot)]
    settled = await many(pg_log).settle([Settlement(*each) for each in zip(leases[:2], moved, strict=True)])
    assert [(await pg_log.store.load(lease)).lease.cursor for lease in settled if lease] == moved


@pytest.mark.parametrize("wrong", ["version", "epoch"])
async def test_each_lane_has_its_own_fence(log: Log, wrong: str) -> None:
    """One that has changed is not settled, and keeps no other from it."""
    leases = await take(log)
    await log.add(*numbered(*range(50)))
    pages = await sweep(log, at_their_cursors(leases))
    if wrong == "version":  # what the lane's row has now is what another lane asks with
        changed = await log.store.settle(leases[1], leases[1].cursor)
        leases[0] = await log.store.settle(leases[0], leases[0].cursor)
    else:
        changed = leases[1]
        leases[1] = _with_epoch(leases[1], leases[1].epoch - 1)
    asked = [Settlement(lease, page.after, Tally(1, 0)) for lease, page in zip(leases, pages, strict=True)]
    settled = await many(log).settle(asked)
    assert [lease is not None for lease in settled] == [True, False, True, True]
    assert await log.store.is_current(changed)
    assert (await log.store.load(changed)).lease.cursor == changed.cursor


def _with_epoch(lease: Lease, epoch: int) -> Lease:
    return Lease(
        lease.sink, lease.lane, lease.first_slot, lease.last_slot, lease.owner, epoch, lease.version, lease.cursor
    )


async def test_a_locked_lane_is_left_out_and_not_waited_for(pg_log: PostgreSQLLog, connect_pg: Any) -> None:
    leases = await take(pg_log)
    other = await connect_pg()
    async with other.transaction():
        await other.execute("select from postroad.lanes where lane = 2 for update")
        settled = await many(pg_log).settle([Settlement(lease, lease.cursor) for lease in leases])
        assert [lease is not None for lease in settled] == [True, True, False, True]
    assert (await pg_log.store.settle(leases[2], leases[2].cursor)).version == leases[2].version + 1


async def test_tallies_are_saved_with_the_cursors(pg_log: PostgreSQLLog) -> None:
    leases = await take(pg_log)
    await pg_log.execute("delete from postroad.progress")
    tallies = [Tally(3, 1), None, Tally(0, 2), None]
    moved = Cursor(7, leases[0].cursor.snapshot)
    await many(pg_log).settle([Settlement(lease, moved, tally) for lease, tally in zip(leases, tallies, strict=True)])
    rows = await pg_log.execute("select lane, position, published, refused from postroad.progress order by lane")
    assert [tuple(row) for row in rows] == [(0, 7, 3, 1), (2, 7, 0, 2)]


async def test_lanes_from_before_a_restart_are_neither_read_nor_settled(postgresql15: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    await log.store.open()
    leases = await take(log)
    postgresql15.restart()
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreUnavailable):  # a connection from before
                leases[0] = (await log.store.load(leases[0])).lease
                break
    with pytest.raises(StoreUnavailable, match="restarted since"):
        await many(log).read(at_their_cursors(leases), PLENTY)
    with pytest.raises(StoreUnavailable, match="restarted since"):
        await many(log).settle([Settlement(lease, lease.cursor) for lease in leases])
    await log.close()


@pytest.fixture
def connect_pg(pg_log: PostgreSQLLog) -> Any:
    return pg_log.connect
