"""What Kafka answers, and what the publisher makes of it: each on the real server.

The contract itself is in test_publishers.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from postroad import BrokerUnavailable, Refusal, StoredMessage
from postroad.brokers.base import LaneEpoch, Publisher
from postroad.brokers.kafka import transactions
from postroad.brokers.kafka.publisher import KafkaPublisher
from postroad.brokers.kafka.settings import PublisherSettings
from postroad.errors import LeaseLost, LoginRefused
from tests.destinations import a_page, id_of, kafka_headers, stored
from tests.services.kafka import TRANSACTIONS, Kafka, until

MakePublisher = Callable[..., KafkaPublisher]


@pytest.fixture
async def publisher() -> AsyncIterator[MakePublisher]:
    """Makes publishers, and closes them."""
    made: list[KafkaPublisher] = []

    def make(url: str, **settings: Any) -> KafkaPublisher:
        defaults: dict[str, Any] = {"confirm_timeout": "5s", "connect_timeout": "5s"}
        made.append(KafkaPublisher(url, PublisherSettings(**defaults | settings)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def of_key(key: str | None, count: int, first: int = 1, **fields: Any) -> list[StoredMessage]:
    return [stored(first + n, key=key, **fields) for n in range(count)]


def ids(messages: list[StoredMessage]) -> list[UUID]:
    return [message.id for message in messages]


def arrived(kafka: Kafka, topic: str, **options: Any) -> list[UUID]:
    return [id_of(record) for record in kafka.records(topic, **options)]


def first_arrivals(found: list[UUID]) -> list[UUID]:
    return list(dict.fromkeys(found))


SMALL_BATCHES = {"batch.num.messages": 20}


# -- the form of a record --------------------------------------------------------------------------------------------


async def test_binary(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    message = stored(1, key="order-ü", headers={"tenant": "north", "correlation_id": "c-1"})
    await publisher(kafka.url(), topic=topic).publish([message])
    (record,) = kafka.records(topic)
    assert record.key() == "order-ü".encode()
    assert record.value() == b'{"number":1}'
    headers = kafka_headers(record)
    assert headers.pop("ce_time").startswith("2025-01-02T03:04:05")
    assert headers == {
        "ce_specversion": "1.0",
        "ce_id": str(message.id),
        "ce_source": "/tests",
        "ce_type": "order.created",
        "ce_subject": "order-ü",
        "ce_partitionkey": "order-ü",
        "ce_correlationid": "c-1",
        "content-type": "application/json",
        "tenant": "north",
    }


async def test_structured(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    message = stored(1, headers={"tenant": "north"})
    await publisher(kafka.url(), topic=topic, envelope="structured").publish([message])
    (record,) = kafka.records(topic)
    assert kafka_headers(record) == {
        "content-type": "application/cloudevents+json; charset=utf-8",
        "tenant": "north",
    }
    document = json.loads(record.value() or b"")
    assert (document["id"], document["data"]) == (str(message.id), {"number": 1})


async def test_plain(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    await publisher(kafka.url(), topic=topic, envelope="plain").publish([stored(1, headers={"tenant": "north"})])
    (record,) = kafka.records(topic)
    assert kafka_headers(record) == {"content-type": "application/json", "tenant": "north"}
    assert record.value() == b'{"number":1}'


@pytest.mark.parametrize("envelope", ["binary", "structured", "plain"])
async def test_a_tombstone_has_no_value_in_any_form(kafka: Kafka, publisher: MakePublisher, envelope: str) -> None:
    topic = kafka.create_topic(cleanup_policy="compact")
    message = stored(1, key="order-1", payload=b"", content_type="")
    await publisher(kafka.url(), topic=topic, envelope=envelope).publish([message])
    (record,) = kafka.records(topic)
    assert record.value() is None
    assert record.key() == b"order-1"
    assert ("ce_id" in kafka_headers(record)) is (envelope != "plain")
    assert "content-type" not in kafka_headers(record)


async def test_an_empty_payload_is_no_tombstone(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    await publisher(kafka.url(), topic=topic).publish([stored(1, payload=b"", content_type="text/plain")])
    assert [record.value() for record in kafka.records(topic)] == [b""]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_compression(kafka: Kafka, publisher: MakePublisher, compression: str) -> None:
    topic, page = kafka.create_topic(), a_page(50)
    await publisher(kafka.url(), topic=topic, compression=compression).publish(page)
    assert arrived(kafka, topic) == ids(page)


VECTORS = json.loads((Path(__file__).parents[1] / "partition_vectors.json").read_text())


async def test_keys_go_to_the_partition_that_java_would_choose(kafka: Kafka, publisher: MakePublisher) -> None:
    for partitions, by_key in VECTORS.items():
        topic = kafka.create_topic(partitions=int(partitions))
        page = [stored(number, key=key) for number, key in enumerate(by_key, start=1)]
        assert not await publisher(kafka.url(), topic=topic).publish(page)
        found = {(record.key() or b"").decode(): record.partition() for record in kafka.records(topic)}
        assert found == by_key


# -- refusals --------------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_not_there_is_a_route(kafka: Kafka, publisher: MakePublisher) -> None:
    topic, page = kafka.create_topic(), a_page(4)
    page[1] = msgspec.structs.replace(page[1], topic="gone")
    (refusal,) = await publisher(kafka.url(), topic=f"{topic}{{suffix}}").publish(suffixed(page, gone="-gone"))
    assert (refusal.position, refusal.permanent, refusal.unroutable) == (2, False, True)
    assert refusal.route == f"{topic}-gone"
    assert f"no topic '{topic}-gone'" in refusal.reason
    assert arrived(kafka, topic) == [page[0].id, page[2].id, page[3].id]


def suffixed(page: list[StoredMessage], **by_topic: str) -> list[StoredMessage]:
    """With a header for the template of the Kafka topic."""
    return [
        msgspec.structs.replace(
            message, headers_json=json.dumps({"source": "/tests", "suffix": by_topic.get(message.topic, "")})
        )
        for message in page
    ]


@pytest.mark.parametrize("name", ["über", "a b", "a/b", "x" * 250, ".."])
async def test_an_illegal_topic_is_permanent(kafka: Kafka, publisher: MakePublisher, name: str) -> None:
    topic = kafka.create_topic()
    page = [stored(1, topic=topic), stored(2, topic=name), stored(3, topic=topic)]
    (refusal,) = await publisher(kafka.url()).publish(page)
    assert (refusal.position, refusal.permanent, refusal.route) == (2, True, None)
    assert "Kafka accepts" in refusal.reason
    assert arrived(kafka, topic) == [page[0].id, page[2].id]


async def test_a_topic_of_a_header_that_is_missing(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    page = of_key("k", 4)
    page[0] = msgspec.structs.replace(page[0], headers_json=json.dumps({"source": "/tests", "tenant": topic}))
    page[3] = msgspec.structs.replace(page[3], headers_json=json.dumps({"source": "/tests", "tenant": topic}))
    (refusal,) = await publisher(kafka.url(), topic="{tenant}").publish(page)
    assert (refusal.position, refusal.permanent) == (2, True)
    assert "no header 'tenant'" in refusal.reason
    assert arrived(kafka, topic) == [page[0].id], "nothing behind the refused message of the key"


@pytest.mark.parametrize("where", ["before it is sent", "by the broker"])
async def test_one_of_500_is_too_large(kafka: Kafka, publisher: MakePublisher, where: str) -> None:
    topic = kafka.create_topic(max_message_bytes="20000")
    page = a_page(500)
    page[250] = stored(251, payload=b"x" * 30_000)
    limit = {"max_message_size": 20_000} if where == "before it is sent" else {}
    publishing = publisher(kafka.url(), topic=topic, options=SMALL_BATCHES, **limit)
    (refusal,) = await publishing.publish(page)
    assert (refusal.position, refusal.permanent, refusal.route) == (251, True, None)
    assert ("max_message_size" if limit else "MSG_SIZE_TOO_LARGE") in refusal.reason
    assert set(arrived(kafka, topic)) == set(ids(page)) - {page[250].id}
    more = a_page(10, first=1000)
    assert not await publishing.publish(more), "it goes on"


@pytest.mark.parametrize("where", ["before it is sent", "by the broker"])
async def test_nothing_of_a_key_is_taken_behind_one_that_is_too_large(
    kafka: Kafka, publisher: MakePublisher, where: str
) -> None:
    topic = kafka.create_topic(max_message_bytes="20000")
    bad, good = of_key("bad", 250), of_key("good", 250, first=1001)
    bad[100] = stored(101, key="bad", payload=b"x" * 30_000)
    page = [message for pair in zip(bad, good, strict=True) for message in pair]
    limit = {"max_message_size": 20_000} if where == "before it is sent" else {}
    (refusal,) = await publisher(kafka.url(), topic=topic, options=SMALL_BATCHES, **limit).publish(page)
    assert (refusal.position, refusal.permanent) == (101, True)
    found = first_arrivals(arrived(kafka, topic))
    assert [each for each in found if each in ids(bad)] == ids(bad[:100])
    assert [each for each in found if each in ids(good)] == ids(good)


async def test_a_record_that_the_topic_refuses(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic(cleanup_policy="compact")  # each record must have a key
    page = a_page(100)
    page[50] = stored(51, key=None)
    (refusal,) = await publisher(kafka.url(), topic=topic).publish(page)
    assert (refusal.position, refusal.permanent) == (51, True)
    assert "INVALID_RECORD" in refusal.reason
    assert set(arrived(kafka, topic)) == set(ids(page)) - {page[50].id}


@pytest.mark.parametrize("rights", [(), ("DESCRIBE",)])
async def test_a_topic_that_the_user_may_not_write_to_is_a_route(
    kafka: Kafka, publisher: MakePublisher, rights: tuple[str, ...]
) -> None:
    mine, others = kafka.create_topic(), kafka.create_topic()
    kafka.allow("shop", mine, "WRITE", "DESCRIBE")
    if rights:
        kafka.allow("shop", others, *rights)
    page = [stored(number, topic=others if number == 2 else mine) for number in range(1, 5)]
    settings = {"username": "shop", "password": "shop-secret", "mechanism": "PLAIN"}
    publishing = publisher(f"kafka://{kafka.sasl}", **settings)
    for _ in range(2):
        (refusal,) = await publishing.publish(page)
        assert (refusal.position, refusal.permanent, refusal.unroutable, refusal.route) == (2, False, False, others)
        assert "may not write" in refusal.reason
    kafka.allow("shop", others, "WRITE", "DESCRIBE")
    async with asyncio.timeout(60):
        while await publishing.publish([page[1]]):
            pass  # the brokers learn of it some time later
    assert arrived(kafka, others) == [page[1].id]


# -- order -----------------------------------------------------------------------------------------------------------


async def test_a_key_that_goes_to_several_topics_waits_for_each(kafka: Kafka, publisher: MakePublisher) -> None:
    topics = [kafka.create_topic() for _ in range(2)]
    page = [stored(1, key="k", topic=topics[0]), stored(2, key="k", topic="gone"), stored(3, key="k", topic=topics[1])]
    (refusal,) = await publisher(kafka.url()).publish(page)
    assert refusal.position == 2
    assert [arrived(kafka, topic) for topic in topics] == [[page[0].id], []]


# -- outages ---------------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_deleted_under_a_warm_producer(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    publishing = publisher(kafka.url(), topic=topic)
    assert not await publishing.publish([stored(1)])
    kafka.delete_topic(topic)
    (refusal,) = await publishing.publish([stored(2)])
    assert (refusal.unroutable, refusal.route) == (True, topic)


async def test_when_publish_is_cancelled_nothing_is_sent_later(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    publishing = publisher(kafka.url(), topic=topic, options=SMALL_BATCHES)
    first = stored(1)
    await publishing.publish([first])
    kafka.freeze()
    page = a_page(5_000, first=2)
    task = asyncio.create_task(publishing.publish(page))
    await asyncio.sleep(0.5)  # all that can be on its way is
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    kafka.start()
    last = stored(9_999)
    await publishing.publish([last])
    found = arrived(kafka, topic)
    assert (found[0], found[-1]) == (first.id, last.id)
    assert set(found[1:-1]) <= set(ids(page[:100])), "at most the five requests that were on their way"


async def test_lanes_are_not_hurt_by_one_that_is_cancelled(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    publishing = publisher(kafka.url(), topic=topic, options=SMALL_BATCHES)
    await publishing.open()
    for round in range(5):
        mine, others = a_page(1000, first=1), of_key("k", 1000, first=2000)
        task = asyncio.create_task(publishing.publish(mine))
        other = asyncio.create_task(publishing.publish(others))
        await asyncio.sleep(0.002 * round)
        task.cancel()
        assert not await other
        found = first_arrivals(arrived(kafka, topic))
        assert [each for each in found if each in set(ids(others))] == ids(others)


async def test_a_broker_that_is_not_there(publisher: MakePublisher) -> None:
    publishing = publisher("kafka://127.0.0.1:1", connect_timeout="1s", confirm_timeout="1s")
    with pytest.raises(BrokerUnavailable, match="no broker has answered within 1 seconds.*refused"):
        await publishing.open()
    with pytest.raises(BrokerUnavailable, match="nothing was confirmed within 1 seconds"):
        await publishing.publish(a_page(3))


async def test_a_frozen_broker_is_an_outage(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    publishing = publisher(kafka.url(), topic=topic, confirm_timeout="1s", connect_timeout="1s")
    first, second = stored(1), stored(2)
    await publishing.publish([first])
    kafka.freeze()
    with pytest.raises(BrokerUnavailable) as outage:
        await publishing.publish([second])
    assert not outage.value.confirmed
    assert not outage.value.suspicious
    kafka.start()
    await publishing.open()
    assert not await publishing.publish([second])
    assert first_arrivals(arrived(kafka, topic)) == [first.id, second.id]


# -- users -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_users(kafka: Kafka, publisher: MakePublisher, mechanism: str) -> None:
    topic = kafka.create_topic()
    if mechanism != "PLAIN":
        kafka.create_user("shop", "shop-secret", mechanism)
    kafka.allow("shop", topic, "WRITE", "DESCRIBE")
    url = f"kafka://shop:shop-secret@{kafka.sasl}/?mechanism={mechanism}"
    assert not await publisher(url, topic=topic).publish([stored(1)])
    assert len(kafka.records(topic)) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password(kafka: Kafka, publisher: MakePublisher, mechanism: str) -> None:
    kafka.create_user("shop", "shop-secret", "SCRAM-SHA-256")
    url = f"kafka://shop:wr0ng-one@{kafka.sasl}"
    publishing = publisher(url, mechanism=mechanism, connect_timeout="30s", confirm_timeout="1s")
    with pytest.raises(LoginRefused) as refused:
        await publishing.open()
    with pytest.raises(BrokerUnavailable) as outage:
        await publishing.publish([stored(1)])
    for error in (refused.value, outage.value):
        assert "uthentication" in str(error)
        assert "wr0ng-one" not in repr(error)
    assert "wr0ng-one" not in repr(publishing) + publishing.name + publishing.destination


async def test_a_password_that_is_changed_in_its_file(kafka: Kafka, publisher: MakePublisher, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    kafka.create_user("clerk", "first")
    kafka.allow("clerk", topic, "WRITE", "DESCRIBE")
    file = tmp_path / "password"
    file.write_text("first\n")
    settings = {"username": "clerk", "password_file": file, "mechanism": "SCRAM-SHA-256", "confirm_timeout": "30s"}
    publishing = publisher(f"kafka://{kafka.sasl}", topic=topic, **settings)
    await publishing.publish([stored(1)])
    kafka.create_user("clerk", "second")
    file.write_text("second\n")
    kafka.restart()  # ends all connections
    assert not await publishing.publish([stored(2)])
    assert len(kafka.records(topic)) == 2


def unsigned_token(user: str, seconds: float = 600) -> str:
    """What the test's server accepts, which trusts anybody."""
    now = time.time()
    parts = [{"alg": "none"}, {"sub": user, "iat": now, "exp": now + seconds}]
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


