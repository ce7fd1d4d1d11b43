"""What is to be sent later, and taking it back: `Store.move_scheduled` and `Outbox.cancel` on every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroad import Cancellation, IdTaken, Message
from postroad.lifecycle import STORED, Mover, State, may_move
from postroad.message import new_id
from postroad.stores.base import Deferred, Lease, Moved
from tests.lanes import take_lanes
from tests.logs import PLENTY, Log, log_fixture, numbered, read_all

CANCELED, TOO_LATE, UNKNOWN = Cancellation
HOUR = timedelta(hours=1)


log = log_fixture("memory", "sqlite", "postgresql15", "postgresql18", opened=True)


async def take(log: Log, sink: str = "s") -> Lease:
    (lane,) = await take_lanes(log.store, sink, uuid4(), lanes=1, start="oldest")
    return lane


async def in_log(log: Log) -> list[int]:
    """The numbers of all that is in the log, as a new sink reads them."""
    return await read_all(log.store, await take(log, sink=str(uuid4())))


async def add(log: Log, number: int, **fields: Any) -> UUID:
    id = new_id()
    (message,) = numbered(number, id=id, **fields)
    await log.add(message)
    return id


# -- moving ----------------------------------------------------------------------------------------------------------


async def test_what_is_scheduled_enters_the_log_when_it_is_due(log: Log) -> None:
    await log.add(*numbered(1, deliver_in="1h"), *numbered(2, deliver_at=datetime.now(UTC) + 2 * HOUR), *numbered(3))
    assert await in_log(log) == [3]
    looked = await log.store.move_scheduled(100)
    assert looked.moved == 0
    assert looked.due_in is not None
    assert 3500 < looked.due_in < 3601
    await log.pass_time(1.5 * HOUR)
    moved = await log.store.move_scheduled(100)
    assert moved.moved == 1
    assert moved.due_in is not None
    assert 1700 < moved.due_in < 1801
    assert await in_log(log) == [3, 1]
    await log.pass_time(HOUR)
    assert await log.store.move_scheduled(100) == Moved(1, None)
    assert await in_log(log) == [3, 1, 2]
    assert await log.store.move_scheduled(100) == Moved(0, None)


async def test_they_enter_it_in_the_order_in_which_they_are_due(log: Log) -> None:
    times = {1: 50, 2: 10, 3: 40, 4: 20, 5: 30}
    await log.add(*(Message(str(number), type="t", key="k", deliver_in=f"{wait}m") for number, wait in times.items()))
    await log.pass_time(HOUR)
    assert await log.store.move_scheduled(2) == Moved(2, 0)
    assert await log.store.move_scheduled(2) == Moved(2, 0)
    assert (await log.store.move_scheduled(2)).moved == 1
    assert await in_log(log) == [2, 4, 5, 3, 1]


async def test_of_those_that_are_due_at_the_same_time_the_first_one_added_is_first(log: Log) -> None:
    at = datetime.now(UTC) + HOUR
    await log.add(*numbered(*range(1, 20), key="k", deliver_at=at))
    await log.add(*numbered(*range(20, 40), key="k", deliver_at=at))
    await log.pass_time(2 * HOUR)
    for _ in range(4):
        await log.store.move_scheduled(10)
    assert await in_log(log) == list(range(1, 40))


async def test_a_list_that_waits_equally_long_stays_in_order(log: Log) -> None:
    await log.add(*numbered(*range(50), key="k", deliver_in="10m"))
    await log.pass_time(HOUR)
    await log.store.move_scheduled(100)
    assert await in_log(log) == list(range(50))


@pytest.mark.parametrize(
    "past", [datetime.now(UTC) - HOUR, datetime(1900, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC)]
)
async def test_a_time_that_is_past_is_due_at_once(log: Log, past: datetime) -> None:
    await log.add(*numbered(1, deliver_at=past))
    await log.add(*numbered(2, deliver_in=timedelta(0)))
    assert await log.store.move_scheduled(100) == Moved(2, None)
    assert await in_log(log) == [1, 2]


async def test_a_time_that_never_comes(log: Log) -> None:
    await log.add(*numbered(1, deliver_at=datetime.max.replace(tzinfo=UTC)))
    looked = await log.store.move_scheduled(100)
    assert looked.moved == 0
    assert looked.due_in is not None
    assert looked.due_in > 1e9


async def test_what_is_rolled_back_is_never_sent(log: Log) -> None:
    await log.add_and_roll_back(*numbered(1, deliver_in="0"), *numbered(2))
    assert await log.store.move_scheduled(100) == Moved(0, None)
    assert await in_log(log) == []


async def test_a_scheduled_message_comes_back_as_it_was_added(log: Log) -> None:
    fields: dict[str, Any] = {
        "type": "a.b",
        "topic": "t",
        "key": "Schlüssel 🚚",
        "headers": {"x": "ü"},
        "correlation_id": "c",
        "causation_id": "b",
    }
    await log.add(Message(b"\x00\xff", **fields))
    await log.add(Message(b"\x00\xff", **fields, deliver_in="0"), Message(b"", type="t", deliver_in="0"))
    await log.store.move_scheduled(100)
    lane = await take(log)
    at_once, later, bare = (await log.store.read(lane, lane.cursor, PLENTY)).messages
    for name in ("topic", "key", "slot", "type", "payload", "content_type", "headers_json"):
        assert getattr(at_once, name) == getattr(later, name)
    assert (bare.key, bare.payload) == (None, b"")


async def test_adding_a_message_again_is_a_no_op(log: Log) -> None:
    id = new_id()
    await log.add(Message("1", type="t", id=id, deliver_in="1h"), Message("1", type="t", id=id, deliver_in="2h"))
    await log.add(Message("1", type="t", id=id, deliver_in="0"))
    with pytest.raises(IdTaken):
        await log.add(Message("2", type="t", id=id, deliver_in="0"))
    assert (await log.store.move_scheduled(100)).moved == 0, "the first one counts, and it is not due"
    await log.pass_time(HOUR)
    assert await log.store.move_scheduled(100) == Moved(1, None)
    await log.add(Message("1", type="t", id=id, deliver_in="0"))
    await log.store.move_scheduled(100)
    assert await in_log(log) == [1]


async def test_an_id_that_is_added_while_it_is_scheduled_is_sent_once(log: Log) -> None:
    id = await add(log, 1, deliver_in="1h")
    await log.add(*numbered(2, id=id), *numbered(3))
    await log.pass_time(HOUR)
    assert (await log.store.move_scheduled(100)).moved == 1
    assert await in_log(log) == [2, 3]
    assert await log.scheduled() == []


async def test_several_movers_at_once_move_each_message_once(log: Log) -> None:
    await log.add(*numbered(*range(300), deliver_in="0"))
    others = [log.store, log.another_store(), log.another_store()]
    for other in others[1:]:
        await other.open()

    async def move_all(store: Any) -> int:
        moved = 0
        while batch := (await store.move_scheduled(7)).moved:
            moved += batch
        return moved

    assert sum(await asyncio.gather(*map(move_all, others))) == 300
    assert sorted(await in_log(log)) == list(range(300))
    for other in others[1:]:
        await other.close()


# -- canceling what is scheduled -------------------------------------------------------------------------------------


async def test_what_is_canceled_in_time_is_never_sent(log: Log) -> None:
    first, second = await add(log, 1, deliver_in="1h"), await add(log, 2, deliver_in="1h")
    assert await log.cancel(first) == [CANCELED]
    assert await log.cancel(first, new_id()) == [UNKNOWN, UNKNOWN]
    await log.pass_time(HOUR)
    await log.store.move_scheduled(100)
    assert await log.cancel(second) == [TOO_LATE], "it is in the log now"
    assert await in_log(log) == [2]


async def test_a_cancel_that_is_rolled_back_has_not_happened(log: Log) -> None:
    id = await add(log, 1, deliver_in="1h")
    assert await log.cancel(id, commit=False) == [CANCELED]
    assert await log.scheduled() == [id]
    await log.pass_time(HOUR)
    await log.store.move_scheduled(100)
    assert await in_log(log) == [1]


async def test_several_are_canceled_in_one_transaction(log: Log) -> None:
    ids = [await add(log, number, deliver_in="1h") for number in range(3)]
    assert await log.cancel(ids[2], ids[0]) == [CANCELED, CANCELED]
    assert await log.scheduled() == [ids[1]]


async def test_a_message_that_is_scheduled_and_in_the_log_too_is_too_late(log: Log) -> None:
    """Its id was added twice, once for later: the one in the log is on its way, so Canceled would be a lie."""
    id = await add(log, 1, deliver_in="1h")
    await log.add(*numbered(2, id=id))
    assert await log.cancel(id) == [TOO_LATE]


# -- canceling what is in the log ------------------------------------------------------------------------------------


async def in_trouble(log: Log, state: State, *, sink: str = "s", position: int = 1) -> Lease:
    """A sink whose only lane has passed the whole log, and one message in it is in this state."""
    lane = await take(log, sink)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    first = State.RETRYING if state is State.SENDING else state
    due_in = 0.0 if first is State.RETRYING else None
    blocks = first in {State.RETRYING, State.HELD}
    deferral = Deferred(position, "k", first, attempts=1, due_in=due_in, blocks=blocks, route=None)
    lane = (await log.store.record(lane, page.after, deferred=[deferral])).lease
    return (await log.store.claim(lane, 1)).lease if state is State.SENDING else lane


@pytest.mark.parametrize("state", STORED)
async def test_only_what_is_neither_sent_nor_decided_is_canceled(log: Log, state: State) -> None:
    """As the table in lifecycle.py says; and what is canceled already stays so."""
    id = await add(log, 1, key="k")
    lane = await in_trouble(log, state)
    before = await log.deferred()
    if may_move(state, State.CANCELED, Mover.APPLICATION):
        assert await log.cancel(id) == [CANCELED]
        (row,) = await log.deferred()
        assert (row.state, row.due_in, row.route, row.epoch, row.blocks) == ("canceled", None, None, None, False)
        assert not await log.store.is_current(lane), "the lane finds out"
    else:
        assert await log.cancel(id) == [CANCELED if state is State.CANCELED else TOO_LATE]
        assert [row[:6] for row in await log.deferred()] == [row[:6] for row in before]
        await log.store.settle(lane, lane.cursor)


async def test_a_canceled_message_is_never_claimed_and_its_followers_go_on(log: Log) -> None:
    id = await add(log, 1, key="k")
    await add(log, 2, key="k")
    lane = await take(log)
    page = await log.store.read(lane, lane.cursor, PLENTY)
    head, follower = page.messages
    deferred = [
        Deferred(head.position, "k", State.RETRYING, attempts=1, due_in=3600),
        Deferred(follower.position, "k", State.HELD),
    ]
    lane = (await log.store.record(lane, page.after, deferred=deferred)).lease
    assert await log.cancel(id) == [CANCELED]
    loaded = await log.store.load(lane)
    assert loaded.blocked_keys == {"k": follower.position}
    claim = await log.store.claim(loaded.lease, 10)
    assert [each.message.payload for each in claim.claimed] == [b"2"]
    assert await log.cancel(id) == [CANCELED], "asked again it is still true"
    await log.store.settle(claim.lease, claim.lease.cursor)


async def test_a_cancel_of_trouble_that_is_rolled_back_has_not_happened(log: Log) -> None:
    id = await add(log, 1, key="k")
    await in_trouble(log, State.DEAD)
    before = await log.deferred()
    assert await log.cancel(id, commit=False) == [CANCELED]
    assert [row[:6] for row in await log.deferred()] == [row[:6] for row in before]


async def test_what_no_lane_has_passed_is_too_late(log: Log) -> None:
    id = await add(log, 1)
    assert await log.cancel(id) == [TOO_LATE], "there is no sink yet, and the first one will read it"
    lane = await take(log)
    assert await log.cancel(id) == [TOO_LATE]
    page = await log.store.read(lane, lane.cursor, PLENTY)
    lane = await log.store.settle(lane, page.after)  # published; and the lane was not touched
    assert await log.cancel(id) == [TOO_LATE]
    await log.store.settle(lane, lane.cursor)


@pytest.mark.parametrize("other", ["published", "waiting"])
async def test_one_sink_that_has_it_or_will_is_enough_to_be_too_late(log: Log, other: str) -> None:
    id = await add(log, 1, key="k")
    lane = await in_trouble(log, State.RETRYING)
    elsewhere = await take(log, "other")
    if other == "published":
        await read_all(log.store, elsewhere)
    assert await log.cancel(id) == [TOO_LATE]
    assert [row.state for row in await log.deferred()] == ["retrying"]
    await log.store.settle(lane, lane.cursor)


async def test_trouble_that_was_recorded_before_its_lane_passed_it_is_too_late(log: Log) -> None:
    """The lane will read that message again, and may send it."""
    id = await add(log, 1, key="k")
    lane = await take(log)
    deferral = Deferred(1, "k", State.RETRYING, attempts=1, due_in=3600)
    await log.store.record(lane, lane.cursor, deferred=[deferral])
    assert await log.cancel(id) == [TOO_LATE]


async def test_what_may_have_been_sent_is_too_late_for_ever(log: Log) -> None:
    """It was being sent when its lane was changed, as by a cancel of another message: the broker may have it."""
    id = await add(log, 1, key="k")
    lane = await in_trouble(log, State.SENDING)
    lane = (await log.store.load(lane)).lease
    assert [row.state for row in await log.deferred()] == ["retrying"]
    assert await log.cancel(id) == [TOO_LATE]
    dead = Deferred(1, "k", State.DEAD, attempts=2, blocks=False)
    await log.store.record(lane, lane.cursor, deferred=[dead])
    assert await log.cancel(id) == [TOO_LATE]


async def test_what_was_left_without_an_answer_is_too_late(log: Log) -> None:
    id = await add(log, 1, key="k")
    lane = await in_trouble(log, State.SENDING)
    left = Deferred(1, "k", State.RETRYING, attempts=1, due_in=0.0, unsure=True)
    await log.store.record(lane, lane.cursor, deferred=[left])
    assert await log.cancel(id) == [TOO_LATE]


async def test_in_trouble_everywhere_it_is_canceled_everywhere(log: Log) -> None:
    id = await add(log, 1, key="k")
    lanes = [await in_trouble(log, State.RETRYING), await in_trouble(log, State.DEAD, sink="other")]
    assert await log.cancel(id) == [CANCELED]
    assert [row.state for row in await log.deferred()] == ["canceled", "canceled"]
    for lane in lanes:
        assert not await log.store.is_current(lane), "the lane finds out"
