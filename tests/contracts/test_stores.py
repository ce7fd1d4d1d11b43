"""The words of `Store`, tested on every store: memory, SQLite, and two versions of PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from postroad import IdTaken, Message
from postroad.errors import LaneChanged, LeaseLost
from postroad.lifecycle import BLOCKING, FINAL, STORED, Mover, State, may_move
from postroad.message import new_id
from postroad.stores.base import FOLLOWERS, Claim, Deferred, Lease
from postroad.stores.cursor import Cursor, PageLimit
from tests.lanes import take_lanes
from tests.logs import PLENTY, Log, log_fixture, numbered, read_all

ALL = timedelta(0)


log = log_fixture("memory", "sqlite", "postgresql15", "postgresql18", opened=True)


async def take(log: Log, lanes: int = 1, sink: str = "s", start: str = "oldest") -> list[Lease]:
    return list(await take_lanes(log.store, sink, uuid4(), lanes=lanes, start=start))  # type: ignore[arg-type]


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_committed_messages_are_read_in_order_and_rolled_back_ones_never(log: Log) -> None:
    await log.add(*numbered(1, 2))
    await log.add_and_roll_back(*numbered(3))
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


async def test_adding_a_message_again_is_a_no_op_and_another_one_with_its_id_is_refused(log: Log) -> None:
    id = new_id()
    await log.add(Message("1", type="t", id=id))
    await log.add(Message("1", type="t", id=id), Message("3", type="t", id=new_id()))
    with pytest.raises(IdTaken):
        await log.add(Message("2", type="t", id=id))
    (lane,) = await take(log)
    assert await read_all(log.store, lane) == [1, 3]


async def test_reading_changes_nothing(log: Log) -> None:
    await log.add(*numbered(1, 2, 3))
    (lane,) = await take(log)
    first = await log.store.read(lane, lane.cursor, PLENTY)
    again = await log.store.read(lane, lane.cursor, PLENTY)
    assert first.messages == again.messages
    assert (await log.store.load(lane)).lease.cursor == lane.cursor


async def test_a_page_is_read_only_for_the_owner_and_its_epoch(log: Log) -> None:
    await log.add(*numbered(1))
    (lane,) = await take(log)
    await take(log)
    with pytest.raises(LaneChanged, match="is not this relay's as it was loaded"):
        await log.store.read(lane, lane.cursor, PLENTY)


async def test_a_lane_that_is_older_than_its_lease_is_not_read(log: Log) -> None:
    """The database was put back: what the owner remembers of its cursor is from another history."""
    await log.add(*numbered(1))
    (lane,) = await take(log)
    remembered = lane.settled(lane.cursor)
    with pytest.raises(LaneChanged, match="put back to an earlier time"):
        await log.store.read(remembered, remembered.cursor, PLENTY)


async def test_a_log_that_ends_before_the_cursor_is_not_read(log: Log) -> None:
    await log.add(*numbered(1))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    beyond = msgspec.structs.replace(page.after, position=page.after.position + 1)
    with pytest.raises(LaneChanged, match="put back to an earlier time"):
        await log.store.read(lane, beyond, PLENTY)


async def test_a_log_that_retention_has_emptied_is_read_on(log: Log) -> None:
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    lane = await log.store.settle(lane, page.after)
    await log.make_older(timedelta(hours=1))
    assert (await log.store.delete_passed(after=0, older_than=ALL, batch=10)).deleted == 2
    page = await log.store.read(lane, lane.cursor, PLENTY)
    assert (page.messages, page.after.position) == ([], lane.cursor.position)


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
        page = await log.store.read(lane, cursor, PageLimit(rows=10, payload_bytes=60))  # 19 of each are headers
        sizes.append([len(message.payload) for message in page.messages])
        cursor = page.after
    assert sizes == [[4, 5, 6], [200], [1], []]


async def test_a_page_counts_headers_in_characters_and_loses_nothing(log: Log) -> None:
    """A database and a relay that counted differently would disagree about whether a page was cut short."""
    await log.add(*(numbered(each, headers={"a": "ä€😀" * 1000})[0] for each in range(10)))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PageLimit(rows=100, payload_bytes=8_000))
    assert [message.payload for message in page.messages] == [b"0", b"1", b"2"]
    assert await read_all(log.store, lane, PageLimit(rows=100, payload_bytes=8_000)) == list(range(10))


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
    assert (await log.store.load(lane)).lease.cursor == settled.cursor == page.after


async def test_a_settle_that_is_out_of_date_changes_nothing(log: Log) -> None:
    await log.add(*numbered(1, 2))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PageLimit(1, 1000))
    settled = await log.store.settle(lane, page.after)
    with pytest.raises(LaneChanged, match="no longer at version"):
        await log.store.settle(lane, lane.cursor)
    assert (await log.store.load(lane)).lease.cursor == settled.cursor


async def test_loading_is_a_write_that_shuts_out_what_was_known_before(log: Log) -> None:
    (lane,) = await take(log)
    loaded = (await log.store.load(lane)).lease
    with pytest.raises(LaneChanged):
        await log.store.settle(lane, lane.cursor)
    assert (await log.store.settle(loaded, lane.cursor)).version > loaded.version > lane.version


async def test_taking_a_lane_fences_its_former_owner(log: Log) -> None:
    await log.add(*numbered(1))
    (old,) = await take(log)
    (new,) = await take(log)
    assert new.epoch > old.epoch
    with pytest.raises(LaneChanged):
        await log.store.settle(old, old.cursor)
    with pytest.raises(LeaseLost, match="taken by another relay"):
        await log.store.load(old)
    assert (await log.store.load(new)).lease.owner == new.owner


async def test_taking_ones_own_lanes_again_raises_the_epoch(log: Log) -> None:
    owner = uuid4()
    (first,) = await take_lanes(log.store, "s", owner, lanes=1, start="oldest")
    (second,) = await take_lanes(log.store, "s", owner, lanes=1, start="oldest")
    assert second.epoch > first.epoch
    with pytest.raises(LaneChanged):
        await log.store.settle(first, first.cursor)
    with pytest.raises(LeaseLost):
        await log.store.load(first)


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
    lane = (await log.store.load(lane)).lease
    page = await log.store.read(lane, lane.cursor, PLENTY)
    assert page.after.position >= lane.cursor.position, "the log is empty, and the cursor does not fall"
    await log.store.settle(lane, page.after)
    await log.add(*numbered(4))
    assert await read_all(log.store, (await log.store.load(lane)).lease) == [4]


@pytest.mark.parametrize("state", STORED)
async def test_what_is_in_trouble_stays_and_what_is_over_goes_with_its_message(log: Log, state: State) -> None:
    lane = await lane_with(log, 3)
    due_in = 0.0 if state is State.RETRYING else None
    blocks = state in {State.RETRYING, State.HELD}
    first = Deferred(1, None, State.RETRYING, 1, 0.0, error="no", counted=True)
    if state is State.SENDING:
        lane = (await log.store.record(lane, lane.cursor, deferred=[first])).lease
        await log.store.claim(lane, 1)
    else:
        lane = (await log.store.record(lane, lane.cursor, deferred=[first])).lease
        await log.store.record(lane, lane.cursor, deferred=[Deferred(1, None, state, 1, due_in, blocks=blocks)])
    over = state in FINAL
    assert await clean(log) == (3 if over else 2)
    assert [row.state for row in await log.deferred()] == ([] if over else [state])
    assert [each.position for each in await log.attempts()] == ([] if over else [1])


async def test_what_is_published_leaves_its_history_until_it_is_deleted_itself(log: Log) -> None:
    lane = await lane_with(log, 2)
    lane = (await log.store.record(lane, lane.cursor, deferred=[retrying(1), retrying(2, key="b")])).lease
    await log.store.record(lane, lane.cursor, published=[1])
    assert [each.position for each in await log.attempts()] == [1, 2]
    assert await clean(log) == 1
    assert [each.position for each in await log.attempts()] == [2]


async def test_another_sinks_trouble_keeps_a_message_too(log: Log) -> None:
    lane = await lane_with(log, 1)
    (other,) = await take(log, sink="other")
    await read_all(log.store, other)
    await log.store.record(lane, lane.cursor, deferred=[Deferred(1, None, State.DEAD, blocks=False)])
    assert await clean(log) == 0


async def test_two_stores_see_the_same_log(log: Log) -> None:
    other = log.another_store()
    await other.open()
    (lane,) = await take(log)
    await log.add(*numbered(1))
    assert await read_all(other, (await other.load(lane)).lease) == [1]
    with pytest.raises(LaneChanged):
        await log.store.settle(lane, lane.cursor)
    await other.close()


# -- deferred messages -----------------------------------------------------------------------------------------------


def held(position: int, key: str | None = "k", **fields: Any) -> Deferred:
    return Deferred(position, key, State.HELD, **fields)


def retrying(position: int, due_in: float = 0.0, key: str | None = "k", attempts: int = 1) -> Deferred:
    return Deferred(position, key, State.RETRYING, attempts, due_in, error=f"no {position}", counted=True)


def dead(position: int, *, blocks: bool, key: str | None = "k") -> Deferred:
    return Deferred(position, key, State.DEAD, 5, error="never", blocks=blocks, counted=True)


async def lane_with(log: Log, messages: int, *deferred: Deferred, sink: str = "s") -> Lease:
    """A lane that has passed messages at 1, 2, 3 …, some of which are deferred."""
    await log.add(*numbered(*range(1, messages + 1)))
    (lane,) = await take(log, sink=sink)
    page = await log.store.read(lane, lane.cursor, PageLimit(100_000, 1 << 30))
    assert [message.position for message in page.messages] == list(range(1, messages + 1))
    return (await log.store.record(lane, page.after, deferred=deferred)).lease


def positions(claim: Claim) -> list[int]:
    return [each.message.position for each in claim.claimed]


async def due(log: Log) -> list[int]:
    return [row.position for row in await log.deferred() if row.due]


# -- recording deferred messages -------------------------------------------------------------------------------------


async def test_a_record_is_what_is_found_afterwards(log: Log) -> None:
    await log.add(*numbered(1, 2, 3, 4))
    (lane,) = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    recorded = await log.store.record(
        lane, page.after,
        deferred=[
            retrying(1, due_in=3600.0), held(2), held(3, key="r", route="orders"), dead(4, key=None, blocks=False),
        ],
    )  # fmt: skip
    assert recorded.blocked_keys == {}
    assert recorded.lease == lane.settled(page.after)
    first, second, third, fourth = await log.deferred()
    assert first[:6] == ("s", lane.lane, 1, "k", "retrying", 1)
    assert first.due_in == pytest.approx(3600, abs=60)
    assert (first.error, first.blocks, first.epoch) == ("no 1", True, None)
    assert (second.key, second.state, second.attempts, second.due_in, second.error) == ("k", "held", 0, None, None)
    assert (third.key, third.route, third.due_in) == ("r", "orders", None)
    assert (fourth.key, fourth.state, fourth.attempts, fourth.blocks) == (None, "dead", 5, False)
    assert await log.attempts() == [("s", 1, 1, "no 1"), ("s", 4, 5, "never")]
    loaded = await log.store.load(lane)
    assert loaded.lease.cursor == page.after


async def test_what_was_written_before_is_replaced(log: Log) -> None:
    lane = await lane_with(log, 1, retrying(1, due_in=5.0))
    new = Deferred(1, "other", State.HELD, 1, route="r")
    lane = (await log.store.record(lane, lane.cursor, deferred=[new])).lease
    (row,) = await log.deferred()
    assert row[3:11] == ("other", "held", 1, None, None, "r", "no 1", True), "the error is kept until there is another"
    await log.store.record(lane, lane.cursor, deferred=[dead(1, blocks=False)])
    (row,) = await log.deferred()
    assert row[3:11] == ("k", "dead", 5, None, None, None, "never", False)


async def test_a_claimed_message_that_is_recorded_is_no_longer_being_sent(log: Log) -> None:
    lane = await lane_with(log, 1, retrying(1))
    lane = (await log.store.claim(lane, 10)).lease
    await log.store.record(lane, lane.cursor, deferred=[retrying(1, attempts=2)])
    (row,) = await log.deferred()
    assert (row.state, row.attempts, row.epoch) == ("retrying", 2, None)


async def test_a_route_is_asked_by_a_message_that_nothing_else_holds(log: Log) -> None:
    """A late row has died before the route's first message, and holds its key."""
    lane = await lane_with(log, 3, dead(1, blocks=True), held(2, route="r"), held(3, key="other", route="r"))
    loaded = await log.store.load(lane)
    assert (set(loaded.routes), loaded.due_in) == ({"r"}, 0.0)
    claim = await log.store.claim(loaded.lease, 10)
    assert [each.message.position for each in claim.claimed] == [3]


