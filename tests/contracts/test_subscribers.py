"""The words of `Subscriber`, tested on every source. A new one needs a class here and its name in the list below."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol
from uuid import UUID

import aio_pika
import pamqp.frame
import pytest
from aiormq.abc import ChannelFrame
from pamqp import commands
from pamqp.body import ContentBody
from yarl import URL

from postroad import BrokerUnavailable, InvalidSetting, StoredMessage
from postroad.brokers.base import Delivery, Revoked, Subscriber
from postroad.brokers.cloudevents import unwrap
from postroad.brokers.memory import MemoryQueue
from postroad.brokers.rabbitmq.deliveries import DeliveryConnection
from postroad.brokers.rabbitmq.settings import SubscriberSettings
from postroad.brokers.rabbitmq.subscriber import RabbitMQSubscriber
from postroad.dead_letters import DeadLetter, DeadLetterBox
from postroad.received import Unreadable
from tests.destinations import bound_queue, consumed, rabbitmq_channel, stored
from tests.kafka_source import KafkaSource
from tests.nats_source import NATSSource
from tests.redis_source import RedisSource
from tests.services.rabbitmq import RabbitMQ


def orders(url: str, **settings: Any) -> RabbitMQSubscriber:
    return RabbitMQSubscriber(url, SubscriberSettings(**({"queue": "orders"} | settings)))


class Source(Protocol):
    requeues: bool
    """Whether what is given back is delivered again while the session lasts."""

    @property
    def subscriber(self) -> Subscriber: ...

    async def put(self, *bodies: bytes) -> None: ...

    async def left(self) -> list[bytes]:
        """What the broker still has when the subscriber is closed, in order."""
        ...

    async def dead(self) -> list[tuple[bytes, dict[str, Any]]]: ...

    async def drop(self) -> None:
        """The session ends, as by a lost connection."""


class MemorySource:
    requeues = True

    def __init__(self) -> None:
        self.subscriber = self._queue = MemoryQueue()

    async def put(self, *bodies: bytes) -> None:
        for body in bodies:
            self._queue.put(body, headers={"mine": "yes"})

    async def left(self) -> list[bytes]:
        return [each.body for each in self._queue.queue]

    async def dead(self) -> list[tuple[bytes, dict[str, Any]]]:
        return [(delivery.body, {**delivery.headers, **notes}) for delivery, notes in self._queue.dead]

    async def drop(self) -> None:
        self._queue.drop()


class RabbitMQSource:
    requeues = True

    def __init__(self, server: RabbitMQ, vhost: str, partitions: int | None = None) -> None:
        self._server = server
        self._vhost = vhost
        self._queue = "orders" if partitions is None else f"orders.{partitions // 2}"
        self.subscriber = orders(vhost, bindings=["order.#"], partitions=partitions)

    async def put(self, *bodies: bytes) -> None:
        async with rabbitmq_channel(self._vhost) as channel:
            for body in bodies:
                message = aio_pika.Message(body, headers={"mine": "yes"})
                await channel.default_exchange.publish(message, self._queue)

    async def left(self) -> list[bytes]:
        return [message.body for message in await consumed(self._vhost, self._queue)]

    async def dead(self) -> list[tuple[bytes, dict[str, Any]]]:
        return [(message.body, dict(message.headers)) for message in await consumed(self._vhost, "orders.dead")]

    async def drop(self) -> None:
        self._server.restart()


@pytest.fixture(
    params=["memory", "rabbitmq", "rabbitmq with partitions", "kafka", "nats", "redis", "redis with partitions"]
)
async def source(request: pytest.FixtureRequest) -> AsyncIterator[Source]:
    source: Source
    if request.param == "memory":
        source = MemorySource()
    elif request.param == "kafka":
        source = KafkaSource(request.getfixturevalue("kafka"))
    elif request.param == "nats":
        source = NATSSource(request.getfixturevalue("nats"))
    elif request.param.startswith("redis"):
        source = RedisSource(request.getfixturevalue("redis"), 4 if "partitions" in request.param else None)
    else:
        partitions = 4 if "partitions" in request.param else None
        source = RabbitMQSource(request.getfixturevalue("rabbitmq"), request.getfixturevalue("vhost"), partitions)
    yield source
    await source.subscriber.close()


async def taken(source: Source, count: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(deliveries) < count:
            deliveries += await received(source.subscriber)
    return deliveries


async def received(subscriber: Subscriber) -> Sequence[Delivery]:
    found = await subscriber.receive()
    assert not isinstance(found, Revoked)
    return found


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def test_messages_come_in_order(source: Source) -> None:
    await source.subscriber.open()
    sent = [b"%d" % n for n in range(150)]
    await source.put(*sent)
    deliveries = await taken(source, 150)
    assert bodies(deliveries) == sent
    assert [each.tag for each in deliveries] == sorted(each.tag for each in deliveries)
    assert not any(each.redelivered for each in deliveries)


async def test_what_is_acked_is_gone_and_all_else_is_given_back(source: Source) -> None:
    await source.subscriber.open()
    await source.put(*(b"%d" % n for n in range(10)))
    deliveries = await taken(source, 10)
    source.subscriber.ack(deliveries[:3])
    source.subscriber.ack([deliveries[6]])
    await source.subscriber.close()
    assert await source.left() == [b"3", b"4", b"5", b"7", b"8", b"9"]


async def test_what_was_not_begun_is_given_back_to_its_place(source: Source) -> None:
    await source.subscriber.open()
    await source.put(b"a", b"b", b"c", b"d")
    deliveries = await taken(source, 4)
    source.subscriber.ack(deliveries[:1])
    source.subscriber.give_back(deliveries[1:3])
    if not source.requeues:
        await source.subscriber.open()
    given_back = [b"b", b"c"] if source.requeues else [b"b", b"c", b"d"]
    again = await taken(source, len(given_back))
    assert bodies(again) == given_back
    assert all(each.redelivered is not False for each in again)
    source.subscriber.ack(again)
    source.subscriber.ack(again)  # once more does no harm
    source.subscriber.ack(deliveries)
    await source.subscriber.close()
    assert await source.left() == []


async def test_a_session_that_ends_is_an_outage_and_all_that_was_open_comes_again(source: Source) -> None:
    await source.subscriber.open()
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(taken(source, 1))
        await asyncio.sleep(0)
        await source.drop()
        with pytest.raises(BrokerUnavailable):
            await waiting
        with pytest.raises(BrokerUnavailable):
            await source.subscriber.receive()
        await source.subscriber.open()
    await source.put(b"a", b"b")
    old = await taken(source, 2)
    await source.subscriber.open()
    new = await taken(source, 2)
    assert bodies(new) == [b"a", b"b"]
    assert all(each.redelivered is not False for each in new)
    source.subscriber.ack(old)  # of a session that has ended: it has no effect
    source.subscriber.ack(new[:1])
    await source.subscriber.close()
    assert await source.left() == [b"b"]


async def test_a_dead_letter_is_there_when_it_is_acked(source: Source) -> None:
    await source.subscriber.open()
    await source.put(b"bad", b"good")
    bad, good = await taken(source, 2)
    await source.subscriber.dead_letter(bad, {"postroad-reason": "it is bad"})
    source.subscriber.ack([bad])
    await source.subscriber.close()
    assert await source.left() == [b"good"]
    ((body, headers),) = await source.dead()
    assert (body, headers["postroad-reason"], headers["mine"]) == (b"bad", "it is bad", "yes")
    assert good.body == b"good"


async def test_how_many_wait(source: Source) -> None:
    await source.subscriber.open()
    assert await source.subscriber.waiting() == 0
    await source.put(b"a", b"b")
    deliveries = await taken(source, 2)
    assert await source.subscriber.waiting() == 0
    source.subscriber.give_back(deliveries)
    if not source.requeues:
        await source.subscriber.open()
    assert await source.subscriber.waiting() == 2, "they may have come to us again, but were not taken"


async def test_nothing_is_received_after_a_pause_and_acks_are_heard(source: Source) -> None:
    await source.subscriber.open()
    await source.put(b"a")
    deliveries = await taken(source, 1)
    await source.subscriber.pause()
    await source.put(b"b")
    source.subscriber.ack(deliveries)
    await source.subscriber.close()
    assert await source.left() == [b"b"]


async def test_close_can_be_called_again_and_open_after_it(source: Source) -> None:
    await source.subscriber.close()
    await source.subscriber.open()
    await source.subscriber.close()
    await source.subscriber.close()
    with pytest.raises(BrokerUnavailable):
        await source.subscriber.receive()
    await source.subscriber.open()
    await source.put(b"a")
    assert bodies(await taken(source, 1)) == [b"a"]


# -- dead letters, for operators -------------------------------------------------------------------------------------


async def put_dead(source: Source, *bodies: bytes) -> None:
    """Let these become dead letters, each with its body as the identity."""
    await source.put(*bodies)
    for delivery in await taken(source, len(bodies)):
        notes = {"postroad-consumer": "stock", "postroad-identity": delivery.body.decode()}
        await source.subscriber.dead_letter(delivery, {**notes, "postroad-reason": "it is bad"})
        source.subscriber.ack([delivery])


def box_of(source: Source) -> DeadLetterBox:
    box: DeadLetterBox = source.subscriber.dead_letters()  # type: ignore[attr-defined]
    return box


async def letters_in(source: Source) -> list[DeadLetter]:
    box = box_of(source)
    await box.open()
    try:
        async with asyncio.timeout(60):
            return [letter async for letter in box.letters()]
    finally:
        await box.close()


async def test_to_look_at_dead_letters_changes_nothing(source: Source) -> None:
    await source.subscriber.open()
    await put_dead(source, b"a", b"b", b"c")
    assert [letter.body for letter in await letters_in(source)] == [b"a", b"b", b"c"]
    letters = await letters_in(source)
    assert [letter.body for letter in letters] == [b"a", b"b", b"c"]
    assert [letter.identity for letter in letters] == ["a", "b", "c"]
    first = letters[0]
    assert (first.consumer, first.headers["postroad-reason"], first.headers["mine"]) == ("stock", "it is bad", "yes")
    assert first.place


async def test_a_dead_letter_that_is_retried_comes_to_its_consumer_again(source: Source) -> None:
    await source.subscriber.open()
    await put_dead(source, b"a", b"b", b"c")
    box = box_of(source)
    await box.open()
    async for letter in box.letters():
        if letter.identity != "b":
            await box.retry(letter)
    await box.close()
    again = await taken(source, 2)
    assert bodies(again) == [b"a", b"c"]
    assert all(each.headers["mine"] == "yes" for each in again)
    assert all(each.headers["postroad-consumer"] == "stock" for each in again), "so that its attempts begin anew"
    source.subscriber.ack(again)
    left = [letter.identity for letter in await letters_in(source)]
    assert left == (["a", "b", "c"] if isinstance(source, KafkaSource) else ["b"])


async def test_a_message_that_died_again_has_one_letter(source: Source) -> None:
    await source.subscriber.open()
    await put_dead(source, b"a", b"b")
    box = box_of(source)
    await box.open()
    (first,) = [letter async for letter in box.letters() if letter.identity == "a"]
    await box.retry(first)
    await box.close()
    (again,) = await taken(source, 1)
    notes = {"postroad-consumer": "stock", "postroad-identity": "a", "postroad-reason": "it is bad again"}
    await source.subscriber.dead_letter(again, notes)
    source.subscriber.ack([again])
    letters = await letters_in(source)
    assert [letter.identity for letter in letters] == ["b", "a"]
    assert letters[1].headers["postroad-reason"] == "it is bad again"


async def test_a_dead_letter_that_is_dropped_is_gone_and_the_others_are_not(source: Source) -> None:
    await source.subscriber.open()
    await put_dead(source, b"a", b"b", b"c")
    box = box_of(source)
    await box.open()
    async for letter in box.letters():
        if letter.identity == "b":
            await box.drop(letter)
    await box.close()
    left = [letter.identity for letter in await letters_in(source)]
    assert left == (["a", "b", "c"] if isinstance(source, KafkaSource) else ["a", "c"])
    await source.subscriber.close()
    assert await source.left() == []


# -- sources in partitions ---------------------------------------------------------------------------------------------


class PartitionedSource(Protocol):
    """A source whose sessions can end one by one."""

    @property
    def subscriber(self) -> Subscriber: ...

    async def put(self, *messages: StoredMessage) -> None: ...

    async def revoke_one(self) -> None:
        """Another consumer comes, and is to get about half of the partitions."""

    async def left(self) -> list[UUID]:
        """What the other consumer gets, in order."""
        ...


class PartitionedMemory:
    def __init__(self) -> None:
        self.subscriber = self._queue = MemoryQueue(partitions=2)

    async def put(self, *messages: StoredMessage) -> None:
        for message in messages:
            self._queue.put_stored(message)

    async def revoke_one(self) -> None:
        self._queue.revoke(0)

    async def left(self) -> list[UUID]:
        return [UUID(each.message_id) for each in self._queue.queue]


@pytest.fixture(params=["memory"])
async def partitioned() -> AsyncIterator[PartitionedSource]:
    source = PartitionedMemory()
    yield source
    await source.subscriber.close()


async def test_some_sessions_end_and_acks_until_their_release_count(partitioned: PartitionedSource) -> None:
    subscriber = partitioned.subscriber
    await subscriber.open()
    page = [stored(position, key=f"k{position % 16}") for position in range(1, 65)]
    await partitioned.put(*page)
    deliveries: list[Delivery] = []
    while len(deliveries) < len(page):
        deliveries += await soon_received(subscriber)
    await partitioned.revoke_one()
    async with asyncio.timeout(60):
        revoked = await subscriber.receive()
    assert isinstance(revoked, Revoked)
    ending = [each for each in deliveries if each.session in revoked.sessions]
    staying = [each for each in deliveries if each.session not in revoked.sessions]
    assert ending
    assert staying
    keys = ({unwrap(each).key for each in some} for some in (ending, staying))
    assert set.isdisjoint(*keys), "a key belongs to one partition"
    subscriber.ack(ending[:3])
    subscriber.ack(staying[:3])
    revoked.released()
    subscriber.ack(ending[3:6])  # too late: it has no effect
    await partitioned.put(later := stored(100, key=unwrap(staying[0]).key))
    (new,) = await soon_received(subscriber)
    assert UUID(new.message_id) == later.id, "the other sessions go on"
    assert await partitioned.left() == [UUID(each.message_id) for each in ending[3:]], "in order"


# -- RabbitMQ's own --------------------------------------------------------------------------------------------------


async def test_no_more_than_prefetch_is_open_and_acks_make_room(vhost: str) -> None:
    subscriber = orders(vhost, prefetch=3)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        for n in range(7):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % n), "orders")
        queue = await channel.declare_queue("orders", passive=True)
        seen: list[Delivery] = []
        while len(seen) < 3:
            seen += await received(subscriber)
        assert (await channel.declare_queue("orders", passive=True)).declaration_result.message_count == 4
        subscriber.ack([seen[1]])
        while len(seen) < 4:
            seen += await received(subscriber)
        subscriber.ack(seen)
        while len(seen) < 7:
            seen += await received(subscriber)
            subscriber.ack(seen)
        assert [each.body for each in seen] == [b"%d" % n for n in range(7)]
        await subscriber.close()
        assert (await queue.get(fail=False)) is None


LARGE = 300_000


async def test_a_body_that_is_too_large_becomes_a_dead_letter_without_being_held(vhost: str) -> None:
    body = bytes(range(256)) * (LARGE // 256)
    subscriber = orders(vhost, max_message_size=1000)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        for each in (body, b"small"):
            await channel.default_exchange.publish(aio_pika.Message(each, headers={"mine": "yes"}), "orders")
    large, small = await so_many(subscriber, 2)
    assert (large.body, small.body, small.unreadable) == (b"", b"small", None)
    with pytest.raises(Unreadable, match=f"its body has {len(body):,} bytes, and max_message_size is 1,000"):
        unwrap(large)
    await subscriber.dead_letter(large, {"postroad-reason": "too large"})
    await subscriber.dead_letter(small, {"postroad-reason": "for the same channel"})
    subscriber.ack((large, small))
    await subscriber.close()
    letters = await consumed(vhost, "orders.dead")
    assert [letter.body for letter in letters] == [body, b"small"]
    assert letters[0].headers == {"mine": "yes", "postroad-reason": "too large", "postroad-queue": "orders"}
    assert await consumed(vhost, "orders") == []


async def test_nothing_more_is_read_while_too_many_bytes_are_held(vhost: str) -> None:
    most, size, count = 200_000, 50_000, 60
    subscriber = orders(vhost, max_held_bytes=most)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        for number in range(count):
            await channel.default_exchange.publish(aio_pika.Message(bytes([number]) * size), "orders")
    assert subscriber._session is not None
    reading = subscriber._session.connection.inflow
    received: list[int] = []
    waited = False
    while len(received) < count:
        held: list[Delivery] = []
        while await reading.room() and len(received) < count:
            held += (now := await soon_received(subscriber))
            received += [delivery.body[0] for delivery in now]
        if not waited and len(received) < count:
            waited = True
            for _ in range(2):  # and it stays so, for as long as nothing is acked
                assert not await reading.room()
            held += (late := [*reading.arrived])
            received += [delivery.body[0] for delivery in late]
            reading.arrived.clear()
        assert sum(len(delivery.body) for delivery in held) <= most + 2 * 65_536 + size
        subscriber.ack(held)
    assert waited
    assert received == list(range(count))
    await subscriber.close()


async def test_a_subscriber_that_reads_nothing_more_can_be_closed_and_gives_all_back(vhost: str) -> None:
    subscriber = orders(vhost, max_held_bytes=1)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        for number in range(40):
            await channel.default_exchange.publish(aio_pika.Message(bytes([number]) * 50_000), "orders")
    held = [*await soon_received(subscriber)]
    assert subscriber._session is not None
    assert not await subscriber._session.connection.inflow.room()
    await subscriber.pause()
    subscriber.ack(held[:1])
    await subscriber.close()
    assert [message.body[0] for message in await consumed(vhost, "orders")] == list(range(1, 40))


async def so_many(subscriber: Subscriber, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += await soon_received(subscriber)
    return found


async def soon_received(subscriber: Subscriber) -> Sequence[Delivery]:
    async with asyncio.timeout(60):
        return await received(subscriber)


async def test_the_queue_is_bound_and_one_consumer_is_active(vhost: str) -> None:
    first, second = (orders(vhost, bindings=["order.*"]) for _ in range(2))
    await first.open()
    await second.open()
    async with rabbitmq_channel(vhost) as channel:
        exchange = await channel.get_exchange("postroad")
        for n in range(4):
            await exchange.publish(aio_pika.Message(b"%d" % n), "order.created")
    seen: list[Delivery] = []
    while len(seen) < 4:
        seen += await received(first)
    await first.close()
    again: list[Delivery] = []
    while len(again) < 4:
        again += await received(second)
    assert [each.body for each in again] == [b"0", b"1", b"2", b"3"]
    await second.close()


async def test_a_queue_that_is_there_with_other_properties(vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders")
    with pytest.raises(BrokerUnavailable, match="other properties; set declare='check'"):
        await orders(vhost).open()
    with pytest.raises(BrokerUnavailable, match="is missing; create it"):
        await orders(vhost, declare="check", dead_letter_queue="nowhere").open()
    subscriber = orders(vhost, declare="check", dead_letter_queue="orders")
    await subscriber.open()
    await subscriber.close()


async def test_a_deleted_queue_ends_the_session(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    waiting = asyncio.create_task(received(subscriber))
    async with rabbitmq_channel(vhost) as channel:
        await channel.queue_delete("orders")
    with pytest.raises(BrokerUnavailable, match="deleted"):
        await asyncio.wait_for(waiting, 60)
    await subscriber.open()  # which makes it again
    await subscriber.close()


async def test_a_dead_letter_without_a_queue_is_not_lost(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        await channel.default_exchange.publish(aio_pika.Message(b"bad"), "orders")
        (bad,) = await received(subscriber)
        await channel.queue_delete("orders.dead")
        with pytest.raises(BrokerUnavailable, match="dead-letter queue 'orders.dead'"):
            await subscriber.dead_letter(bad, {})
        await channel.declare_queue("orders.dead", durable=True)
        await subscriber.dead_letter(bad, {})
    await subscriber.close()
    assert [message.body for message in await consumed(vhost, "orders.dead")] == [b"bad"]


async def test_a_dead_letter_may_be_another_user_s(vhost: str, rabbitmq: RabbitMQ) -> None:
    """RabbitMQ takes a message with a user's id from that user alone."""
    rabbitmq.ctl("add_user", "shop", "secret")
    rabbitmq.ctl("set_permissions", "-p", URL(vhost).path[1:], "shop", "", ".*", "")
    subscriber = orders(vhost)
    await subscriber.open()
    async with rabbitmq_channel(str(URL(vhost).with_user("shop").with_password("secret"))) as channel:
        await channel.default_exchange.publish(aio_pika.Message(b"bad", user_id="shop"), "orders")
    (bad,) = await received(subscriber)
    await subscriber.dead_letter(bad, {})
    await subscriber.close()
    (letter,) = await consumed(vhost, "orders.dead")
    assert (letter.user_id, letter.headers["postroad-user-id"]) == (None, "shop")
    rabbitmq.ctl("delete_user", "shop")


