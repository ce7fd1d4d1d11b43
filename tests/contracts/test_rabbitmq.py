"""What is RabbitMQ's own, on a real server: refusals, outages, alarms, and what a consumer finds in the queue."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest
from aio_pika import DeliveryMode
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event

from postroad import BrokerUnavailable, StoredMessage
from postroad.brokers.rabbitmq.channel import ConfirmChannel
from postroad.brokers.rabbitmq.confirms import Confirms
from postroad.brokers.rabbitmq.publisher import WRITE_BYTES, RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from tests.destinations import (
    CREATED_US,
    RabbitMQDestination,
    a_page,
    bound_queue,
    consumed,
    rabbitmq_channel,
    stored,
)
from tests.services.proxy import Proxy
from tests.services.rabbitmq import frozen
from tests.services.server import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from aio_pika.abc import AbstractIncomingMessage

    from tests.services.rabbitmq import RabbitMQ

PublisherMaker = Callable[..., RabbitMQPublisher]


@pytest.fixture
async def queue(vhost: str) -> str:
    """The name of a queue that takes everything from the exchange "postroad"."""
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "all")
    return "all"


@pytest.fixture
async def publisher_to(vhost: str) -> AsyncIterator[PublisherMaker]:
    """Makes publishers to the vhost, and closes them."""
    made: list[RabbitMQPublisher] = []

    def make(url: str = vhost, **settings: Any) -> RabbitMQPublisher:
        made.append(RabbitMQPublisher(url, PublisherSettings(**settings)))
        return made[-1]

    yield make
    for publisher in made:
        await publisher.close()


@pytest.fixture
async def publisher(publisher_to: PublisherMaker) -> RabbitMQPublisher:
    return publisher_to()


async def ids_in(vhost: str, queue: str) -> list[UUID]:
    return [UUID(message.message_id) for message in await consumed(vhost, queue)]


def ids(messages: list[StoredMessage]) -> list[UUID]:
    return [message.id for message in messages]


async def eventually(publisher: RabbitMQPublisher, messages: list[StoredMessage]) -> int:
    """Publish again and again, as a relay does, until the broker can be asked. How many calls that took."""
    async with asyncio.timeout(60):
        for calls in count(1):
            try:
                assert not await publisher.publish(messages)
            except BrokerUnavailable:
                await asyncio.sleep(0.01)
            else:
                return calls
    raise AssertionError  # `count` does not end


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.005)


def pages(publisher: RabbitMQPublisher) -> list[Confirms]:
    assert publisher._connection is not None
    return [
        channel.confirms for channel in publisher._connection.channels.values() if isinstance(channel, ConfirmChannel)
    ]


# -- what a consumer gets --------------------------------------------------------------------------------------------


async def test_a_message_is_persistent_and_has_its_properties(
    publisher: RabbitMQPublisher, vhost: str, queue: str
) -> None:
    message = stored(headers={"tenant": "ACME ü", "correlation_id": "c-1", "causation_id": "b-1"}, payload=b"\x00\xff")
    assert not await publisher.publish([message])
    (got,) = await consumed(vhost, queue)
    assert got.delivery_mode == DeliveryMode.PERSISTENT
    assert (got.exchange, got.routing_key) == ("postroad", "order.created")
    assert (got.body, got.content_type) == (b"\x00\xff", "application/json")
    assert (got.message_id, got.type, got.correlation_id) == (str(message.id), "order.created", "c-1")
    assert got.timestamp == datetime.fromtimestamp(CREATED_US // 1_000_000, UTC)
    assert got.headers == {
        "tenant": "ACME ü",
        "ce-specversion": "1.0",
        "ce-id": str(message.id),
        "ce-source": "/tests",
        "ce-type": "order.created",
        "ce-time": "2025-01-02T03:04:05.123456Z",
        "ce-subject": "order-1",
        "ce-partitionkey": "order-1",
        "ce-correlationid": "c-1",
        "ce-causationid": "b-1",
    }


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_the_official_sdk_reads_what_arrives(
    publisher_to: PublisherMaker, vhost: str, queue: str, mode: Any
) -> None:
    message = stored(payload=b'{"total":12}')
    assert not await publisher_to(envelope=mode).publish([message])
    (got,) = await consumed(vhost, queue)
    event = from_rabbitmq_event(as_the_sdk_wants(got))
    assert (event.get_id(), event.get_source(), event.get_type()) == (str(message.id), "/tests", "order.created")
    assert event.get_data() == {"total": 12}


async def test_json_that_is_nested_too_deeply_is_refused_alone(
    publisher_to: PublisherMaker, vhost: str, queue: str
) -> None:
    page = a_page(300)
    page[150] = stored(151, payload=b"[" * 100_000 + b"]" * 100_000)
    (refusal,) = await publisher_to(envelope="structured").publish(page)
    assert (refusal.position, refusal.permanent) == (151, True)
    assert await ids_in(vhost, queue) == [message.id for message in page if message.position != 151]


def as_the_sdk_wants(message: AbstractIncomingMessage) -> RabbitMQMessage:
    headers = {name: str(value) for name, value in message.headers.items()}
    return RabbitMQMessage(headers, message.content_type, message.body)


async def test_a_plain_message_has_no_more_headers_than_the_user_gave(
    publisher_to: PublisherMaker, vhost: str, queue: str
) -> None:
    assert not await publisher_to(envelope="plain").publish([stored(headers={"tenant": "acme"})])
    (got,) = await consumed(vhost, queue)
    assert got.headers == {"tenant": "acme"}
    assert got.body == b'{"number":1}'


@pytest.mark.parametrize("size", [0, 131_064, 131_065, 5_000_000])  # none, one frame just full, two, many
async def test_payloads_of_any_size_arrive_whole(
    publisher: RabbitMQPublisher, vhost: str, queue: str, size: int
) -> None:
    payload = os.urandom(size)
    page = [stored(1), stored(2, payload=payload), stored(3)]
    assert not await publisher.publish(page)
    assert [message.body for message in await consumed(vhost, queue)] == [page[0].payload, payload, page[2].payload]


async def test_the_routing_key_is_made_from_the_template(publisher_to: PublisherMaker, vhost: str, queue: str) -> None:
    publisher = publisher_to(routing_key="{tenant}.{type}")
    page = [stored(1, headers={"tenant": "acme"}), stored(2)]
    (refusal,) = await publisher.publish(page)
    assert (refusal.position, refusal.permanent, refusal.route) == (2, True, None)
    assert "header 'tenant'" in refusal.reason
    assert [message.routing_key for message in await consumed(vhost, queue)] == ["acme.order.created"]


async def test_ten_thousand_messages_from_four_calls_at_once(
    publisher: RabbitMQPublisher, vhost: str, queue: str
) -> None:
    lanes = [a_page(2500, first=1 + 2500 * lane) for lane in range(4)]
    assert await asyncio.gather(*map(publisher.publish, lanes)) == [[], [], [], []]
    arrived = await ids_in(vhost, queue)
    assert len(arrived) == 10_000
    for lane in lanes:
        mine = set(ids(lane))
        assert [each for each in arrived if each in mine] == ids(lane)


async def test_calls_at_once_share_one_connection(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    for _ in range(2):
        await asyncio.gather(*(publisher.publish(a_page(10)) for _ in range(4)))
    connections = [
        line for line in rabbitmq.ctl("list_connections", "vhost", "channels").splitlines() if "test-" in line
    ]
    assert connections == [f"{vhost.rpartition('/')[2]}\t4"]


# -- refusals --------------------------------------------------------------------------------------------------------


async def test_an_unroutable_message_is_refused_and_the_reason_names_key_and_exchange(
    publisher: RabbitMQPublisher, vhost: str
) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "order.#")
    page = [stored(1), stored(2, topic="invoice.sent"), stored(3)]
    (refusal,) = await publisher.publish(page)
    assert (refusal.position, refusal.permanent, refusal.route) == (2, False, "invoice.sent")
    assert "'invoice.sent'" in refusal.reason
    assert "'postroad'" in refusal.reason
    assert await ids_in(vhost, "orders") == [page[0].id, page[2].id]


async def test_a_full_queue_that_rejects_is_a_refusal(publisher: RabbitMQPublisher, vhost: str) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "small", "small", max_length=2, overflow="reject-publish")
        await bound_queue(channel, "large", "large")
    page = [stored(position, topic="small" if position % 2 else "large") for position in range(1, 11)]
    refusals = await publisher.publish(page)
    assert [(refusal.position, refusal.route) for refusal in refusals] == [(5, "small"), (7, "small"), (9, "small")]
    assert all("basic.nack" in refusal.reason and not refusal.permanent for refusal in refusals)
    assert await ids_in(vhost, "small") == [page[0].id, page[2].id]
    assert len(await ids_in(vhost, "large")) == 5


@contextmanager
def largest_message(server: RabbitMQ, size: int) -> Iterator[None]:
    server.ctl("eval", f"application:set_env(rabbit, max_message_size, {size}).")
    try:
        yield
    finally:
        server.ctl("eval", "application:set_env(rabbit, max_message_size, 134217728).")


async def test_what_is_too_large_for_the_server_is_refused_for_good_and_the_rest_goes_on(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    page = [stored(position, payload=b"x" * (1001 if position in {3, 6} else 1000)) for position in range(1, 8)]
    with largest_message(rabbitmq, 1000):
        refusals = await publisher.publish(page)
    assert [(refusal.position, refusal.permanent) for refusal in refusals] == [(3, True), (6, True)]
    assert "larger than configured max size 1000" in refusals[0].reason
    assert refusals[0].route is None  # it is the message's own fault
    arrived = await ids_in(vhost, queue)  # what had no confirm when the server closed the channel is there twice
    assert list(dict.fromkeys(arrived)) == [message.id for message in page if message.position not in {3, 6}]


async def test_the_servers_limit_is_learned(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    large = stored(1, payload=b"x" * 1001)
    with largest_message(rabbitmq, 1000):
        await publisher.publish([large])
        page = [stored(2), large, stored(3)]
        (refusal,) = await publisher.publish(page)
    assert "at most 1,000" in refusal.reason  # our words, not the server's: it was not asked
    assert await ids_in(vhost, queue) == [page[0].id, page[2].id]


async def test_what_cannot_be_encoded_is_refused_for_good(publisher_to: PublisherMaker, vhost: str, queue: str) -> None:
    page = [
        stored(1),
        stored(2, payload=b"x" * 5001),
        stored(3, topic="ü" * 128),
        stored(4, headers={"note": "x" * 200_000}),
        stored(5, headers={"n" * 256: "x"}),
        stored(6, headers={"CC": "somebody.else"}),
        stored(7, headers={"correlation_id": "c" * 256}),
        stored(8, headers_json='{"no": "source"}'),
        stored(9, headers_json='{"source": 5}'),
        stored(10, headers_json="[]"),
        stored(11),
    ]
    refusals = await publisher_to(max_message_size=5000).publish(page)
    assert all(refusal.permanent and refusal.route is None for refusal in refusals)
    logged = {refusal.position: refusal.reason for refusal in refusals}
    for position, words in {
        2: "at most 5,000",
        3: "the routing key has 256 bytes",
        4: "headers and properties",
        5: "name of a header",
        6: "'CC'",
        7: "correlation id",
        8: "'source'",
        9: "headers",
        10: "headers",
    }.items():
        assert words in logged.pop(position)
    assert logged == {}
    assert await ids_in(vhost, queue) == [page[0].id, page[-1].id]


async def test_a_topic_that_the_user_may_not_write_is_refused_alone(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    with limited_user(rabbitmq, vhost, write="^postroad$") as url:
        rabbitmq.ctl("set_topic_permissions", "-p", vhost.rpartition("/")[2], "limited", "postroad", "^order\\.", ".*")
        page = [stored(1), stored(2, topic="salary.paid"), stored(3)]
        refusals = await publisher_to(url, declare="no").publish(page)
    assert [(each.position, each.permanent, each.route) for each in refusals] == [(2, False, "salary.paid")]
    assert "salary.paid" in refusals[0].reason
    assert list(dict.fromkeys(await ids_in(vhost, queue))) == [page[0].id, page[2].id]


@contextmanager
def limited_user(server: RabbitMQ, vhost: str, *, configure: str = "^$", write: str = "^$") -> Iterator[str]:
    """The URL of a user who may do only this."""
    server.ctl("add_user", "limited", "its-secret")
    try:
        server.ctl("set_permissions", "-p", vhost.rpartition("/")[2], "limited", configure, write, ".*")
        yield vhost.replace("guest:guest", "limited:its-secret")
    finally:
        server.ctl("delete_user", "limited")


# -- the exchange ----------------------------------------------------------------------------------------------------


async def test_a_deleted_exchange_is_an_outage_and_is_declared_again(
    publisher: RabbitMQPublisher, vhost: str, queue: str
) -> None:
    await publisher.publish([stored()])
    async with rabbitmq_channel(vhost) as channel:
        await channel.exchange_delete("postroad")
    with pytest.raises(BrokerUnavailable, match="the exchange 'postroad' is gone") as outage:
        await publisher.publish([stored()])
    assert not outage.value.confirmed
    assert not outage.value.suspicious  # any message would have met with this
    (refusal,) = await publisher.publish([stored()])  # it is there again, but nothing is bound to it
    assert "no queue takes the routing key" in refusal.reason
    assert refusal.route == "order.created"


async def test_open_reports_a_missing_exchange(publisher_to: PublisherMaker) -> None:
    publisher = publisher_to(declare="check", exchange="elsewhere")
    with pytest.raises(BrokerUnavailable, match="no exchange 'elsewhere'; create it, or set declare='create'"):
        await publisher.open()
    with pytest.raises(BrokerUnavailable, match="no exchange 'elsewhere'"):
        await publisher.publish([stored()])


async def test_an_exchange_of_another_type_can_be_used_when_it_is_only_checked(
    publisher_to: PublisherMaker, vhost: str
) -> None:
    async with rabbitmq_channel(vhost) as channel:
        fanout = await channel.declare_exchange("news", "fanout", durable=False)
        await (await channel.declare_queue("all", durable=True)).bind(fanout)
    with pytest.raises(BrokerUnavailable, match="'news' exists but is not a durable topic exchange"):
        await publisher_to(exchange="news").open()
    message = stored()
    assert not await publisher_to(exchange="news", declare="check").publish([message])
    assert await ids_in(vhost, "all") == [message.id]


async def test_without_declaring_publish_reports_a_missing_exchange(publisher_to: PublisherMaker) -> None:
    publisher = publisher_to(declare="no", exchange="elsewhere")
    await publisher.open()
    with pytest.raises(BrokerUnavailable, match="the exchange 'elsewhere' is gone"):
        await publisher.publish([stored()])


async def test_the_error_names_the_missing_permission_of_a_user(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    with limited_user(rabbitmq, vhost) as url:
        with pytest.raises(
            BrokerUnavailable, match=r"'limited' may not declare the exchange 'other'.*configure permission"
        ):
            await publisher_to(url, exchange="other").open()
        with pytest.raises(
            BrokerUnavailable, match=r"'limited' may not publish to the exchange 'postroad'.*write permission"
        ) as outage:
            await publisher_to(url, declare="check").publish([stored()])
        assert not outage.value.suspicious


# -- outages ---------------------------------------------------------------------------------------------------------


async def test_no_server_listens(publisher_to: PublisherMaker) -> None:
    publisher = publisher_to(f"amqp://127.0.0.1:{free_port()}/")
    with pytest.raises(BrokerUnavailable, match="Connect call failed"):
        await publisher.open()
    with pytest.raises(BrokerUnavailable, match="Connect call failed") as outage:
        await publisher.publish([stored()])
    assert not outage.value.suspicious


async def test_a_server_listens_and_does_not_answer(publisher_to: PublisherMaker) -> None:
    hung_up = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        publisher = publisher_to(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/", connect_timeout="100ms")
        with pytest.raises(BrokerUnavailable, match=r"no connection within 0\.1 seconds"):
            await publisher.open()
        async with asyncio.timeout(60):
            await hung_up.wait()


async def test_the_error_about_a_wrong_password_does_not_contain_it(
    publisher_to: PublisherMaker, vhost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    publisher = publisher_to(vhost.replace("guest:guest", "guest:Tr0ub4dor"))
    with pytest.raises(BrokerUnavailable, match="the login was refused; check username and password") as outage:
        await publisher.open()
    error: BaseException | None = outage.value
    while error is not None:
        assert "Tr0ub4dor" not in f"{error!r} {error}"
        error = error.__cause__
    assert "Tr0ub4dor" not in caplog.text
    assert "Tr0ub4dor" not in f"{publisher!r} {publisher.name}"


async def test_an_unknown_vhost_is_reported(publisher_to: PublisherMaker, rabbitmq: RabbitMQ) -> None:
    with pytest.raises(BrokerUnavailable, match="the vhost does not exist"):
        await publisher_to(rabbitmq.url("nowhere")).open()


async def test_credentials_given_as_settings_replace_the_urls(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("its-secret\n")
    with limited_user(rabbitmq, vhost, write="^postroad$"):
        publisher = publisher_to(declare="no", username="limited", password_file=file)
        assert not await publisher.publish([stored()])
        rabbitmq.ctl("change_password", "limited", "another-secret")
        file.write_text("another-secret\n")
        await publisher.close()
        assert not await publisher.publish([stored()])  # the file was read again


async def test_everything_that_was_confirmed_is_in_the_queue_after_the_server_was_killed(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    confirmed: set[int] = set()
    pages = [a_page(1000, first=1 + 1000 * number) for number in range(40)]
    under_way = asyncio.Event()

    async def publish_all() -> BrokerUnavailable | None:
        for number, page in enumerate(pages):
            if number == 4:
                under_way.set()
            try:
                assert not await publisher.publish(page)
            except BrokerUnavailable as outage:
                confirmed.update(outage.confirmed)
                return outage
            confirmed.update(message.position for message in page)
        return None

    publishing = asyncio.create_task(publish_all())
    await under_way.wait()
    async with rabbitmq_channel(vhost) as channel:  # some round trips later the fifth page or a later one is under way
        await channel.declare_queue(queue, passive=True)
    rabbitmq.kill()
    outage = await publishing
    assert outage is not None
    assert len(confirmed) >= 4000
    rabbitmq.start()
    arrived = set(await ids_in(vhost, queue))
    everything = [message for page in pages for message in page]
    assert {message.id for message in everything if message.position in confirmed} <= arrived

    rest = [message for message in everything[:6000] if message.position not in confirmed]
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, queue)  # seen under load: a server that is killed soon after a binding forgets it
    await eventually(publisher, rest)
    assert set(ids(rest)) <= set(await ids_in(vhost, queue))


async def test_the_server_stops_in_the_middle_of_a_page(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    page = a_page(30_000)
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "witness", "order.#")
        witness = await channel.get_queue("witness")
        async with witness.iterator(no_ack=True) as arriving:
            publishing = asyncio.create_task(publisher.publish(page))
            await anext(aiter(arriving))  # the first message is through, and the last is not written yet
    rabbitmq.stop()
    with pytest.raises(BrokerUnavailable, match="CONNECTION_FORCED|[Cc]onnection reset") as outage:
        await publishing
    assert len(outage.value.confirmed) < len(page)
    # A stopping server says so, or it resets the connection when unread frames were left: then a message is suspected.
    assert outage.value.suspicious == ("CONNECTION_FORCED" not in str(outage.value))
    rabbitmq.start()
    arrived = set(await ids_in(vhost, queue))
    assert {message.id for message in page if message.position in outage.value.confirmed} <= arrived
    await eventually(publisher, [stored()])


async def test_a_lost_connection_is_made_anew(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    await publisher.publish([stored()])
    rabbitmq.ctl("close_all_connections", "--vhost", vhost.rpartition("/")[2], "an operator was here")
    message = stored()
    await eventually(publisher, [message])
    assert message.id in await ids_in(vhost, queue)


async def test_a_connection_that_an_operator_closes_is_no_messages_fault(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    async def publish_on_and_on() -> None:
        while True:
            assert not await publisher.publish(a_page(1000))

    publishing = asyncio.create_task(publish_on_and_on())
    await asyncio.to_thread(rabbitmq.ctl, "close_all_connections", "--vhost", vhost.rpartition("/")[2], "good night")
    with pytest.raises(BrokerUnavailable, match="CONNECTION_FORCED - good night") as outage:
        await asyncio.wait_for(publishing, 60)
    assert not outage.value.suspicious


async def test_a_connection_that_breaks_upon_a_message_makes_it_suspicious(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    poison = stored(payload=b"this breaks it")
    async with Proxy(rabbitmq.port) as proxy:
        proxy.cut_at(poison.payload)
        publisher = publisher_to(proxy.url(vhost))
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match="connection") as outage:
                await publisher.publish([poison])
            assert outage.value.suspicious
            await publisher.open()  # without the message it works
        message = stored()
        assert not await publisher.publish([message])
        assert await ids_in(vhost, queue) == [message.id]
        await publisher.close()


async def test_the_error_of_a_cut_connection_contains_what_was_confirmed(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    page = a_page(20_000)
    async with Proxy(rabbitmq.port) as proxy:
        publisher = publisher_to(proxy.url(vhost))
        await publisher.publish([stored()])
        proxy.cut_after(answered=100)  # some confirms
        with pytest.raises(BrokerUnavailable) as outage:
            await publisher.publish(page)
        confirmed = outage.value.confirmed
        assert 0 < len(confirmed) < len(page)
        assert {message.id for message in page if message.position in confirmed} <= set(await ids_in(vhost, queue))
        rest = [message for message in page if message.position not in confirmed]
        assert not await publisher.publish(rest)
        assert set(ids(rest)) <= set(await ids_in(vhost, queue))
        await publisher.close()


async def test_an_alarm_is_reported_at_once_and_its_end_is_noticed(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    await publisher.publish([stored()])
    refused, later = stored(), stored()
    rabbitmq.block()
    try:
        # Had the alarm not been noticed, this would end after 30 seconds and with other words.
        for _ in range(3):
            with pytest.raises(
                BrokerUnavailable, match="blocks publishers because of an alarm: low on memory"
            ) as outage:
                await publisher.publish([refused])
            assert not outage.value.suspicious
    finally:
        rabbitmq.unblock()
    await eventually(publisher, [later])
    arrived = await ids_in(vhost, queue)
    assert later.id in arrived
    assert arrived.count(refused.id) <= 1  # a blocked broker is not given more, to be published when it is over


async def test_of_an_alarm_with_much_on_its_way_messages_come_twice_at_most(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    """The connection is given up, because it holds bytes; the next ones are given nothing before the alarm is over."""
    page = [stored(position, payload=b"x" * 12_000_000) for position in range(1, 4)]
    await publisher.publish([stored()])
    before = publisher._connection
    rabbitmq.block()
    try:
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match="blocks publishers because of an alarm") as outage:
                await publisher.publish(page)
            assert not outage.value.suspicious
            with pytest.raises(BrokerUnavailable, match="blocks publishers because of an alarm"):
                await publisher.open()
        assert publisher._connection is not before, "it held bytes"
    finally:
        rabbitmq.unblock()
    await eventually(publisher, page)
    arrived = Counter(await ids_in(vhost, queue))
    assert set(ids(page)) <= set(arrived)
    assert max(arrived.values()) <= 2


async def test_nothing_is_sent_any_more_when_a_call_has_failed(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str
) -> None:
    destination = await RabbitMQDestination.fresh(rabbitmq, vhost)
    destination.publisher = publisher = publisher_to(confirm_timeout="2s")
    await publisher.open()
    page = [stored(position, payload=b"x" * 100_000) for position in range(1, 201)]
    async with destination.stalled() as sent:
        call = asyncio.create_task(publisher.publish(page))
        on_the_way = await sent()
        with pytest.raises(BrokerUnavailable, match="it has confirmed nothing for 2 seconds"):
            await call
    after = stored(1_000)
    assert not await publisher.publish([after])
    await publisher.close()  # which waits for the old connection
    arrived = await destination.arrived()
    assert after.id in arrived
    assert len(arrived) - 1 <= on_the_way // 100_000


async def test_an_alarm_wakes_every_call_that_waits(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    calls = [a_page(10_000) for _ in range(3)]
    await asyncio.gather(*(publisher.publish(page[:100]) for page in calls))  # each has its channel now
    rabbitmq.block()
    try:
        answers = await asyncio.gather(*map(publisher.publish, calls), return_exceptions=True)
    finally:
        rabbitmq.unblock()
    outages = [answer for answer in answers if isinstance(answer, BrokerUnavailable)]
    assert ["alarm" in str(outage) and not outage.suspicious for outage in outages] == [True] * 3


async def test_a_server_that_does_nothing_is_an_outage(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    publisher = publisher_to(confirm_timeout="1s")
    await publisher.open()
    with frozen(rabbitmq):
        with pytest.raises(BrokerUnavailable, match="it has confirmed nothing for 1 seconds") as outage:
            await publisher.publish([stored()])
        assert not outage.value.suspicious
        with pytest.raises(BrokerUnavailable, match=r"no connection within 0\.5 seconds"):
            await publisher_to(connect_timeout="500ms").publish([stored()])
    message = stored()
    await eventually(publisher, [message])
    assert message.id in await ids_in(vhost, queue)


async def test_a_connection_that_went_silent_is_made_anew(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    async with Proxy(rabbitmq.port) as proxy:
        publisher = publisher_to(proxy.url(vhost), confirm_timeout="2s")
        await publisher.open()
        proxy.go_silent()
        message = stored()
        with pytest.raises(BrokerUnavailable, match="it has confirmed nothing for 2 seconds"):
            await publisher.publish([message])
        calls = await eventually(publisher, [message])  # a busy broker may need longer than that to confirm
        arrived = await ids_in(vhost, queue)
        assert arrived == [message.id] * len(arrived)
        assert 1 <= len(arrived) <= calls, "a call sends a message once, and the silent connection never delivers it"
        await publisher.close()


async def test_missed_heartbeats_are_an_outage(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    publisher = publisher_to(heartbeat="1s")
    await publisher.open()
    with frozen(rabbitmq), pytest.raises(BrokerUnavailable, match="the broker sent nothing") as outage:
        await publisher.publish([stored()])
    assert not outage.value.suspicious
    await eventually(publisher, [stored()])


async def test_closing_wakes_a_call_that_waits(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str, queue: str
) -> None:
    await publisher.open()
    with frozen(rabbitmq):
        publishing = asyncio.create_task(publisher.publish([stored()]))
        await until(lambda: any(page.messages for page in pages(publisher)))  # it has been written
        await publisher.close()
        with pytest.raises(BrokerUnavailable, match="the publisher was closed") as outage:
            await publishing
        assert not outage.value.suspicious


async def test_closing_wakes_a_call_that_waits_for_a_connection(publisher_to: PublisherMaker) -> None:
    connected = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        publisher = publisher_to(f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        publishing = asyncio.create_task(publisher.publish([stored()]))
        await connected.wait()
        await publisher.close()
        with pytest.raises(BrokerUnavailable, match="the publisher was closed"):
            await publishing


async def test_the_answers_to_a_canceled_call_are_not_taken_for_the_next_ones(
    publisher: RabbitMQPublisher, rabbitmq: RabbitMQ, vhost: str
) -> None:
    async with rabbitmq_channel(vhost) as channel:
        await bound_queue(channel, "orders", "order.#")
    await publisher.open()
    wanted = a_page(10)
    with frozen(rabbitmq):
        unroutable = [msgspec.structs.replace(message, topic="unbound") for message in wanted]
        canceled = asyncio.create_task(publisher.publish(unroutable))
        await until(lambda: any(page.messages == unroutable for page in pages(publisher)))
        canceled.cancel()
        await asyncio.wait((canceled,))
        assert canceled.cancelled()
        channels = len(pages(publisher))
        publishing = asyncio.create_task(publisher.publish(wanted))
        await until(lambda: len(pages(publisher)) > channels)  # it waits for a channel of its own
    assert not await publishing
    assert await ids_in(vhost, "orders") == ids(wanted)


async def test_a_canceled_call_costs_nothing_but_itself(publisher: RabbitMQPublisher, vhost: str, queue: str) -> None:
    for _ in range(5):
        canceled = asyncio.create_task(publisher.publish(a_page(500)))
        await asyncio.wait((canceled,), timeout=0.005)
        canceled.cancel()
        await asyncio.wait((canceled,))
        page = a_page(500)
        assert not await publisher.publish(page)
        arrived = set(ids(page))
        assert [each for each in await ids_in(vhost, queue) if each in arrived] == ids(page)


async def test_a_write_is_never_larger_than_it_must_be(publisher: RabbitMQPublisher, vhost: str, queue: str) -> None:
    page = [stored(position, payload=b"x" * 30_000) for position in range(1, 21)]
    written: list[int] = []
    connection, channel = await publisher._channel()
    write = channel.write

    async def noted(messages: Any, frames: bytes) -> None:
        written.append(len(frames))
        await write(messages, frames)

    channel.write = noted  # type: ignore[method-assign]
    connection.give_back(channel)
    assert not await publisher.publish(page)
    assert len(written) > 1
    assert max(written) < WRITE_BYTES + 31_000


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost "
        f"-keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    return certificate, key


async def test_tls(
    publisher_to: PublisherMaker, rabbitmq: RabbitMQ, vhost: str, queue: str, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with Proxy(rabbitmq.port, context) as proxy:
        url = f"amqps://guest:guest@localhost:{proxy.port}/{vhost.rpartition('/')[2]}"
        with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await publisher_to(url).open()
        trusting = publisher_to(f"{url}?cafile={certificate[0]}")
        careless = publisher_to(f"{url}?no_verify_ssl=1")
        for publisher in (trusting, careless):
            message = stored(payload=os.urandom(300_000))
            assert not await publisher.publish([message])
            assert await ids_in(vhost, queue) == [message.id]
            await publisher.close()