async def test_a_claim_ends_with_the_message_that_reaches_the_bytes(log: Log) -> None:
    lane = await lane_with(log, 3, *(retrying(position, key=None) for position in (1, 2, 3)))
    claim = await log.store.claim(lane, 10, payload_bytes=21)  # each has 1 of payload and 19 of headers
    assert ([each.message.position for each in claim.claimed], claim.due_in) == ([1, 2], 0.0)
    claim = await log.store.claim(claim.lease, 10, payload_bytes=21)
    assert ([each.message.position for each in claim.claimed], claim.due_in) == ([3], None)


async def test_attempts_are_kept_and_what_does_not_count_is_none(log: Log) -> None:
    lane = await lane_with(log, 1, retrying(1))
    (first,) = await log.deferred()
    for again in (held(1, attempts=1), retrying(1, attempts=2), retrying(1, attempts=3)):
        lane = (await log.store.record(lane, lane.cursor, deferred=[again])).lease
    assert [(each.position, each.attempt) for each in await log.attempts()] == [(1, 1), (1, 2), (1, 3)]
    (last,) = await log.deferred()
    assert first.first_failed is not None
    assert last.first_failed is not None
    assert last.last_failed is not None
    assert -60 < last.first_failed < first.first_failed <= 0, "the first failure stays, and is longer ago by now"
    assert last.first_failed < last.last_failed <= 0


