"""A queue of RabbitMQ in partitions: where messages go, how processes share them, and that keys stay in order."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from postroad import BrokerUnavailable, InvalidSetting, StoredMessage
from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.rabbitmq import sharing
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings, SubscriberSettings
from postroad.brokers.rabbitmq.subscriber import RabbitMQSubscriber
from postroad.brokers.registry import Subscription
from postroad.message import new_id, slot_of
from tests.destinations import bound_queue, consumed, rabbitmq_channel, stored

PARTITIONS = 4
QUEUES = [f"orders.{partition}" for partition in range(PARTITIONS)]
SECONDS = 60


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions are given up when a test says so."""
    monkeypatch.setattr(sharing, "EVERY_SECONDS", 3600)


def orders(url: str, **settings: Any) -> RabbitMQSubscriber:
    defaults: dict[str, Any] = {"queue": "orders", "bindings": ["order.*"], "partitions": PARTITIONS}
    return RabbitMQSubscriber(url, SubscriberSettings(**defaults | settings))


def a_message(position: int, key: str | None) -> StoredMessage:
    id = new_id()
    return stored(position, id=id, key=key, slot=slot_of(key, id), payload=b"%d" % position)


async def publish(url: str, messages: Sequence[StoredMessage], **settings: Any) -> Sequence[Any]:
    publisher = RabbitMQPublisher(url, PublisherSettings(**{"partitioned": True} | settings))
    try:
        return await publisher.publish(messages)
    finally:
        await publisher.close()


def keyed(count: int, keys: int) -> list[StoredMessage]:
    return [a_message(number, f"key-{number % keys}") for number in range(count)]


# -- where messages go -----------------------------------------------------------------------------------------------


async def test_a_key_has_one_queue_and_keys_are_spread(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    await subscriber.close()
    assert not await publish(vhost, keyed(400, keys=100))
    found = {queue: [int(message.body) for message in await consumed(vhost, queue)] for queue in QUEUES}
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(400))
    queues_of_key = defaultdict(set)
    for queue, numbers in found.items():
        assert len(numbers) > 40
        for number in numbers:
            queues_of_key[number % 100].add(queue)
    assert all(len(queues) == 1 for queues in queues_of_key.values())


async def test_each_consumer_has_its_own_number_and_other_bindings_stay_as_they_are(vhost: str) -> None:
    """And the second routing key is not seen by anyone, nor does it match a binding that was made for topics."""
    for queue, partitions in (("orders", 4), ("mail", 3)):
        subscriber = orders(vhost, queue=queue, partitions=partitions)
        await subscriber.open()
        await subscriber.close()
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "audit", routing_key="#")
        await bound_queue(channel, "created", routing_key="*.created")
        await bound_queue(channel, "others", routing_key="*.other")
    assert not await publish(vhost, keyed(60, keys=20))
    for queues in (QUEUES, ["mail.0", "mail.1", "mail.2"], ["audit"], ["created"]):
        messages = [message for queue in queues for message in await consumed(vhost, queue)]
        assert sorted(int(message.body) for message in messages) == list(range(60))
        assert not any("BCC" in message.headers for message in messages)
    assert await consumed(vhost, "others") == []