@pytest.mark.parametrize(
    ("flags", "encoded", "readable"),
    [
        (1 << 7 | 1 << 6, b"\x04mine" + b"\xff" * 8, False),  # a timestamp that no calendar has
        (1 << 7 | 1 << 5, b"\x04mine\x02\xff\xfe", False),  # a type that is no UTF-8
        (1 << 7 | 1 << 2, b"\x04mine\x01x", True),  # a cluster id, which pamqp reads and does not write
        (1 << 13 | 1 << 7, b"\x00\x00\x00\x09\x01aS\x00\x00\x00\x02\xff\xfe\x04mine", True),  # nor such a header
    ],
)
async def test_strange_properties_end_no_session(vhost: str, flags: int, encoded: bytes, readable: bool) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    header = struct.pack(">HHQH", 60, 0, len(b"strange"), flags) + encoded
    frames = [
        pamqp.frame.marshal(commands.Basic.Publish(exchange="", routing_key="orders"), 1),
        struct.pack(">BHI", 2, 1, len(header)) + header + b"\xce",
        pamqp.frame.marshal(ContentBody(b"strange"), 1),
    ]
    async with await aio_pika.connect(vhost) as connection:
        channel = await connection.channel(1, publisher_confirms=False)
        underlay: Any = await channel.get_underlay_channel()
        await underlay.write_queue.put(ChannelFrame(payload=b"".join(frames), should_close=False))
        await channel.default_exchange.publish(aio_pika.Message(b"plain"), "orders")
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(deliveries) < 2:
            deliveries += await received(subscriber)
    strange, plain = deliveries
    assert (strange.body, strange.unreadable is None, plain.body, plain.unreadable) == (
        b"strange",
        readable,
        b"plain",
        None,
    )
    if not readable:
        with pytest.raises(Unreadable, match="its properties can't be read"):
            unwrap(strange)
    await subscriber.dead_letter(strange, {"postroad-reason": "strange"})
    subscriber.ack(deliveries)
    await subscriber.close()
    again = RabbitMQSubscriber(vhost, SubscriberSettings(queue="orders.dead", declare="no"))
    await again.open()
    (letter,) = await received(again)
    assert (letter.body, letter.headers["postroad-reason"]) == (b"strange", "strange")
    assert (letter.message_id, letter.unreadable is None) == ("mine", readable)
    assert encoded in letter.original.raw or encoded[4:13] in letter.original.raw, "byte by byte"
    await again.close()