async def test_a_failure_time_is_for_failures(log: Log) -> None:
    lane = await lane_with(log, 1, held(1))
    (row,) = await log.deferred()
    assert (row.first_failed, row.last_failed) == (None, None)
    lane = (await log.store.record(lane, lane.cursor, deferred=[retrying(1)])).lease
    await log.store.record(lane, lane.cursor, deferred=[held(1, attempts=1)])
    (row,) = await log.deferred()
    assert row.first_failed is not None
    assert row.last_failed is not None


async def test_errors_are_cut_and_can_be_anything(log: Log) -> None:
    errors = ["x" * 5_000, "ü" * 5_000, "nul \0 in it", "half \ud83d a character", ""]
    await lane_with(
        log,
        5,
        *(Deferred(n, None, State.RETRYING, 1, 0.0, error=text, counted=True) for n, text in enumerate(errors, 1)),
    )
    kept = ["x" * 2_000, "ü" * 2_000, "nul \ufffd in it", "half ? a character", ""]
    assert [row.error for row in await log.deferred()] == kept
    assert [each.error for each in await log.attempts()] == kept


async def test_a_counted_failure_without_a_word_is_kept_too(log: Log) -> None:
    await lane_with(log, 1, Deferred(1, None, State.RETRYING, 1, 0.0, counted=True))
    assert await log.attempts() == [("s", 1, 1, "")]


