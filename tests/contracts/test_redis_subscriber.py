"""What is special to Redis as a source: leases, pending entries, partitions, foreign entries, dead letters."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
import redis as redis_py

from postroad import BrokerUnavailable, InvalidSetting
from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.cloudevents import unwrap
from postroad.brokers.redis import receiving
from postroad.brokers.redis.publisher import RedisPublisher
from postroad.brokers.redis.session import StreamSession
from postroad.brokers.redis.settings import PublisherSettings
from postroad.brokers.redis.subscriber import RedisSubscriber
from postroad.brokers.redis.subscriber_settings import SubscriberSettings
from postroad.brokers.registry import Subscription
from postroad.events import EntriesDeleted, Event, TypeSkipped
from postroad.message import slot_of
from postroad.received import Unreadable
from tests.destinations import stored
from tests.redis_source import SECONDS, received, redis_subscriber
from tests.services.redis import Redis

PARTITIONS = 4
MakeSubscriber = Callable[..., RedisSubscriber]


@pytest.fixture
async def subscriber(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeSubscriber]:
    """Makes subscribers, whose leases are renewed when a test says so."""
    monkeypatch.setattr(receiving, "EVERY_SECONDS", 3600)
    made: list[RedisSubscriber] = []

    def make(types: tuple[str, ...] = (), **settings: Any) -> RedisSubscriber:
        made.append(redis_subscriber(redis.url, types, **settings))
        return made[-1]

    yield make
    redis.start()
    for each in made:
        await each.close()


def put(redis: Redis, *numbers: int, stream: str = "orders") -> None:
    for number in numbers:
        redis.call("XADD", stream, "*", "data", str(number), "key", f"k{number % 5}")


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(each.body) for each in deliveries]


async def renewed(subscriber: RedisSubscriber) -> list[Revoked]:
    """What the subscriber has to give up when it renews its leases."""
    assert subscriber._receiver is not None
    await subscriber._receiver.run_once()
    found, subscriber._receiver.revoked = subscriber._receiver.revoked, []
    return found


def has(subscriber: RedisSubscriber) -> set[str]:
    assert subscriber._receiver is not None
    return set(subscriber._receiver.sessions)


# -- one process at a time -------------------------------------------------------------------------------------------


async def test_one_process_has_the_stream_and_another_goes_on_where_it_ended(
    redis: Redis, subscriber: MakeSubscriber
) -> None:
    first, second = subscriber(), subscriber()
    await first.open()
    await second.open()
    put(redis, *range(6))
    found = await received(first, 6)
    assert await renewed(second) == []
    assert has(second) == set()
    first.ack(found[:2])
    first.ack([found[4]])
    await first.close()
    await renewed(second)
    put(redis, 6)
    again = await received(second, 4)
    assert numbers(again) == [2, 3, 5, 6], "what was left first, then what is new"
    assert [each.redelivered for each in again] == [True, True, True, False]


async def test_a_process_that_lost_its_lease_reads_nothing(redis: Redis, subscriber: MakeSubscriber) -> None:
    """It was frozen, and does not know that another one has taken over: what it read would be overtaken."""
    frozen, second = subscriber(), subscriber()
    await frozen.open()
    put(redis, 1, 2)
    old = await received(frozen, 2)
    redis.call("DEL", "postroad:inventory:lease:orders", "postroad:inventory:processes")  # as if both had expired
    await second.open()
    assert has(second) == {"orders"}
    assert numbers(await received(second, 2)) == [1, 2]
    put(redis, 3)
    frozen.ack(old)  # it was done, so the ack counts
    async with asyncio.timeout(SECONDS):
        revoked = await frozen.receive()
    assert isinstance(revoked, Revoked)
    assert {each.session for each in old} == revoked.sessions
    revoked.released()
    assert numbers(await received(second, 1)) == [3]
    with pytest.raises(BrokerUnavailable, match="has lost the stream 'orders'"):
        await frozen.dead_letter(old[0], {})
    assert redis.call("EXISTS", "inventory.dead") == 0


async def test_a_process_that_takes_its_lease_again_first_gets_what_another_has_left(
    redis: Redis, subscriber: MakeSubscriber
) -> None:
    """It was frozen: its lease expired, another process took the stream over, and left it again."""
    frozen, second = subscriber(prefetch=2), subscriber()
    await frozen.open()
    put(redis, 1, 2)
    old = await received(frozen, 2)  # as many as it may have, so it asks for nothing, as if it were frozen
    redis.call("DEL", "postroad:inventory:lease:orders", "postroad:inventory:processes")  # as if both had expired
    await second.open()
    put(redis, 3, 4)
    second.ack((await received(second, 4))[:1])
    await second.close()
    (revoked,) = await renewed(frozen)
    assert revoked.sessions == {old[0].session}
    assert has(frozen) == {"orders"}
    put(redis, 5)
    with pytest.raises(BrokerUnavailable, match="has lost the stream 'orders'"):
        await frozen.dead_letter(old[1], {})
    frozen.ack(old)
    found: list[Delivery] = []
    while len(found) < 4:
        found += (now := await received(frozen, 1))
        frozen.ack(now)
    assert numbers(found) == [2, 3, 4, 5], "not only what is new"
    assert [each.redelivered for each in found] == [True, True, True, False]
    assert await renewed(frozen) == [], "a lease that is renewed in time ends nothing"


async def test_a_process_that_joins_takes_nothing_that_it_can_t_share(redis: Redis, subscriber: MakeSubscriber) -> None:
    subscribers = [subscriber() for _ in range(4)]
    for each in subscribers:
        await each.open()
        await asyncio.sleep(0.002)  # the time of its start is its rank
    for each in subscribers:
        assert await renewed(each) == []
    assert [len(has(each)) for each in subscribers] == [1, 0, 0, 0]


async def test_a_lease_that_is_not_renewed_expires(redis: Redis, subscriber: MakeSubscriber) -> None:
    first, second = subscriber(lease="3s"), subscriber(lease="3s")
    await first.open()
    await second.open()
    put(redis, 1)
    await received(first, 1)
    async with asyncio.timeout(SECONDS):
        while not has(second):
            await renewed(second)
            await asyncio.sleep(0.1)
    assert numbers(await received(second, 1)) == [1]
    (revoked,) = await renewed(first)
    assert has(first) == set()
    revoked.released()
    assert has(second) == {"orders"}, "one that has lost its lease releases nothing"
    assert redis.call("EXISTS", "postroad:inventory:lease:orders")


async def test_many_that_were_left_come_in_order_before_what_is_new(redis: Redis, subscriber: MakeSubscriber) -> None:
    """Those of other consumers of the group, too."""
    redis.call("XGROUP", "CREATE", "orders", "inventory", "0", "MKSTREAM")
    put(redis, *range(250))
    for name, count in (("one", 60), ("two", 60), ("one", 30)):
        redis.call("XREADGROUP", "GROUP", "inventory", name, "COUNT", count, "STREAMS", "orders", ">")
    reading = subscriber(prefetch=40)
    await reading.open()
    found: list[Delivery] = []
    while len(found) < 250:
        now = await received(reading, 1)
        assert len(now) <= 40
        found += now
        reading.ack(now)
    assert numbers(found) == list(range(250))
    assert [each.redelivered for each in found] == [True] * 150 + [False] * 100


async def test_no_more_than_prefetch_is_open(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber(prefetch=3)
    await reading.open()
    put(redis, *range(7))
    found = await received(reading, 3)
    assert reading._receiver is not None
    for _ in range(5):
        await asyncio.sleep(0.05)  # it has time to read more, and must not
        assert not reading._receiver.arrived
    assert redis.call("XPENDING", "orders", "inventory")["pending"] == 3
    reading.ack([found[1]])
    found += await received(reading, 1)
    while len(found) < 7:
        reading.ack(found)
        found += await received(reading, 1)
    assert numbers(found) == list(range(7))


async def test_large_messages_are_held_up_to_a_limit(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber(max_held_bytes=100_000)
    await reading.open()
    for number in range(60):
        redis.call("XADD", "orders", "*", "data", bytes([number]) * 20_000)
    found: list[Delivery] = []
    most = 0
    while len(found) < 60:
        now = await received(reading, 1)
        most = max(most, len(now))
        found += now
        reading.ack(now)
    assert [each.body[0] for each in found] == list(range(60))
    assert most <= StreamSession("", prefetch=200, max_bytes=1).room, "the first read does not know the size"


async def test_entries_that_were_deleted_before_they_were_acked_are_reported(
    redis: Redis, subscriber: MakeSubscriber
) -> None:
    first = subscriber()
    await first.open()
    put(redis, 1, 2, 3)
    found = await received(first, 3)
    await first.close()
    redis.call("XDEL", "orders", found[0].original.id, found[2].original.id)
    told: list[Event] = []
    second = subscriber()
    second.report = told.append  # type: ignore[method-assign,assignment]
    await second.open()
    assert numbers(await received(second, 1)) == [2]
    assert [each for each in told if isinstance(each, EntriesDeleted)] == [
        EntriesDeleted("inventory", stream="orders", entries=2)
    ]
    assert await second.waiting() == 0


async def test_a_group_that_begins_behind_the_last_entry(redis: Redis, subscriber: MakeSubscriber) -> None:
    put(redis, 1)
    reading = subscriber(start="latest")
    await reading.open()
    put(redis, 2)
    assert numbers(await received(reading, 1)) == [2]


async def test_streams_can_be_checked_only(redis: Redis, subscriber: MakeSubscriber) -> None:
    with pytest.raises(BrokerUnavailable, match="XGROUP CREATE orders inventory 0 MKSTREAM"):
        await subscriber(declare="check").open()
    redis.call("XGROUP", "CREATE", "orders", "inventory", "0", "MKSTREAM")
    await subscriber(declare="check").open()
    redis.call("SET", "other", "text")
    with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
        await subscriber(stream="other").open()


async def test_a_stream_that_is_deleted_ends_the_session(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber()
    await reading.open()
    put(redis, 1)
    reading.ack(await received(reading, 1))
    redis.call("DEL", "orders")
    put(redis, 2)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(BrokerUnavailable, match="NOGROUP"):
            await reading.receive()
    await reading.open()  # which makes the group again
    assert numbers(await received(reading, 1)) == [2]


# -- partitions ------------------------------------------------------------------------------------------------------


async def publish(redis: Redis, count: int, keys: int, first: int = 0) -> None:
    publisher = RedisPublisher(redis.url, PublisherSettings(stream="orders", partitions=PARTITIONS))
    page = [
        stored(first + n, key=f"k{n % keys}", slot=slot_of(f"k{n % keys}", UUID(int=0)), payload=b"%d" % (first + n))
        for n in range(count)
    ]
    assert not await publisher.publish(page)
    await publisher.close()


async def test_processes_share_the_partitions_in_order(redis: Redis, subscriber: MakeSubscriber) -> None:
    first, second = subscriber(partitions=PARTITIONS), subscriber(partitions=PARTITIONS)
    await first.open()
    assert len(has(first)) == PARTITIONS, "one that is alone has all"
    await publish(redis, 200, keys=50)
    found = await received(first, 200)
    await second.open()
    given = await renewed(first)
    assert len(given) == PARTITIONS // 2
    await publish(redis, 50, keys=50, first=200)
    moved: dict[str, list[int]] = {}
    for each in given:
        (session,) = each.sessions
        mine = [delivery for delivery in found if delivery.session is session]
        first.ack(mine[:3])  # what was under way
        await renewed(second)
        assert mine[0].original.stream not in has(second), "not before it is released"
        each.released()
        each.released()  # once more does no harm
        first.ack(mine)  # too late, and without effect
        moved[mine[0].original.stream] = numbers(mine[3:])
    async with asyncio.timeout(SECONDS):
        while len(has(second)) < PARTITIONS // 2:
            await renewed(second)
            await asyncio.sleep(0.02)
    assert has(second) == set(moved)
    assert await renewed(first) == []
    again = await received(second, sum(map(len, moved.values())))
    by_stream: dict[str, list[int]] = defaultdict(list)
    for delivery in again:
        by_stream[delivery.original.stream].append(int(delivery.body))
    for stream, left in moved.items():
        assert by_stream[stream][: len(left)] == left, "what was left first, in order"


async def test_shares_differ_by_one_at_most(redis: Redis, subscriber: MakeSubscriber) -> None:
    subscribers = [subscriber(partitions=PARTITIONS) for _ in range(3)]
    for each in subscribers:
        await each.open()
    async with asyncio.timeout(SECONDS):
        while sorted(len(has(each)) for each in subscribers) != [1, 1, 2]:
            for each in subscribers:
                for given in await renewed(each):
                    given.released()
    for each in subscribers:
        assert not await renewed(each), "and all stays as it is"
    assert len(set.union(*map(has, subscribers))) == PARTITIONS
    await subscribers[0].close()
    for _ in range(2):
        for each in subscribers[1:]:
            await renewed(each)
    assert [len(has(each)) for each in subscribers[1:]] == [2, 2], "at once"


async def test_another_number_of_partitions_is_refused(redis: Redis, subscriber: MakeSubscriber) -> None:
    await publish(redis, 100, keys=50)
    with pytest.raises(BrokerUnavailable, match="partitions is 2, and there is a stream 'orders.2'"):
        await subscriber(partitions=2).open()
    with pytest.raises(BrokerUnavailable, match="partitions is not set, and there is a stream 'orders.0'"):
        await subscriber().open()
    put(redis, 1)
    with pytest.raises(BrokerUnavailable, match="entries in the undivided stream 'orders'"):
        await subscriber(partitions=PARTITIONS).open()


async def test_another_number_of_partitions_is_noticed_as_soon_as_the_relay_has_it(
    redis: Redis, subscriber: MakeSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its streams is the first that gets a message."""
    monkeypatch.setattr(receiving, "CHECK_SECONDS", 0.05)
    for settings, stream in (({"partitions": PARTITIONS}, "orders.15"), ({}, "orders.3")):
        reading = subscriber(**settings)
        await reading.open()
        put(redis, 1, stream=stream)
        with pytest.raises(BrokerUnavailable, match=f"there is a stream '{stream}'"):
            await asyncio.wait_for(received(reading, 1), SECONDS)
        with pytest.raises(BrokerUnavailable, match=f"there is a stream '{stream}'"):
            await reading.open()
        redis.call("FLUSHALL")