async def test_a_dead_letter_has_the_headers_that_there_is_room_for(vhost: str) -> None:
    """A frame of 128 KiB must hold them all, and our notes."""
    subscriber = orders(vhost)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        headers: Any = {"large": "x" * 130_000, "small": "x"}
        await channel.default_exchange.publish(aio_pika.Message(b"bad", headers=headers), "orders")
    (bad,) = await received(subscriber)
    await subscriber.dead_letter(bad, {"postroad-reason": "x" * 2000})
    await subscriber.close()
    (letter,) = await consumed(vhost, "orders.dead")
    assert set(letter.headers) == {"small", "postroad-reason", "postroad-queue", "postroad-left-out"}


async def test_an_aiormq_that_is_not_known_is_an_outage_with_a_reason(
    vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would swallow deliveries."""
    monkeypatch.delattr(DeliveryConnection, "_Connection__reader")
    subscriber = orders(vhost)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        await channel.default_exchange.publish(aio_pika.Message(b"a"), "orders")
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnavailable, match="this version of aiormq does not work with postroad"):
            await received(subscriber)
    await subscriber.close()
    assert len(await consumed(vhost, "orders")) == 1


async def test_what_can_t_be_given_back_now_is_when_the_session_ends(vhost: str) -> None:
    """There is no room to write it, and it must not count as sent."""
    subscriber = orders(vhost)
    await subscriber.open()
    async with rabbitmq_channel(vhost) as channel:
        await channel.default_exchange.publish(aio_pika.Message(b"a"), "orders")
    deliveries = await received(subscriber)
    assert subscriber._session is not None
    there = subscriber._session.channels["orders"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(there.write_queue, "full", lambda: True)
        subscriber.give_back(deliveries)
    subscriber.ack(deliveries)
    await subscriber.close()
    assert await consumed(vhost, "orders") == []


async def test_the_first_host_that_answers_is_taken(vhost: str, unused_tcp_port: int) -> None:
    several = vhost.replace("@", f"@127.0.0.1:{unused_tcp_port},")
    subscriber = orders(several)
    for _ in range(3):
        await subscriber.open()
        await subscriber.close()
    with pytest.raises(BrokerUnavailable, match="login was refused"):
        await orders(several, password="wrong").open()


async def test_without_a_server_or_relay(unused_tcp_port: int) -> None:
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{unused_tcp_port}"):
        await orders(f"amqp://guest@127.0.0.1:{unused_tcp_port}/").open()


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"queue": ""}, "queue is ''"),
        ({"queue": "q" * 251}, r"dead_letter_queue is 'q+\.dead'; it must be a text of 1 to 255 bytes"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"prefetch": "9"}, "prefetch is '9'"),
        ({"declare": "maybe"}, "declare is 'maybe'"),
        (
            {"bindings": "order.#"},
            "bindings is 'order.#'; it must be a list of texts",
        ),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        orders("amqp://localhost", **settings)


# -- the limit of a quorum queue's dead letters ------------------------------------------------------------------------

QUORUM = {"arguments": {"x-queue-type": "quorum"}}


def limit_of(rabbitmq: RabbitMQ, vhost: str, queue: str) -> int | None:
    """The limit that a quorum queue was declared with."""
    listed = rabbitmq.ctl("list_queues", "-p", vhost.rpartition("/")[2], "name", "arguments")
    (arguments,) = [line.partition("\t")[2] for line in listed.splitlines() if line.startswith(f"{queue}\t")]
    assert '"quorum"' in arguments
    found = re.search(r'"x-delivery-limit",[^}]*?(-?\d+)}', arguments)
    return None if found is None else int(found[1])


async def opened(vhost: str, **settings: Any) -> None:
    subscriber = orders(vhost, **QUORUM, **settings)
    await subscriber.open()
    await subscriber.close()


async def test_letters_of_this_server_may_be_looked_at_as_often_as_one_likes(rabbitmq: RabbitMQ, vhost: str) -> None:
    """RabbitMQ 3 takes -1 for 0, and would drop each letter that is returned once."""
    await opened(vhost)
    assert limit_of(rabbitmq, vhost, "orders.dead") is None
    async with rabbitmq_channel(vhost) as channel:
        await channel.default_exchange.publish(aio_pika.Message(b"1"), "orders.dead")
    for _ in range(3):
        box = orders(vhost, **QUORUM).dead_letters()
        await box.open()
        assert [letter.body async for letter in box.letters()] == [b"1"]
        await box.close()


@pytest.mark.parametrize("partitions", [None, 2])
async def test_a_new_queue_for_dead_letters_has_no_limit_since_4(
    rabbitmq: RabbitMQ, vhost: str, partitions: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this server, which declares such a queue as 4.0 does, were of that version."""
    monkeypatch.setattr("postroad.brokers.rabbitmq.topology.server_version", lambda _: "4.0.0")
    await opened(vhost, partitions=partitions)
    await opened(vhost, partitions=partitions)
    assert limit_of(rabbitmq, vhost, "orders.dead") == -1


async def test_a_queue_for_dead_letters_from_before_4_keeps_its_limit(
    rabbitmq: RabbitMQ, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(vhost)
    monkeypatch.setattr("postroad.brokers.rabbitmq.topology.server_version", lambda _: "4.0.0")
    await opened(vhost)
    assert limit_of(rabbitmq, vhost, "orders.dead") is None