async def test_published_messages_are_no_longer_in_trouble(log: Log) -> None:
    lane = await lane_with(log, 3, retrying(1), retrying(2, key="b"), held(3, key="b"))
    recorded = await log.store.record(lane, lane.cursor, published=[1, 2])
    assert recorded.blocked_keys == {}
    assert [row.position for row in await log.deferred()] == [3]
    assert [each.position for each in await log.attempts()] == [1, 2], "the history stays"


async def test_the_next_of_a_freed_key_is_due(log: Log) -> None:
    lane = await lane_with(
        log, 6, retrying(1, due_in=60), held(2), held(3), retrying(4, due_in=60, key="b"), held(5, key="b")
    )
    recorded = await log.store.record(lane, lane.cursor, published=[1], freed=["k"])
    assert recorded.blocked_keys == {"k": 2}
    assert await due(log) == [2], "one at a time, and the other key was not freed"
    recorded = await log.store.record(recorded.lease, lane.cursor, published=[2, 3], freed=["k", "never heard of"])
    assert recorded.blocked_keys == {}


async def test_a_freed_key_lets_go_whatever_is_held(log: Log) -> None:
    lane = await lane_with(
        log, 8,
        retrying(1, key="a"), held(2, key="a", route="r"),
        retrying(3, key="b"), retrying(4, due_in=60.0, key="b"),
        retrying(5, key="c"), dead(6, key="c", blocks=True), held(7, key="c"),
        held(8, key="d", due_in=60.0),
    )  # fmt: skip
    recorded = await log.store.record(lane, lane.cursor, published=[1, 3, 5], freed=["a", "b", "c", "d"])
    assert recorded.blocked_keys == {"a": 2, "b": 4, "c": 6, "d": 8}
    assert await due(log) == [2, 8], "4 was refused and has a time of its own, and 6 needs a person"