async def test_a_token_in_a_file(kafka: Kafka, publisher: MakePublisher, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    kafka.allow("bearer", topic, "WRITE", "DESCRIBE")
    file = tmp_path / "token"
    file.write_text(f"{unsigned_token('bearer')}\n")
    oauth = {"mechanism": "OAUTHBEARER", "token_file": file}
    publishing = publisher(f"kafka://{kafka.sasl}", topic=topic, connect_timeout="30s", **oauth)
    await publishing.open()
    assert not await publishing.publish([stored(1)])
    assert len(kafka.records(topic)) == 1


async def test_a_token_of_a_token_server(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    kafka.allow("bearer", topic, "WRITE", "DESCRIBE")
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        length = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        body = json.dumps({"access_token": unsigned_token("bearer"), "expires_in": 600}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body))
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        token_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
        oauth = {"mechanism": "OAUTHBEARER", "token_url": token_url, "username": "id", "password": "secret"}
        publishing = publisher(f"kafka://{kafka.sasl}", topic=topic, connect_timeout="30s", **oauth)
        await publishing.open()
        assert not await publishing.publish([stored(1)])
    assert len(kafka.records(topic)) == 1
    assert b"Authorization: Basic " + b64encode(b"id:secret") in asked[0]


async def test_tls(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic()
    kafka.allow("CN=client", topic, "WRITE", "DESCRIBE")
    certificate, key = kafka.client_files
    own = {"cert_file": str(certificate), "key_file": str(key)}
    publishing = publisher(f"kafkas://{kafka.tls}?ca_file={kafka.ca_file}", topic=topic, **own)
    assert not await publishing.publish([stored(1)])
    assert len(kafka.records(topic)) == 1


async def test_a_certificate_of_an_authority_that_is_not_trusted(kafka: Kafka, publisher: MakePublisher) -> None:
    with pytest.raises(BrokerUnavailable, match="(?i)certificate"):
        await publisher(f"kafkas://{kafka.tls}", connect_timeout="3s").open()


# -- what a confirm means --------------------------------------------------------------------------------------------


async def test_open_says_what_a_confirm_means(kafka: Kafka, publisher: MakePublisher) -> None:
    topic = kafka.create_topic(unclean_leader_election_enable="true")
    found = await publisher(kafka.url(), topic=topic).open()
    assert found.meaning == "written by all in-sync replicas, at least 1 (min.insync.replicas)"
    copies, unclean = found.warnings
    assert copies.startswith(f"topic '{topic}': the replication factor is 1, so a broker that is lost takes confirmed")
    assert unclean.startswith(f"topic '{topic}': unclean.leader.election.enable is true")


async def test_open_says_what_it_may_know(kafka: Kafka, publisher: MakePublisher) -> None:
    found = await publisher(f"kafka://shop:shop-secret@{kafka.sasl}", mechanism="PLAIN").open()
    assert found.meaning == "written by all in-sync replicas (min.insync.replicas is not known)"


# -- three brokers ---------------------------------------------------------------------------------------------------


def spread(partitions: int, count: int = 60) -> list[StoredMessage]:
    """Messages with enough keys for every partition."""
    return [stored(number, key=f"key-{number}") for number in range(1, count + 1)]


async def test_a_broker_that_dies_is_not_an_outage(kafka3: Kafka, publisher: MakePublisher) -> None:
    topic = kafka3.create_topic(partitions=3)
    publishing = publisher(kafka3.url(), topic=topic, confirm_timeout="60s", connect_timeout="30s")
    first = spread(3)
    assert not await publishing.publish(first)
    kafka3.broker(kafka3.leader(topic)).kill()
    second = [stored(each.position + 1000, key=each.key) for each in first]
    assert not await publishing.publish(second)
    found = kafka3.records(topic)
    for before, after in zip(first, second, strict=True):
        line = [id_of(record) for record in found if record.key() == str(before.key).encode()]
        assert line == [before.id, after.id], "each once, because the producer is idempotent"


async def test_too_few_replicas_are_an_outage_that_says_so(kafka3: Kafka, publisher: MakePublisher) -> None:
    topic = kafka3.create_topic(min_insync_replicas="3")
    publishing = publisher(kafka3.url(), topic=topic)
    assert (await publishing.open()).meaning.endswith("at least 3 (min.insync.replicas)")
    follower = next(node for node in (1, 2, 3) if node != kafka3.leader(topic))
    kafka3.broker(follower).stop()
    with pytest.raises(BrokerUnavailable, match=r"2 of 3 replicas in sync"):
        await publishing.publish([stored(1)])
    kafka3.start()
    until(lambda: len(kafka3.in_sync(topic)) == 3, "all replicas are in sync")
    assert not await publishing.publish([stored(1)])


async def test_a_partition_that_does_not_confirm_is_a_route(kafka3: Kafka, publisher: MakePublisher) -> None:
    topic = kafka3.create_topic(partitions=3, copies=1)
    publishing = publisher(kafka3.url(), topic=topic)
    await publishing.open()
    leaders = {partition: kafka3.leader(topic, partition) for partition in range(3)}
    kafka3.broker(leaders[1]).kill()
    page = [message for each in spread(3) for message in (each, stored(each.position + 1000, key=each.key))]
    refusals = await publishing.publish(page)
    async with asyncio.timeout(120):
        while "has no leader" not in refusals[0].reason:  # the controller notices the death some time later
            refusals = await publishing.publish(page)
    assert {refusal.route for refusal in refusals} == {f"{topic}[1]"}
    assert all(refusal.position <= 1000 and not refusal.permanent for refusal in refusals), "the first of each key"
    kafka3.start()
    refused = {refusal.position for refusal in refusals}
    blocked = {message.key for message in page if message.position in refused}
    rest = [message for message in page if message.key in blocked]
    async with asyncio.timeout(60):
        while await publishing.publish(rest):
            pass  # the partition gets its leader back some time later
    found = kafka3.records(topic)
    for key in {message.key for message in page}:
        line = first_arrivals([id_of(record) for record in found if record.key() == str(key).encode()])
        assert line == [message.id for message in page if message.key == key]


async def test_warnings_of_three_brokers(kafka3: Kafka, publisher: MakePublisher) -> None:
    found = await publisher(kafka3.url(), topic=kafka3.create_topic(min_insync_replicas="1")).open()
    assert [warning.partition(": ")[2].partition(",")[0] for warning in found.warnings] == ["min.insync.replicas is 1"]
    assert (await publisher(kafka3.url(), topic=kafka3.create_topic()).open()).warnings == ()
    assert (await publisher(kafka3.url()).open()).meaning.endswith("at least 2 (min.insync.replicas)")


# -- transactions ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def lane(kafka: Kafka, publisher: MakePublisher) -> AsyncIterator[Callable[..., Publisher]]:
    """Makes publishers of one lane: `lane(topic, epoch)`."""
    made: list[Publisher] = []
    name = f"outbox-{uuid4().hex[:8]}"

    def make(topic: str, epoch: int) -> Publisher:
        sink = publisher(kafka.url(), topic=topic, transactional_id=name, confirm_timeout="20s")
        made.append(sink.for_lane(LaneEpoch("orders", 3, epoch)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def begun(publisher: Publisher, page: list[StoredMessage]) -> list[Refusal]:
    """Publish; on a busy machine beginning takes so long that the relay would check its lease first."""
    while True:
        try:
            return list(await publisher.publish(page))
        except BrokerUnavailable as error:
            if "check its lease" not in str(error):
                raise


async def test_a_page_is_a_transaction(kafka: Kafka, lane: Callable[..., Publisher]) -> None:
    topic = kafka.create_topic(max_message_bytes="20000")
    publishing = lane(topic, 1)
    page = [*of_key("k", 20), *a_page(20, first=100)]
    page[10] = stored(11, key="k", payload=b"x" * 30_000)
    (refusal,) = await begun(publishing, page)
    assert (refusal.position, refusal.permanent) == (11, True)
    assert set(arrived(kafka, topic)) == {*ids(page[:10]), *ids(page[20:])}
    assert [each for each in arrived(kafka, topic) if each in ids(page[:20])] == ids(page[:10])


async def test_a_transaction_that_fails_while_messages_are_given_to_it(
    kafka: Kafka, lane: Callable[..., Publisher]
) -> None:
    """What comes behind the refused message finds no transaction any more; that is not its fault."""
    topic = kafka.create_topic(max_message_bytes="900000")
    publishing = lane(topic, 1)
    await begun(publishing, a_page(1))
    page = [stored(2, key="k", payload=b"x" * 950_000), *a_page(6_000, first=3)]
    (refusal,) = await begun(publishing, page)
    assert (refusal.position, refusal.permanent) == (2, True)
    assert len(arrived(kafka, topic)) == 6_001


async def test_a_topic_that_the_user_may_not_write_to_in_a_transaction(kafka: Kafka, publisher: MakePublisher) -> None:
    mine, others, name = kafka.create_topic(), kafka.create_topic(), f"outbox-{uuid4().hex[:8]}"
    kafka.allow("shop", mine, "WRITE", "DESCRIBE")
    kafka.allow("shop", others, "DESCRIBE")
    kafka.allow("shop", f"{name}-orders-3", "WRITE", "DESCRIBE", kind="TRANSACTIONAL_ID")
    settings = {"username": "shop", "password": "shop-secret", "mechanism": "PLAIN"}
    sink = publisher(f"kafka://{kafka.sasl}", **settings, transactional_id=name, confirm_timeout="20s")
    publishing = sink.for_lane(LaneEpoch("orders", 3, 1))
    page = [stored(number, topic=others if number == 2 else mine) for number in range(1, 5)]
    (refusal,) = await begun(publishing, page)
    assert (refusal.position, refusal.permanent, refusal.route) == (2, False, others)
    assert arrived(kafka, mine) == [page[0].id, page[2].id, page[3].id]
    await publishing.close()


async def test_the_message_at_fault_in_a_transaction_of_one_key(kafka: Kafka, lane: Callable[..., Publisher]) -> None:
    """It is in a later batch than others of its key, which have to be taken first."""
    topic = kafka.create_topic(max_message_bytes="20000")
    publishing = lane(topic, 1)
    page = of_key("k", 3000)
    page[2000] = stored(2001, key="k", payload=b"x" * 30_000)
    (refusal,) = await begun(publishing, page)
    assert (refusal.position, refusal.permanent) == (2001, True)
    assert arrived(kafka, topic) == ids(page[:2000])


async def test_a_relay_that_lost_its_lane_is_fenced(kafka: Kafka, lane: Callable[..., Publisher]) -> None:
    topic = kafka.create_topic()
    old, new = lane(topic, 1), lane(topic, 2)
    first, zombie, second = a_page(5), a_page(5, first=10), a_page(5, first=20)
    assert not await begun(old, first)
    assert not await begun(new, second)
    for _ in range(2):
        with pytest.raises(LeaseLost, match="another relay publishes this lane"):
            await old.publish(zombie)
    assert not await new.publish(a_page(1, first=30)), "the old one has not fenced it"
    assert arrived(kafka, topic)[:10] == ids(first + second)
    assert not set(arrived(kafka, topic)) & set(ids(zombie))


async def test_the_coordinator_of_transactions_moves(kafka3: Kafka, publisher: MakePublisher) -> None:
    topic, name = kafka3.create_topic(), f"outbox-{uuid4().hex[:8]}"
    settings = {"topic": topic, "transactional_id": name, "confirm_timeout": "60s", "connect_timeout": "30s"}
    publishing = publisher(kafka3.url(), **settings).for_lane(LaneEpoch("orders", 3, 1))
    first, second, third = (a_page(5, first=number) for number in (1, 10, 20))
    assert not await begun(publishing, first)
    gone = kafka3.coordinator(f"{name}-orders-3", TRANSACTIONS)
    kafka3.broker(gone).kill()
    assert not await publishing.publish(second), "no outage, and the lane is not lost"
    moved = kafka3.coordinator(f"{name}-orders-3", TRANSACTIONS)
    assert moved not in {gone, -1}
    kafka3.start()
    kafka3.broker(moved).stop()
    assert not await publishing.publish(third)
    assert arrived(kafka3, topic) == ids(first + second + third)
    await publishing.close()


async def test_a_commit_that_is_cancelled_in_an_outage_does_not_happen_later(
    kafka: Kafka, lane: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic()
    old = lane(topic, 1)
    first, page, last = a_page(1), a_page(20, first=100), a_page(1, first=1000)
    assert not await begun(old, first)
    original, committing = transactions._commit, threading.Event()

    def commit(*arguments: Any) -> None:
        kafka.kill()
        committing.set()
        original(*arguments)

    monkeypatch.setattr(transactions, "_commit", commit)
    task = asyncio.create_task(old.publish(page))
    assert await asyncio.to_thread(committing.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    await asyncio.to_thread(kafka.start)
    await old.close()  # what it still does would be done by then
    assert not await begun(lane(topic, 2), last)
    assert arrived(kafka, topic) == ids(first + last)


async def test_a_transaction_that_is_cancelled_is_aborted(kafka: Kafka, lane: Callable[..., Publisher]) -> None:
    topic = kafka.create_topic()
    publishing = lane(topic, 1)
    assert not await begun(publishing, [stored(1)])
    cancelled = 0
    for delay in (0, 0.002, 0.005, 0.01, 0, 0.02, 0, 0.05):
        task = asyncio.create_task(publishing.publish(a_page(2000, first=100)))
        await asyncio.sleep(delay)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        cancelled += task.cancelled()
    assert cancelled
    last = stored(9_999)
    assert not await begun(publishing, [last])
    found = arrived(kafka, topic)
    assert found[-1] == last.id
    assert (len(found) - 2) % 2000 == 0, "whole pages, or nothing of them"
