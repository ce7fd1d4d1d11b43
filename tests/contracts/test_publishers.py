"""The words of `Publisher`, tested on every destination.

A new one needs a class in tests/destinations.py and its name in the list below.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from postroad import BrokerUnavailable, Refusal, StoredMessage
from postroad.brokers.null import NullPublisher
from tests.destinations import (
    ConsumerDestination,
    Destination,
    HTTPDestination,
    KafkaDestination,
    LocalDestination,
    MemoryDestination,
    NATSDestination,
    RabbitMQDestination,
    RedisDestination,
    a_page,
    stored,
)
from tests.services.http import HTTPServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from postroad.brokers.base import Publisher


@pytest.fixture
async def http_server() -> AsyncIterator[HTTPServer]:
    async with HTTPServer() as server:
        yield server


@pytest.fixture
def confirm_timeout() -> str:
    """Short, for outages. A test that ends a call by itself needs a longer one."""
    return "5s"


@pytest.fixture(params=["memory", "local", "rabbitmq", "kafka", "nats", "http", "redis"])
async def destination(
    request: pytest.FixtureRequest, http_server: HTTPServer, confirm_timeout: str
) -> AsyncIterator[Destination]:
    destination: Destination
    if request.param == "http":
        destination = HTTPDestination(http_server)
    elif request.param == "memory":
        destination = MemoryDestination()
    elif request.param == "kafka":
        destination = KafkaDestination.fresh(request.getfixturevalue("kafka"), confirm_timeout=confirm_timeout)
    elif request.param == "nats":
        destination = NATSDestination(request.getfixturevalue("nats"), confirm_timeout=confirm_timeout)
    elif request.param == "redis":
        destination = RedisDestination(request.getfixturevalue("redis"), confirm_timeout=confirm_timeout)
    elif request.param == "local":
        destination = LocalDestination()
    else:
        vhost = request.getfixturevalue("vhost")
        destination = await RabbitMQDestination.fresh(request.getfixturevalue("rabbitmq"), vhost)
    yield destination
    await destination.publisher.close()


async def test_what_is_not_refused_has_arrived_in_order(destination: Destination) -> None:
    page = a_page(50)
    assert list(await destination.publisher.publish(page)) == []
    assert await destination.arrived() == [message.id for message in page]


async def test_pages_follow_each_other(destination: Destination) -> None:
    first, second = a_page(5), a_page(5, first=6)
    await destination.publisher.publish(first)
    await destination.publisher.publish(second)
    assert await destination.arrived() == [message.id for message in first + second]


async def test_an_empty_page_is_nothing(destination: Destination) -> None:
    assert list(await destination.publisher.publish([])) == []
    assert await destination.arrived() == []


async def test_a_refusal_concerns_one_message_only(destination: Destination) -> None:
    page = a_page(5)
    page[2] = destination.refused(page[2])
    (refusal,) = await destination.publisher.publish(page)
    assert refusal.position == page[2].position
    assert refusal.reason
    assert not refusal.permanent
    assert await destination.arrived() == [page[index].id for index in (0, 1, 3, 4)]


async def test_refusals_are_in_the_order_of_the_page(destination: Destination) -> None:
    page = [destination.refused(message) for message in a_page(4)]
    refusals = await destination.publisher.publish(page)
    assert [refusal.position for refusal in refusals] == [1, 2, 3, 4]
    assert await destination.arrived() == []


async def test_a_refused_message_can_be_sent_again(destination: Destination) -> None:
    message = stored()
    assert await destination.publisher.publish([destination.refused(message)])
    assert not await destination.publisher.publish([message])
    assert await destination.arrived() == [message.id]


async def test_several_lanes_publish_at_once(destination: Destination) -> None:
    lanes = [a_page(200, first=1 + 200 * lane) for lane in range(4)]
    for lane in lanes:
        lane[7] = destination.refused(lane[7])
    answers = await asyncio.gather(*map(destination.publisher.publish, lanes))
    assert [[refusal.position for refusal in refusals] for refusals in answers] == [[8], [208], [408], [608]]
    arrived = await destination.arrived()
    for lane in lanes:
        wanted = [message.id for message in lane if message is not lane[7]]
        assert [each for each in arrived if each in set(wanted)] == wanted
    assert len(arrived) == 4 * 199


async def test_open_can_be_called_again(destination: Destination) -> None:
    await destination.publisher.open()
    await destination.publisher.open()
    assert not await destination.publisher.publish([stored()])


async def test_a_closed_publisher_can_be_opened(destination: Destination) -> None:
    await destination.publisher.open()
    await destination.publisher.close()
    await destination.publisher.close()
    await destination.publisher.open()
    message = stored()
    assert not await destination.publisher.publish([message])
    assert await destination.arrived() == [message.id]


async def test_after_an_outage_what_was_not_confirmed_is_published_again(destination: Destination) -> None:
    before, page = stored(100), a_page(5)
    await destination.publisher.publish([before])
    await destination.fail()
    with pytest.raises(BrokerUnavailable) as outage:
        await destination.publisher.publish(page)
    await destination.recover()
    confirmed = [message.id for message in page if message.position in outage.value.confirmed]
    assert await destination.arrived() == [before.id, *confirmed]
    assert await published_again(destination.publisher, page, outage.value) == []
    assert await destination.arrived() == [message.id for message in (before, *page)]


async def published_again(publisher: Publisher, page: list[StoredMessage], outage: BrokerUnavailable) -> list[int]:
    refused = {refusal.position for refusal in outage.refusals}
    rest = [message for message in page if message.position not in outage.confirmed | refused]
    return [refusal.position for refusal in await publisher.publish(rest)]


@pytest.mark.parametrize("confirm_timeout", ["120s"])
async def test_nothing_is_sent_any_more_when_a_call_was_cancelled(destination: Destination) -> None:
    """In an outage, with far more than what connections and their buffers hold."""
    before = stored(1_000_000)
    await destination.publisher.open()
    await destination.publisher.publish([before])
    page = [stored(position, payload=b"x" * 100_000) for position in range(1, 201)]
    async with destination.stalled() as sent:
        call = asyncio.create_task(destination.publisher.publish(page))
        on_the_way = await sent()
        call.cancel()
        await asyncio.wait((call,), timeout=60)
        assert call.cancelled()
    after = stored(2_000_000)
    assert not await destination.publisher.publish([after])
    arrived = await destination.arrived()
    assert (arrived[0], after.id in arrived) == (before.id, True)
    late = [message.id for message in page if message.id in set(arrived)]
    assert len(late) <= on_the_way // 100_000
    assert late == [message.id for message in page[: len(late)]]


async def test_open_says_what_a_confirm_means(destination: Destination) -> None:
    durability = await destination.publisher.open()
    assert durability is not None
    assert durability.meaning
    assert await destination.publisher.open() == durability, "the same unless it changes"


async def test_an_outage_contains_what_was_refused_before_it() -> None:
    # Only here can a test say when the outage begins. RabbitMQ's own is in test_rabbitmq.py.
    for destination in (MemoryDestination(), LocalDestination()):
        page = a_page(4)
        page[1] = destination.refused(page[1])
        await destination.fail()
        with pytest.raises(BrokerUnavailable) as outage:
            await destination.publisher.publish(page)
        assert [refusal.position for refusal in outage.value.refusals] == [2]
        assert 1 in outage.value.confirmed
        assert 2 not in outage.value.confirmed


async def test_null_takes_everything() -> None:
    publisher = NullPublisher()
    assert "stores nothing" in (await publisher.open()).meaning
    assert list(await publisher.publish(a_page(3))) == []
    await publisher.close()


# -- in order --------------------------------------------------------------------------------------------------------


async def test_who_takes_what_is_behind_a_refused_message_does_not_claim_to_be_in_order(
    destination: Destination,
) -> None:
    page = [stored(position, key="k") for position in (1, 2, 3)]
    page[1] = destination.refused(page[1])
    refusals = await destination.publisher.publish(page)
    assert [refusal.position for refusal in refusals] == [2]
    took_it = page[2].id in await destination.arrived()
    assert took_it is not getattr(destination.publisher, "in_order", False)


IN_ORDER = {"memory": 20, "consumer": 20, "kafka": 3, "redis": 5}
"""Every destination that claims to be in order and can refuse a message, and how many seeds it has time for."""


@pytest.fixture
async def in_order(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Destination]:
    destination: Destination
    if request.param == "memory":
        destination = MemoryDestination(in_order=True)
    elif request.param == "kafka":
        seconds = {"confirm_timeout": "1s", "connect_timeout": "1s"}
        destination = KafkaDestination.fresh(request.getfixturevalue("kafka"), freezes=True, **seconds)
    elif request.param == "redis":
        destination = RedisDestination(request.getfixturevalue("redis"), freezes=True, confirm_timeout="1s")
    else:
        destination = ConsumerDestination(tmp_path / "inbox.sqlite")
    assert getattr(destination.publisher, "in_order", False) is True
    yield destination
    await destination.publisher.close()


@pytest.mark.parametrize(
    ("in_order", "seed"),
    [(name, seed) for name, seeds in IN_ORDER.items() for seed in range(seeds)],
    indirect=["in_order"],
)
async def test_of_a_key_nothing_is_taken_behind_what_was_not_taken(in_order: Destination, seed: int) -> None:
    """Whatever is refused, and wherever an outage begins."""
    random = Random(seed)
    await in_order.publisher.open()
    for first in range(1, 101, 20):
        page = [stored(first + n, key=random.choice(["a", "b", "c", None])) for n in range(random.randrange(1, 20))]
        page = [in_order.refused(message) if random.random() < 0.15 else message for message in page]
        before = len(await in_order.arrived())
        if random.random() < 0.5:
            await in_order.fail(after=random.randrange(len(page)))
        outage: BrokerUnavailable | None = None
        refusals: Sequence[Refusal] = ()
        try:
            refusals = await in_order.publisher.publish(page)
        except BrokerUnavailable as error:
            outage, refusals = error, list(error.refusals)
        await in_order.recover()
        arrived = (await in_order.arrived())[before:]
        refused = {refusal.position for refusal in refusals}
        for key in {message.key or message.position for message in page}:
            line = [message for message in page if key in (message.key, message.position)]
            ids = [message.id for message in line]
            taken = [each for each in arrived if each in ids]
            assert taken == ids[: len(taken)], "the first of the key, in order"
            told = [message.position for message in line if message.position in refused]
            following = [message.position for message in line[len(taken) :]]
            assert told in ([], following[:1]), "at most the first that it did not take is refused"
            assert outage is not None or told == following[:1], "without an outage, nothing else stops it"
        positions = {message.position for message in page if message.id in arrived}
        assert outage is None or outage.confirmed <= positions


async def test_a_consumer_that_needs_no_order_does_not_claim_it(tmp_path: Path) -> None:
    destination = ConsumerDestination(tmp_path / "inbox.sqlite", ordering="none")
    assert not destination.publisher.in_order
    page = [stored(position, key="k") for position in (1, 2, 3)]
    page[0] = destination.refused(page[0])
    assert [refusal.position for refusal in await destination.publisher.publish(page)] == [1]
    assert set(await destination.arrived()) == {page[1].id, page[2].id}
    await destination.publisher.close()


def test_null_is_in_order() -> None:
    assert NullPublisher.in_order is True