async def test_a_dead_head_frees_its_key_unless_it_blocks(log: Log) -> None:
    lane = await lane_with(log, 4, retrying(1, key="a"), held(2, key="a"), retrying(3, key="b"), held(4, key="b"))
    died = [dead(1, key="a", blocks=False), dead(3, key="b", blocks=True)]
    recorded = await log.store.record(lane, lane.cursor, deferred=died, freed=["a", "b"])
    assert recorded.blocked_keys == {"a": 2, "b": 3}
    assert await due(log) == [2]


async def test_a_record_of_many_is_one_too(log: Log) -> None:
    many = 5_000
    lane = await lane_with(log, many, *(held(n) for n in range(1, many + 1)))
    assert len(await log.deferred()) == many
    recorded = await log.store.record(lane, lane.cursor, published=range(1, many), freed=["k"])
    assert recorded.blocked_keys == {"k": many}


@pytest.mark.parametrize("how", ["settled", "loaded", "taken"])
async def test_trouble_that_is_out_of_date_is_not_written(log: Log, how: str) -> None:
    old = await lane_with(log, 3, retrying(1), held(2))
    before = [row[:6] for row in await log.deferred()]
    if how == "settled":
        now = await log.store.settle(old, old.cursor)
    elif how == "loaded":
        now = (await log.store.load(old)).lease
    else:
        (now,) = await take(log)
    with pytest.raises(LaneChanged, match="no longer at version"):
        await log.store.record(old, Cursor(0, old.cursor.snapshot), deferred=[retrying(3)], published=[1], freed=["k"])
    with pytest.raises(LaneChanged, match="no longer at version"):
        await log.store.claim(old, 10)
    assert [row[:6] for row in await log.deferred()] == before
    assert [each.position for each in await log.attempts()] == [1]
    loaded = await log.store.load(now)
    assert (loaded.lease.cursor, loaded.lease.version) == (old.cursor, now.version + 1)


# -- claiming --------------------------------------------------------------------------------------------------------


async def test_what_is_due_is_given_as_it_stands_in_the_log(log: Log) -> None:
    lane = await lane_with(log, 3, retrying(2, key="b", attempts=3), Deferred(1, None, State.HELD, 0, 0.0, "r", "gone"))
    claim = await log.store.claim(lane, 10)
    assert claim.lease == lane.settled(lane.cursor)
    assert claim.due_in is None
    first, second = claim.claimed
    assert (first.attempts, first.route, first.message.payload, first.message.key) == (0, "r", b"1", "k1")
    assert (second.attempts, second.route, second.message.payload) == (3, None, b"2")
    (whole,) = await take(log, sink="whole")
    page = await log.store.read(whole, whole.cursor, PLENTY)
    assert [each.message for each in claim.claimed] == list(page.messages[:2])
    rows = await log.deferred()
    assert [(row.state, row.due_in, row.epoch) for row in rows] == [("sending", None, lane.epoch)] * 2
    assert [(row.attempts, row.route, row.error) for row in rows] == [(0, "r", "gone"), (3, None, "no 2")]


async def test_what_is_being_sent_is_not_given_again(log: Log) -> None:
    lane = await lane_with(log, 2, retrying(1), held(2))
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == [1]
    again = await log.store.claim(claim.lease, 10)
    assert (again.claimed, again.due_in) == ([], None)


async def test_what_is_not_due_waits_and_the_lane_learns_how_long(log: Log) -> None:
    lane = await lane_with(log, 3, retrying(1, due_in=600.0), retrying(2, key="b", due_in=60.0), retrying(3, key="c"))
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == [3]
    assert claim.due_in == pytest.approx(60, abs=30)
    await log.pass_time(timedelta(seconds=61))
    claim = await log.store.claim(claim.lease, 10)
    assert positions(claim) == [2]
    assert claim.due_in == pytest.approx(540, abs=60)


