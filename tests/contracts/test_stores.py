"""The words of `Store`, tested on every store: memory, SQLite, and two versions of PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from postroad import LaneChanged, LeaseLost, Message
from postroad.message import new_id
from postroad.stores.base import Lease
from postroad.stores.cursor import PageLimit
from tests.logs import PLENTY, Log, MemoryLog, PostgreSQLLog, SQLiteLog, numbered, read_all

ALL = timedelta(0)


@pytest.fixture(params=["memory", "sqlite", "postgresql15", "postgresql18"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    log: Log
    if request.param == "memory":
        log = MemoryLog()
    elif request.param == "sqlite":
        log = SQLiteLog(tmp_path / "log.sqlite")
    else:
        log = await PostgreSQLLog.fresh(request.getfixturevalue(request.param))
    await log.store.open()
    yield log
    await log.store.close()


async def take(log: Log, lanes: int = 1, sink: str = "s", start: str = "oldest") -> list[Lease]:
    return list(await log.store.take_lanes(sink, uuid4(), lanes=lanes, start=start))  # type: ignore[arg-type]


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_committed_messages_are_read_in_order_and_rolled_back_ones_never(log: Log) -> None:
    await log.add(*numbered(1, 2))
    await log.add_in_vain(*numbered(3))
    await log.add(*numbered(4))
    (lane,) = await take(log)
    assert await read_all(log.store, lane) == [1, 2, 4]


async def test_a_message_comes_back_as_it_was_added(log: Log) -> None:
    id = new_id()
    await log.add(
        Message(b"\x00\xff", type="a.b", topic="t", key="Schlüssel 🚚", id=id, headers={"x": "ü"},
                correlation_id="c", causation_id="b")
    )  # fmt: skip
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    (message,) = page.messages
    assert (message.id, message.type, message.topic, message.key) == (id, "a.b", "t", "Schlüssel 🚚")
    assert (message.payload, message.content_type) == (b"\x00\xff", "application/octet-stream")
    assert message.headers == {"x": "ü"}
    assert (message.source, message.correlation_id, message.causation_id) == ("/tests", "c", "b")
    assert abs(datetime.now(UTC) - message.created_at) < timedelta(hours=1)


async def test_adding_an_id_again_is_a_no_op(log: Log) -> None:
    id = new_id()
    await log.add(Message("1", type="t", id=id))
    await log.add(Message("2", type="t", id=id), Message("3", type="t", id=new_id()))
    (lane,) = await take(log)
    assert await read_all(log.store, lane) == [1, 3]


async def test_reading_changes_nothing(log: Log) -> None:
    await log.add(*numbered(1, 2, 3))
    (lane,) = await take(log)
    first = await log.store.read(lane, lane.cursor, PLENTY)
    again = await log.store.read(lane, lane.cursor, PLENTY)
    assert first.messages == again.messages
    assert (await log.store.load(lane)) == lane


async def test_lanes_share_the_log_without_gap_or_overlap(log: Log) -> None:
    await log.add(*numbered(*range(200)))
    lanes = await take(log, lanes=3)
    assert [lane.lane for lane in lanes] == [0, 1, 2]
    assert lanes[0].first_slot == 0
    assert lanes[-1].last_slot == 1023
    assert all(left.last_slot + 1 == right.first_slot for left, right in pairwise(lanes))
    seen = [await read_all(log.store, lane) for lane in lanes]
    assert all(seen)
    assert sorted(chain.from_iterable(seen)) == list(range(200))


async def test_a_page_ends_by_count(log: Log) -> None:
    await log.add(*numbered(1, 2, 3))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PageLimit(rows=2, payload_bytes=1 << 20))
    assert [message.payload for message in page.messages] == [b"1", b"2"]
    assert await read_all(log.store, lane, PageLimit(rows=1, payload_bytes=1 << 20)) == [1, 2, 3]


async def test_a_page_ends_with_the_message_that_reaches_its_bytes(log: Log) -> None:
    await log.add(*(Message(b"x" * size, type="t", key="k") for size in (4, 5, 6, 200, 1)))
    (lane,) = await take(log)
    sizes, cursor = [], lane.cursor
    for _ in range(4):
        page = await log.store.read(lane, cursor, PageLimit(rows=10, payload_bytes=10))
        sizes.append([len(message.payload) for message in page.messages])
        cursor = page.after
    assert sizes == [[4, 5, 6], [200], [1], []]


async def test_a_quiet_lane_comes_as_far_as_the_log(log: Log) -> None:
    await log.add(*numbered(*range(20), key="the same"))
    lanes = await take(log, lanes=8)
    pages = [await log.store.read(lane, lane.cursor, PLENTY) for lane in lanes]
    assert sorted(len(page.messages) for page in pages) == [0] * 7 + [20]
    assert len({page.after.position for page in pages}) == 1


# -- the fence -------------------------------------------------------------------------------------------------------


async def test_a_settled_cursor_is_what_is_loaded_next(log: Log) -> None:
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    settled = await log.store.settle(lane, page.after)
    assert settled.version > lane.version
    assert await log.store.load(lane) == settled
    assert settled.cursor == page.after


async def test_a_settle_that_is_out_of_date_changes_nothing(log: Log) -> None:
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PageLimit(1, 1000))
    settled = await log.store.settle(lane, page.after)
    with pytest.raises(LaneChanged, match="no longer at version"):
        await log.store.settle(lane, lane.cursor)
    assert await log.store.load(lane) == settled


async def test_who_takes_a_lane_shuts_out_who_had_it(log: Log) -> None:
    await log.add(*numbered(1))
    (old,) = await take(log)
    (new,) = await take(log)
    assert new.epoch > old.epoch
    with pytest.raises(LaneChanged):
        await log.store.settle(old, old.cursor)
    with pytest.raises(LeaseLost, match="taken by another relay"):
        await log.store.load(old)
    assert await log.store.load(new) == new


async def test_taking_ones_own_lanes_again_raises_the_epoch(log: Log) -> None:
    owner = uuid4()
    (first,) = await log.store.take_lanes("s", owner, lanes=1, start="oldest")
    (second,) = await log.store.take_lanes("s", owner, lanes=1, start="oldest")
    assert second.epoch > first.epoch
    with pytest.raises(LaneChanged):
        await log.store.settle(first, first.cursor)


async def test_the_number_of_lanes_is_fixed_when_the_sink_is_created(log: Log) -> None:
    await take(log, lanes=3)
    assert len(await take(log, lanes=5)) == 3
    assert len(await take(log, lanes=5, sink="another")) == 5


# -- beginning -------------------------------------------------------------------------------------------------------


async def test_a_new_sink_begins_at_the_oldest_or_at_now(log: Log) -> None:
    await log.add(*numbered(1))
    (oldest,) = await take(log, sink="oldest", start="oldest")
    (now,) = await take(log, sink="now", start="now")
    await log.add(*numbered(2))
    assert await read_all(log.store, oldest) == [1, 2]
    assert await read_all(log.store, now) == [2]


# -- retention -------------------------------------------------------------------------------------------------------


async def clean(log: Log, older_than: timedelta = ALL, batch: int = 1000) -> int:
    return (await log.store.delete_passed(after=0, older_than=older_than, batch=batch)).deleted


async def test_nothing_is_deleted_before_every_sink_has_had_it(log: Log) -> None:
    await log.add(*numbered(*range(10)))
    assert await clean(log) == 0, "no sink has passed anything yet"
    one, two = await take(log, lanes=2, sink="first")
    (other,) = await take(log, sink="second")
    first_half = await read_all(log.store, one)
    assert await clean(log) == 0, "the second sink has passed nothing"
    assert sorted(await read_all(log.store, other)) == list(range(10))
    assert await clean(log) == len(first_half), "the first sink's other lane has passed nothing"
    await read_all(log.store, two)
    assert await clean(log) == 10 - len(first_half)


async def test_what_is_young_stays(log: Log) -> None:
    await log.add(*numbered(1, 2))
    await log.make_older(timedelta(hours=2))
    await log.add(*numbered(3))
    (lane,) = await take(log)
    await read_all(log.store, lane)
    assert await clean(log, older_than=timedelta(hours=3)) == 0
    assert await clean(log, older_than=timedelta(hours=1)) == 2
    assert await clean(log) == 1


async def test_age_alone_never_deletes(log: Log) -> None:
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    await log.make_older(timedelta(days=400))
    assert await clean(log, older_than=timedelta(days=1)) == 0
    assert await read_all(log.store, lane) == [1, 2]


async def test_batches_walk_the_log(log: Log) -> None:
    await log.add(*numbered(*range(7)))
    (lane,) = await take(log)
    await read_all(log.store, lane)
    first = await log.store.delete_passed(after=0, older_than=ALL, batch=5)
    assert (first.deleted, first.more) == (5, True)
    second = await log.store.delete_passed(after=first.through, older_than=ALL, batch=5)
    assert second.deleted == 2
    third = await log.store.delete_passed(after=second.through, older_than=ALL, batch=5)
    assert (third.deleted, third.more, third.through) == (0, False, second.through)


async def test_positions_are_never_used_again(log: Log) -> None:
    await log.add(*numbered(1, 2, 3))
    (lane,) = await take(log)
    await read_all(log.store, lane)
    assert await clean(log) == 3
    lane = await log.store.load(lane)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    assert page.after.position >= lane.cursor.position, "the log is empty, and the cursor does not fall"
    await log.store.settle(lane, page.after)
    await log.add(*numbered(4))
    assert await read_all(log.store, await log.store.load(lane)) == [4]


# -- status ----------------------------------------------------------------------------------------------------------


async def test_status_says_what_waits_and_for_how_long(log: Log) -> None:
    assert list(await log.store.status()) == []
    await log.add(*numbered(1, 2, 3))
    await log.make_older(timedelta(minutes=10))
    (lane,) = await take(log)
    (waiting,) = await log.store.status()
    assert (waiting.sink, waiting.lane, waiting.pending, waiting.owner) == ("s", 0, 3, lane.owner)
    assert waiting.lag_seconds >= 600
    await read_all(log.store, lane)
    (done,) = await log.store.status()
    assert (done.pending, done.lag_seconds) == (0, 0)


async def test_two_stores_see_the_same_log(log: Log) -> None:
    other = log.another_store()
    await other.open()
    (lane,) = await take(log)
    await log.add(*numbered(1))
    assert await read_all(other, await other.load(lane)) == [1]
    with pytest.raises(LaneChanged):
        await log.store.settle(lane, lane.cursor)
    await other.close()