async def test_messages_without_a_portion_have_a_queue_of_their_own_and_are_received_in_order(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    assert not await publish(vhost, keyed(50, keys=10), partitioned=False)
    found = await received(subscriber, 50)
    assert [int(each.body) for each in found] == list(range(50))
    assert await subscriber.waiting() == 0
    subscriber.ack(found)
    await subscriber.close()
    assert await consumed(vhost, "orders.unpartitioned") == []


async def test_what_no_consumer_has_bound_is_unroutable(vhost: str) -> None:
    subscriber = orders(vhost, bindings=["invoice.*"])
    await subscriber.open()
    await subscriber.close()
    (refusal,) = await publish(vhost, [a_message(1, "key")])
    assert (refusal.unroutable, refusal.route) == (True, "order.created")
    assert "no queue takes the routing key 'order.created'" in refusal.reason


async def test_messages_without_a_key_are_spread(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    await subscriber.close()
    assert not await publish(vhost, [a_message(number, None) for number in range(200)])
    assert all([len(await consumed(vhost, queue)) > 20 for queue in QUEUES])


# -- sharing ---------------------------------------------------------------------------------------------------------


async def received(subscriber: RabbitMQSubscriber, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            now = await subscriber.receive()
            assert not isinstance(now, Revoked)
            found += now
    return found


def at_hand(subscriber: RabbitMQSubscriber) -> Sequence[Delivery]:
    """What has arrived by now."""
    assert subscriber._session is not None
    return subscriber._session.connection.inflow.take()


async def revoked(subscriber: RabbitMQSubscriber) -> list[Revoked]:
    """What the subscriber gives up now."""
    assert subscriber._session is not None
    assert subscriber._session.sharing is not None
    await subscriber._session.sharing.run_once()
    found: list[Revoked] = []
    while subscriber._session.sharing.revoked:
        each = await subscriber.receive()
        assert isinstance(each, Revoked)
        found.append(each)
    return found


def queue_of(delivery: Delivery) -> str:
    queue: str = delivery.session.queue  # type: ignore[attr-defined]
    return queue


def numbers(deliveries: Sequence[Delivery], queue: str) -> list[int]:
    return [int(each.body) for each in deliveries if queue_of(each) == queue]


@pytest.fixture(params=["classic", "quorum"])
def either_type(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"arguments": {"x-queue-type": request.param}}


async def test_a_process_that_joins_gets_its_share_in_order_and_not_before_it_is_released(
    vhost: str, either_type: dict[str, Any]
) -> None:
    first, second = orders(vhost, **either_type), orders(vhost, **either_type)
    await first.open()
    await second.open()
    await publish(vhost, keyed(200, keys=50))
    found = await received(first, 200)
    kept, given = Counter(map(queue_of, found)), await revoked(first)
    assert len(given) == PARTITIONS // 2
    await publish(vhost, keyed(50, keys=50))  # behind all others of their keys
    for each in given:
        (session,) = each.sessions
        mine = [delivery for delivery in found if delivery.session is session]
        del kept[queue_of(mine[0])]
        behind = [delivery.body for delivery in mine if int(delivery.body) < 50]
        waiting = asyncio.create_task(received(second, len(mine) - 3 + len(behind)))
        first.ack(mine[:3])  # what was under way
        each.released()
        again = await waiting
        assert [delivery.body for delivery in again] == [delivery.body for delivery in mine[3:]] + behind
        assert all(delivery.redelivered for delivery in again[: len(mine) - 3])
        first.ack(mine)  # too late, and without effect
        second.ack(again)
    assert await revoked(first) == []
    await publish(vhost, keyed(100, keys=50))
    one, two = await asyncio.gather(received(first, 1), received(second, 1))
    while len(one) + len(two) < 100:
        one += at_hand(first)
        two += at_hand(second)
        await asyncio.sleep(0)
    assert set(map(queue_of, one)) == set(kept)
    assert set(map(queue_of, one)) | set(map(queue_of, two)) == set(QUEUES)
    await first.close()
    await second.close()


async def test_what_arrives_while_a_partition_is_given_up_is_not_received(vhost: str) -> None:
    first, second = orders(vhost), orders(vhost)
    await first.open()
    await second.open()
    await publish(vhost, keyed(100, keys=50))
    found = await received(first, 100)
    sessions = {session for each in await revoked(first) for session in each.sessions}
    kept = [int(each.body) for each in found if each.session not in sessions]
    await publish(vhost, keyed(100, keys=50))
    assert sorted(int(each.body) for each in await received(first, len(kept))) == sorted(kept)
    await first.close()
    async with asyncio.timeout(SECONDS):
        found = await received(second, 200)
    by_key = defaultdict(list)
    for each in found:
        by_key[int(each.body) % 50].append(int(each.body))
    assert all(values == sorted(values[:2]) * 2 for values in by_key.values())
    await second.close()


async def test_a_partition_goes_on_to_the_process_that_has_too_few(vhost: str, either_type: dict[str, Any]) -> None:
    """The next in line may have enough; it is given on until all have their share."""
    subscribers = [orders(vhost, partitions=6, **either_type) for _ in range(3)]
    for each in subscribers:
        await each.open()
    queues: dict[RabbitMQSubscriber, set[str]] = {each: set() for each in subscribers}
    async with asyncio.timeout(SECONDS):
        while [len(found) for found in queues.values()] != [2, 2, 2]:
            await publish(vhost, keyed(60, keys=60))
            for subscriber in subscribers:
                for given in await revoked(subscriber):
                    given.released()
                subscriber.ack(at_hand(subscriber))
                assert subscriber._session is not None
                queues[subscriber] = {name for name, channel in subscriber._session.channels.items() if channel.active}
    for each in subscribers:
        assert not await revoked(each), "and all stays as it is"
        await each.close()


async def test_when_a_process_ends_the_others_have_its_partitions_at_once(
    vhost: str, either_type: dict[str, Any]
) -> None:
    first, second = orders(vhost, **either_type), orders(vhost, **either_type)
    await first.open()
    await second.open()
    await publish(vhost, keyed(100, keys=50))
    found = await received(first, 100)
    first.ack(found[:10])
    assert await first.waiting() == 0  # and by then the broker has the acks
    assert first._session is not None
    await first._session.connection.close()
    again = await received(second, 90)
    for queue in QUEUES:
        assert numbers(again, queue) == numbers(found[10:], queue)
    await second.close()
    await first.close()


async def test_while_it_is_not_known_how_many_there_are_all_keep_what_they_have(vhost: str) -> None:
    first, second = orders(vhost), orders(vhost)
    await first.open()
    await second.open()
    await publish(vhost, keyed(100, keys=50))
    await received(first, 100)
    async with rabbitmq_channel(vhost) as channel:
        await channel.queue_delete("orders.members")
    assert await revoked(first) == []
    await first.close()
    await second.close()


async def test_a_broken_hand_over_ends_the_session(vhost: str) -> None:
    first, second = orders(vhost), orders(vhost)
    await first.open()
    await second.open()
    await publish(vhost, keyed(100, keys=50))
    await received(first, 100)
    given = await revoked(first)
    async with rabbitmq_channel(vhost) as channel:
        for queue in QUEUES:
            await channel.queue_delete(queue)
    for each in given:
        each.released()
        each.released()  # once more does no harm
    async with asyncio.timeout(SECONDS):
        with pytest.raises(BrokerUnavailable):
            while True:
                await first.receive()
    await first.open()  # which makes them again
    await first.close()
    await second.close()


# -- what does not fit together --------------------------------------------------------------------------------------


async def test_another_number_is_refused_until_the_exchange_is_deleted(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    await subscriber.close()
    with pytest.raises(BrokerUnavailable, match="partitions is 8, and the queue 'orders' is divided into another"):
        await orders(vhost, partitions=8).open()
    async with rabbitmq_channel(vhost) as channel:
        await channel.exchange_delete("orders.partitions")
    other = orders(vhost, partitions=8)
    await other.open()
    await other.close()


async def test_a_queue_from_before_it_was_divided_is_refused(vhost: str) -> None:
    undivided = orders(vhost, partitions=None)
    await undivided.open()
    await undivided.close()
    with pytest.raises(BrokerUnavailable, match="there is a queue 'orders': what it has must be handled before"):
        await orders(vhost).open()
    async with rabbitmq_channel(vhost) as channel:
        await channel.queue_delete("orders")
    subscriber = orders(vhost)
    await subscriber.open()
    await subscriber.close()


async def test_queues_that_exist_can_be_checked_only(vhost: str) -> None:
    with pytest.raises(BrokerUnavailable, match="is missing; create it"):
        await orders(vhost, declare="check").open()
    made = orders(vhost)
    await made.open()
    for declare in ("check", "no"):
        subscriber = orders(vhost, declare=declare)
        await subscriber.open()
        await subscriber.close()
    await made.close()


async def test_a_dead_letter_of_any_partition_has_one_place(vhost: str) -> None:
    subscriber = orders(vhost)
    await subscriber.open()
    await publish(vhost, keyed(40, keys=40))
    found = await received(subscriber, 40)
    assert len(set(map(queue_of, found))) == PARTITIONS
    for each in found:
        await subscriber.dead_letter(each, {"postroad-reason": "bad"})
    subscriber.ack(found)
    await subscriber.close()
    assert len(await consumed(vhost, "orders.dead")) == 40
    assert [await consumed(vhost, queue) for queue in QUEUES] == [[]] * PARTITIONS


async def test_prefetch_counts_for_each_partition(vhost: str) -> None:
    subscriber = orders(vhost, prefetch=5)
    await subscriber.open()
    await publish(vhost, keyed(200, keys=50))
    found = await received(subscriber, 5 * PARTITIONS)
    assert Counter(map(queue_of, found)) == dict.fromkeys(QUEUES, 5)
    await subscriber.close()


def test_settings_that_contradict_each_other() -> None:
    settings = SubscriberSettings(partitions=4)
    with pytest.raises(InvalidSetting, match="partitions is 4 and ordering is 'none'"):
        settings.completed(Subscription("orders", in_order=False))
    with pytest.raises(InvalidSetting, match="partitions is 129; it must be a whole number from 1 to 128"):
        SubscriberSettings(partitions=129)
    with pytest.raises(InvalidSetting, match=r"queue is 'q+\.unpartitioned'"):
        orders("amqp://localhost", queue="q" * 243)