async def test_nothing_overtakes_an_earlier_message_of_its_key(log: Log) -> None:
    lane = await lane_with(log, 3, retrying(1, due_in=600.0), retrying(2), held(3, due_in=0.0))
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == []
    assert claim.due_in == pytest.approx(600, abs=60), "what is due but blocked must not keep the lane busy"
    await log.pass_time(timedelta(seconds=601))
    claim = await log.store.claim(claim.lease, 10)
    assert positions(claim) == [1]
    assert claim.due_in is None, "the others go when the first one is recorded"


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_dead_message_holds_its_key_or_not(log: Log, blocks: bool) -> None:
    lane = await lane_with(log, 2, dead(1, blocks=blocks), retrying(2))
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == ([] if blocks else [2])


async def test_without_a_key_no_message_waits(log: Log) -> None:
    lane = await lane_with(log, 3, *(retrying(n, key=None) for n in (1, 2, 3)))
    assert positions(await log.store.claim(lane, 10)) == [1, 2, 3]


async def test_routes_let_go_of_what_waits_for_them(log: Log) -> None:
    lane = await lane_with(
        log, 6,
        held(1, key=None, route="a", due_in=600.0), held(2, key="b", route="a"), held(3, key="c", route="other"),
        retrying(4, due_in=600.0, key="d"), held(5, key="d", route="a"), held(6, key=None, route="a"),
    )  # fmt: skip
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == []
    claim = await log.store.claim(claim.lease, 10, routes=["a", "unknown"])
    assert positions(claim) == [1, 2, 6], "5 waits for an earlier message of its key"
    assert [each.route for each in claim.claimed] == ["a", "a", "a"]
    assert claim.due_in == pytest.approx(600, abs=60)
    assert positions(await log.store.claim(claim.lease, 10, routes=["other"])) == [3]


async def test_behind_a_head_that_was_only_held_go_those_that_waited_for_it(log: Log) -> None:
    lane = await lane_with(
        log, 6, held(1, due_in=0.0), held(2), held(3, key="b"), held(4), retrying(5, due_in=60), held(6)
    )
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == [1, 2, 4], "5 waits for a time of its own, and 6 for 5"


@pytest.mark.parametrize("breaker", [held(3, route="r"), dead(3, blocks=True), held(3, due_in=0.0)])
async def test_a_line_ends_with_the_first_that_waits_for_something_else(log: Log, breaker: Deferred) -> None:
    lane = await lane_with(log, 4, held(1, due_in=0.0), held(2), breaker, held(4))
    assert positions(await log.store.claim(lane, 10)) == [1, 2]


async def test_a_dead_message_in_a_line_that_went_on_is_passed_by(log: Log) -> None:
    lane = await lane_with(log, 3, held(1, due_in=0.0), dead(2, blocks=False), held(3))
    assert positions(await log.store.claim(lane, 10)) == [1, 3]


async def test_no_message_goes_behind_a_head_that_was_refused(log: Log) -> None:
    lane = await lane_with(log, 3, retrying(1), held(2), held(3, key=None))
    assert positions(await log.store.claim(lane, 10)) == [1]


async def test_only_so_many_follow(log: Log) -> None:
    many = FOLLOWERS + 50
    lane = await lane_with(log, many, held(1, due_in=0.0), *(held(n) for n in range(2, many + 1)))
    claim = await log.store.claim(lane, 1_000)
    assert positions(claim) == list(range(1, FOLLOWERS + 2))
    assert claim.due_in is None


async def test_a_limit_takes_heads_before_followers_and_the_longest_due_first(log: Log) -> None:
    lane = await lane_with(
        log, 7, held(1, key="a", due_in=0.0), held(2, key="a"), held(3, key="a"),
        held(4, key="b", due_in=-30.0), held(5, key="b"), retrying(6, due_in=-60.0, key="c"),
        retrying(7, due_in=60, key="d"),
    )  # fmt: skip
    claim = await log.store.claim(lane, 2)
    assert positions(claim) == [4, 6]
    assert claim.due_in == 0, "1 is due already"
    claim = await log.store.claim(claim.lease, 2)
    assert positions(claim) == [1, 2]
    assert claim.due_in == pytest.approx(60, abs=30), "3 is not due: it follows when the key is freed"


async def test_followers_take_the_room_that_heads_leave(log: Log) -> None:
    keys = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    lane = await lane_with(log, 6, *(held(n, key=key, due_in=0.0 if n % 2 else None) for n, key in keys.items()))
    claim = await log.store.claim(lane, 4)
    assert (positions(claim), claim.due_in) == ([1, 2, 3, 5], None)