# -- entries of other programs ---------------------------------------------------------------------------------------


async def test_entries_that_are_no_cloudevents(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber()
    await reading.open()
    redis.call("XADD", "orders", "5-1", "type", "order.paid", "key", "7", "total", "30")
    (found,) = await received(reading, 1)
    message = unwrap(found)
    assert (message.id, message.source, message.type, message.key) == ("orders/5-1", "redis:orders", "order.paid", "7")
    assert (message.content_type, message.payload) == (
        "application/json",
        b'{"type":"order.paid","key":"7","total":"30"}',
    )
    refusing = subscriber(group="strict", foreign="dead_letter")
    await refusing.open()
    (found,) = await received(refusing, 1)
    with pytest.raises(Unreadable, match="it is no CloudEvent"):
        unwrap(found)


async def test_messages_of_other_types_are_skipped(redis: Redis, subscriber: MakeSubscriber) -> None:
    publisher = RedisPublisher(redis.url, PublisherSettings(stream="orders"))
    types = ["order.paid", "order.created", "order.paid", "order.shipped"]
    assert not await publisher.publish([stored(n, type=type) for n, type in enumerate(types)])
    await publisher.close()
    told: list[Event] = []
    reading = subscriber(("order.created",))
    reading.report = told.append  # type: ignore[method-assign,assignment]
    await reading.open()
    (found,) = await received(reading, 1)
    assert unwrap(found).type == "order.created"
    reading.ack([found])
    assert await reading.waiting() == 0
    skipped = [each.message_type for each in told if isinstance(each, TypeSkipped)]
    assert skipped == ["order.paid", "order.shipped"], "each is told once"


# -- dead letters and failures ---------------------------------------------------------------------------------------


async def test_a_dead_letter_and_the_ack_are_one_step(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber()
    await reading.open()
    redis.call("XADD", "orders", "5-1", "data", b"\xff\xfe", b"\xff", "strange")
    (bad,) = await received(reading, 1)
    assert bad.unreadable is not None
    await reading.dead_letter(bad, {"postroad-reason": "strange"})
    assert redis.call("XPENDING", "orders", "inventory")["pending"] == 0, "also if the process dies now"
    with redis_py.Redis(port=redis.port) as client:
        ((_, letter),) = client.xrange("inventory.dead")
    assert letter == {
        b"data": b"\xff\xfe",
        b"\xff": b"strange",
        b"postroad-reason": b"strange",
        b"postroad-stream": b"orders",
        b"postroad-entry": b"5-1",
    }


async def test_an_entry_with_very_many_fields_becomes_a_dead_letter_and_can_be_retried(
    redis: Redis, subscriber: MakeSubscriber
) -> None:
    """More than a script of Redis can pass on to a command; a consumer would be stuck with it for ever."""
    reading = subscriber()
    await reading.open()
    fields = [f"{kind}{n}" for n in range(5000) for kind in ("field", "value")]
    redis.call("XADD", "orders", "*", *fields)
    (bad,) = await received(reading, 1)
    await reading.dead_letter(bad, {"postroad-reason": "wide"})
    reading.ack([bad])
    assert await reading.waiting() == 0
    box = reading.dead_letters()
    await box.open()
    (letter,) = [each async for each in box.letters()]
    assert (letter.headers["field4999"], letter.headers["postroad-reason"]) == ("value4999", "wide")
    await box.retry(letter)
    assert [each async for each in box.letters()] == []
    await box.close()
    (again,) = await received(reading, 1)
    assert again.headers["field4999"] == "value4999"


async def test_a_dead_letter_that_can_t_be_stored_is_not_lost(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber()
    await reading.open()
    put(redis, 1)
    (bad,) = await received(reading, 1)
    redis.call("SET", "inventory.dead", "text")
    with pytest.raises(BrokerUnavailable, match="the dead-letter stream 'inventory.dead': .*WRONGTYPE"):
        await reading.dead_letter(bad, {})
    assert redis.call("XPENDING", "orders", "inventory")["pending"] == 1


async def test_what_breaks_a_session_is_an_outage_and_no_silence(
    redis: Redis, subscriber: MakeSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would tell the consumer that nothing is read any more."""

    def broken(*_: object, **__: object) -> list[Delivery]:
        raise RuntimeError("a mistake in deliver")

    monkeypatch.setattr(StreamSession, "deliver", broken)
    reading = subscriber()
    await reading.open()
    put(redis, 1)
    with pytest.raises(BrokerUnavailable, match="RuntimeError: a mistake"):
        await received(reading, 1)


async def test_a_server_that_is_silent_ends_the_session(redis: Redis, subscriber: MakeSubscriber) -> None:
    reading = subscriber(connect_timeout="1s")
    await reading.open()
    redis.freeze()
    async with asyncio.timeout(SECONDS):
        with pytest.raises(BrokerUnavailable, match="answered nothing"):
            await reading.receive()
        with pytest.raises(BrokerUnavailable):
            await reading.open()


def test_settings_that_are_wrong() -> None:
    with pytest.raises(InvalidSetting, match="stream and streams are both given"):
        SubscriberSettings(stream="a", streams=["b"])
    with pytest.raises(InvalidSetting, match="lease is 1 s; it must be 3 s or more"):
        SubscriberSettings(lease="1s")
    with pytest.raises(InvalidSetting, match="stream is not set"):
        SubscriberSettings().completed(Subscription("c"))
    assert SubscriberSettings().completed(Subscription("c", types=("a", "b"))).streams == ("a", "b")