async def test_a_limit_cuts_what_waits_for_a_route_too(log: Log) -> None:
    lane = await lane_with(log, 4, *(held(n, key=None, route="r") for n in (1, 2, 3)), retrying(4, key=None))
    claim = await log.store.claim(lane, 2, routes=["r"])
    assert positions(claim) == [1, 4]
    assert claim.due_in == 0
    claim = await log.store.claim(claim.lease, 2, routes=["r"])
    assert (positions(claim), claim.due_in) == ([2, 3], None)


async def test_lanes_and_sinks_leave_each_others_trouble_alone(log: Log) -> None:
    mine = await lane_with(log, 2, retrying(1), held(2))
    (other,) = await take(log, sink="other")
    other = (await log.store.record(other, mine.cursor, deferred=[retrying(2)])).lease
    two = await take(log, sink="two", lanes=2)
    one_of_two = (await log.store.record(two[0], mine.cursor, deferred=[retrying(1, due_in=60)])).lease
    second = (await log.store.record(two[1], mine.cursor, deferred=[retrying(2)])).lease
    claim = await log.store.claim(other, 10)
    assert positions(claim) == [2], "its key is blocked for the other sink only"
    assert [(row.sink, row.lane, row.position, row.state) for row in await log.deferred()] == [
        ("other", 0, 2, "sending"), ("s", 0, 1, "retrying"), ("s", 0, 2, "held"),
        ("two", 0, 1, "retrying"), ("two", 1, 2, "retrying"),
    ]  # fmt: skip
    assert positions(await log.store.claim(second, 10)) == [2]
    loaded = await log.store.load(one_of_two)
    assert loaded.blocked_keys == {"k": 1}
    assert loaded.due_in == pytest.approx(60, abs=30)
    recorded = await log.store.record(claim.lease, mine.cursor, published=[1, 2], freed=["k"])
    assert recorded.blocked_keys == {}
    assert len(await log.deferred()) == 4


async def test_a_message_that_is_gone_from_the_log_holds_up_no_other(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    lane = await lane_with(log, 5, retrying(1), held(2), held(3), retrying(4, key="b"), held(5, key="b", route="r"))
    await log.delete(1)
    await log.delete(5)
    with pytest.raises(LaneChanged, match="deleted from the log by hand"):
        await log.store.claim(lane, 10)
    assert "2 deferred messages of lane 0 of sink 's' were deleted from the log" in caplog.text
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"k": 2, "b": 4}
    assert loaded.due_in == 0
    assert positions(await log.store.claim(loaded.lease, 10)) == [2, 3, 4]


# -- loading deferred messages ---------------------------------------------------------------------------------------


async def test_a_lane_without_trouble_knows_of_none(log: Log) -> None:
    lane = await lane_with(log, 1)
    loaded = await log.store.load(lane)
    assert (loaded.blocked_keys, list(loaded.routes), loaded.due_in) == ({}, [], None)


async def test_what_is_loaded_is_what_blocks_and_what_is_waited_for(log: Log) -> None:
    lane = await lane_with(
        log, 8,
        retrying(1, due_in=60.0, key="a"), held(2, key="a"),
        dead(3, key="b", blocks=False), held(4, key="b", route="y"),
        dead(5, key="c", blocks=True), held(6, key="c"), held(7, key=None, route="x", due_in=30.0),
        held(8, key=None, route="x"),
    )  # fmt: skip
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"a": 1, "b": 4, "c": 5}
    assert sorted(loaded.routes) == ["x", "y"]
    assert loaded.due_in == 0
    assert await due(log) == [4, 7], "the first message of each route"


async def test_the_first_due_time_is_returned(log: Log) -> None:
    lane = await lane_with(log, 2, retrying(1, due_in=600.0), retrying(2, due_in=60.0, key="b"))
    assert (await log.store.load(lane)).due_in == pytest.approx(60, abs=30)
    await log.pass_time(timedelta(hours=1))
    assert (await log.store.load(lane)).due_in == 0


async def test_what_was_being_sent_is_due_again(log: Log) -> None:
    lane = await lane_with(
        log, 6, retrying(1, key="a", attempts=2), held(2, key="b", due_in=0.0), held(3, key="b"),
        held(4, key=None, due_in=0.0), held(5, key="c", route="r", due_in=0.0), held(6, key="a"),
    )  # fmt: skip
    claim = await log.store.claim(lane, 10)
    assert positions(claim) == [1, 2, 3, 4, 5]
    loaded = await log.store.load(lane)
    rows = await log.deferred()
    assert [(row.state, row.attempts, row.epoch) for row in rows] == [
        ("retrying", 2, None), ("held", 0, None), ("held", 0, None),
        ("held", 0, None), ("held", 0, None), ("held", 0, None),
    ]  # fmt: skip
    assert await due(log) == [1, 2, 4, 5], "3 and 6 follow"
    assert loaded.blocked_keys == {"a": 1, "b": 2, "c": 5}
    assert loaded.due_in == 0
    assert positions(await log.store.claim(loaded.lease, 10)) == [1, 2, 3, 4, 5]


async def test_a_follower_that_was_refused_before_is_due_but_does_not_overtake(log: Log) -> None:
    lane = await lane_with(log, 2, retrying(1), retrying(2))
    lane = (await log.store.claim(lane, 10)).lease
    recorded = await log.store.record(lane, lane.cursor, published=[1], freed=["k"])
    claim = await log.store.claim(recorded.lease, 10)
    assert positions(claim) == [2]
    await log.store.record(claim.lease, lane.cursor, deferred=[held(1)])  # it was late: its transaction committed last
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"k": 1}
    assert await due(log) == [1, 2]
    assert positions(await log.store.claim(loaded.lease, 10)) == [1]


async def test_a_new_owner_finds_what_the_old_one_was_sending(log: Log) -> None:
    old = await lane_with(log, 2, retrying(1), held(2))
    claim = await log.store.claim(old, 10)
    (new,) = await take(log)
    with pytest.raises(LeaseLost):
        await log.store.load(claim.lease)
    assert [row.state for row in await log.deferred()] == ["sending", "held"], (
        "who has lost the lane puts nothing right"
    )
    with pytest.raises(LaneChanged):
        await log.store.record(claim.lease, old.cursor, published=[1], freed=["k"])
    loaded = await log.store.load(new)
    claim = await log.store.claim(loaded.lease, 10)
    assert positions(claim) == [1]
    assert [row.epoch for row in await log.deferred()] == [new.epoch, None]


async def test_a_head_that_merely_waited_is_due(log: Log) -> None:
    """The one before it is gone and the key was not freed: it was canceled, or an operator dropped it."""
    lane = await lane_with(
        log, 6, held(1, key="a"), held(2, key="a"), held(3, key="b", route="r", due_in=600.0),
        dead(4, key="c", blocks=True), held(5, key="c"), held(6, key="d", due_in=600.0),
    )  # fmt: skip
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"a": 1, "b": 3, "c": 4, "d": 6}
    assert await due(log) == [1, 3, 6]


async def test_one_message_of_each_route_is_tried(log: Log) -> None:
    lane = await lane_with(
        log, 5, held(1, key="a", route="x"), held(2, key="b", route="x"), held(3, key="c", route="y", due_in=600.0),
        held(4, key="d", route="y"), Deferred(5, "e", State.DEAD, route="z", blocks=False),
    )  # fmt: skip
    loaded = await log.store.load(lane)
    assert sorted(loaded.routes) == ["x", "y"]
    assert await due(log) == [1, 3]


@pytest.mark.parametrize("before", STORED)
async def test_a_store_moves_messages_as_the_table_of_transitions_says(log: Log, before: State) -> None:
    due_in = 0.0 if before in {State.RETRYING, State.HELD} else None
    lane = await lane_with(log, 1)
    if before is State.SENDING:
        lane = (await log.store.record(lane, lane.cursor, deferred=[retrying(1)])).lease
        lane = (await log.store.claim(lane, 1)).lease
    else:
        written = Deferred(1, "k", before, 0, due_in, blocks=before in BLOCKING)
        lane = (await log.store.record(lane, lane.cursor, deferred=[written])).lease
    states = [before]
    lane = (await log.store.claim(lane, 1)).lease
    states += [State(row.state) for row in await log.deferred()]
    await log.store.load(lane)
    states += [State(row.state) for row in await log.deferred()]
    assert len(states) == 3
    moves = [(earlier, later) for earlier, later in pairwise(states) if earlier is not later]
    assert bool(moves) == (before in BLOCKING)
    assert all(may_move(earlier, later, Mover.LANE) for earlier, later in moves), moves
