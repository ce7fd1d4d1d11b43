"""What is Kafka's own of a subscriber: partitions, groups, foreign records, offsets, rights. On a real server."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from postroad import BrokerUnavailable, InvalidSetting
from postroad.brokers.base import Delivery, Revoked
from postroad.brokers.cloudevents import unwrap
from postroad.brokers.kafka import positions
from postroad.brokers.kafka.subscriber import KafkaSubscriber
from postroad.errors import LoginRefused
from postroad.events import Event, PositionReset, TypeSkipped
from postroad.received import Unreadable
from tests.contracts.test_kafka import unsigned_token
from tests.kafka_source import kafka_subscriber, produce, received, text_headers, until
from tests.services.kafka import Kafka, done

Make = Callable[..., KafkaSubscriber]


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create_topic(partitions=1)


@pytest.fixture
async def make(kafka: Kafka, topic: str) -> AsyncIterator[Make]:
    """Makes subscribers of one group, which are closed at the end."""
    made: list[KafkaSubscriber] = []
    group = f"group-{uuid.uuid4().hex[:8]}"

    def make(**settings: Any) -> KafkaSubscriber:
        defaults = {"topic": topic, "group": group} if "topics" not in settings else {"group": group}
        made.append(kafka_subscriber(settings.pop("url", kafka.url()), **(defaults | settings)))
        return made[-1]

    yield make
    for subscriber in made:
        await subscriber.close()


async def opened(subscriber: KafkaSubscriber) -> KafkaSubscriber:
    await subscriber.open()
    return subscriber


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def until_committed(kafka: Kafka, group: str, topic: str, offset: int) -> None:
    client = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})

    async def committed() -> bool:
        (found,) = await asyncio.to_thread(client.committed, [TopicPartition(topic, 0)], 10)
        return bool(found.offset == offset)

    await until(committed)
    await asyncio.to_thread(client.close)


def commit(kafka: Kafka, group: str, topic: str, partition: int, offset: int) -> None:
    """Commit for a group that has no members."""
    client = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    client.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    client.close()


async def until_none_wait(subscriber: KafkaSubscriber) -> None:
    async def none_waits() -> bool:
        return await subscriber.waiting() == 0

    await until(none_waits)


async def until_assigned(subscriber: KafkaSubscriber, partitions: int, seconds: float = 60) -> None:
    async def assigned() -> bool:
        return len(places(subscriber)) == partitions

    await until(assigned, seconds)


# -- foreign records -------------------------------------------------------------------------------------------------


async def test_a_record_that_is_no_cloud_event_has_an_id_of_its_own(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, b'{"a":1}', key=b"k", headers=[("mine", b"yes"), ("empty", None), ("odd", b"\xff")])
    produce(kafka, topic, b"", key=b"\xff\x00", headers=[("type", b"clicked"), ("Content-Type", b"text/plain")])
    produce(kafka, topic, None, key=b"gone")
    first, second, third = map(unwrap, await received(await opened(make()), 3))
    assert first.id.startswith(f"{topic}/0/0@")
    assert first.source is not None
    assert first.source.startswith("kafka://")
    assert (first.type, first.key, first.payload) == (topic, "k", b'{"a":1}')
    assert first.headers == {"mine": "yes", "empty": "", "odd": "\ufffd"}
    assert (second.type, second.key, second.content_type, second.payload) == ("clicked", "ff00", "text/plain", b"")
    assert (third.is_tombstone, third.key, second.is_tombstone) == (True, "gone", False)
    assert len({first.identity, second.identity, third.identity}) == 3


async def test_foreign_records_can_be_dead_letters(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, b"?")
    (delivery,) = await received(await opened(make(foreign="dead_letter")), 1)
    with pytest.raises(Unreadable, match="no CloudEvent"):
        unwrap(delivery)


async def test_cloud_events_in_both_modes(kafka: Kafka, topic: str, make: Make) -> None:
    event = [("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t"), ("content-type", b"application/json")]
    produce(kafka, topic, b"{}", key=b"k", headers=[*event, ("mine", b"yes")])
    document = b'{"specversion":"1.0","id":"2","source":"/s","type":"t","data":{"a":1}}'
    produce(kafka, topic, document, headers=[("content-type", b"application/cloudevents+json; charset=utf-8")])
    binary, structured = map(unwrap, await received(await opened(make()), 2))
    assert (binary.identity, binary.key, binary.headers, binary.payload) == ("/s 1", "k", {"mine": "yes"}, b"{}")
    assert (structured.identity, structured.payload) == ("/s 2", b'{"a":1}')


async def test_types_without_a_handler_are_skipped_and_reported_once(kafka: Kafka, topic: str, make: Make) -> None:
    def event(type: bytes) -> list[tuple[str, bytes]]:
        return [("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", type)]

    for type in (b"other", b"other", b"mine", b"other"):
        produce(kafka, topic, type, headers=event(type))
    subscriber = make(types=("mine",))
    reported: list[Event] = []
    subscriber.report = reported.append  # type: ignore[method-assign,assignment]
    await subscriber.open()
    deliveries = await received(subscriber, 1)
    assert bodies(deliveries) == [b"mine"]
    subscriber.ack(deliveries)
    group = str(subscriber._settings.group)
    await until_committed(kafka, group, topic, 4)
    assert [event.message_type for event in reported if isinstance(event, TypeSkipped)] == ["other"]


# -- offsets ---------------------------------------------------------------------------------------------------------


async def test_a_new_group_can_begin_behind_the_last_record(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, b"old")
    subscriber = await opened(make(start="latest"))
    await until_committed(kafka, str(subscriber._settings.group), topic, 1)
    await subscriber.close()
    produce(kafka, topic, b"new")  # while none receives: the group has its place all the same
    assert bodies(await received(await opened(make(start="latest")), 1)) == [b"new"]


async def test_a_process_that_is_started_with_others_replays_nothing_because_they_have_committed(
    kafka: Kafka, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has the first partition, and commits before this process gets the second one."""
    topic = kafka.create_topic(partitions=2)
    for partition in range(2):
        produce(kafka, topic, b"old", partition=partition)
    subscriber = make(topics=[topic], start="latest")
    group = str(subscriber._settings.group)

    def ends_before_the_commit(client: Any, topics: Any) -> Any:
        found = positions.ends_of_new(client, topics)
        commit(kafka, group, topic, 0, 1)
        return found

    monkeypatch.setattr("postroad.brokers.kafka.poller.ends_of_new", ends_before_the_commit)
    await subscriber.open()
    await until_assigned(subscriber, 2)
    for partition in range(2):
        produce(kafka, topic, b"new", partition=partition)
    assert bodies(await received(subscriber, 2)) == [b"new", b"new"]


async def test_a_partition_that_was_added_is_read_from_its_beginning(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(partitions=2)
    commit(kafka, str(make()._settings.group), topic, 0, 0)
    produce(kafka, topic, b"0", partition=1)
    assert bodies(await received(await opened(make(topics=[topic], start="latest")), 1)) == [b"0"]


async def test_after_a_crash_the_records_that_may_have_been_begun_are_suspect(
    kafka: Kafka, topic: str, make: Make
) -> None:
    produce(kafka, topic, *(b"%d" % n for n in range(20)))
    subscriber = await opened(make(prefetch=4))
    first = await received(subscriber, 4)
    assert [each.redelivered for each in first] == [False] * 4
    subscriber.ack(first[1:3])
    poller = subscriber._poller
    assert poller is not None
    poller._sessions.last = lambda sessions: []  # type: ignore[method-assign]  # as if it had been killed
    await subscriber.close()
    again = await received(await opened(make(prefetch=4)), 4)
    assert [each.redelivered for each in again[:2]] == [None, None]
    assert bodies(again)[0] == b"0"


async def test_records_that_are_gone_are_reported_and_passed(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, b"0", b"1", b"2", b"3")
    subscriber = await opened(make())
    subscriber.ack((await received(subscriber, 4))[:1])
    await subscriber.close()
    done(kafka.admin.delete_records([TopicPartition(topic, 0, 3)]))
    subscriber = make()
    reported: list[Event] = []
    subscriber.report = reported.append  # type: ignore[method-assign,assignment]
    await subscriber.open()
    deliveries: list[Delivery] = []
    revoked = 0
    async with asyncio.timeout(60):
        while not deliveries:
            now = await subscriber.receive()
            if isinstance(now, Revoked):
                revoked += 1
            else:
                deliveries += now
    assert (bodies(deliveries), revoked) == ([b"3"], 1)
    (reset,) = [event for event in reported if isinstance(event, PositionReset)]
    assert (reset.topic, reset.partition) == (topic, 0)
    subscriber.ack(deliveries)
    await until_committed(kafka, str(subscriber._settings.group), topic, 4)


async def test_only_committed_records_come_and_the_end_is_known(kafka: Kafka, topic: str, make: Make) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    for value, end in ((b"a", producer.commit_transaction), (b"b", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(60)
        end(60)
    subscriber = await opened(make())
    deliveries = await received(subscriber, 1)
    assert bodies(deliveries) == [b"a"]
    subscriber.ack(deliveries)
    await until_none_wait(subscriber)
    await until_committed(kafka, str(subscriber._settings.group), topic, 4)


async def test_records_that_wait_in_the_client_outlast_a_short_outage(kafka: Kafka, topic: str, make: Make) -> None:
    """While the poller asks whether there are brokers, the client has records that it has not given out yet."""
    produce(kafka, topic, b"0")
    subscriber = await opened(make(connect_timeout="60s", session_timeout="60s"))
    subscriber.ack(await received(subscriber, 1))
    poller = subscriber._poller
    assert poller is not None
    go_on = threading.Event()
    held = poller._ask(go_on.wait)
    produce(kafka, topic, *(b"%d" % n for n in range(1, 101)))
    await asyncio.sleep(2)  # time in which the client fetches them
    kafka.freeze()
    try:
        poller._doubt = True
        go_on.set()
        await asyncio.wrap_future(held)
        await asyncio.sleep(3)  # time in which the brokers are asked, again and again
    finally:
        kafka.thaw()
    assert bodies(await received(subscriber, 100)) == [b"%d" % n for n in range(1, 101)]


async def test_the_coordinator_of_the_group_moves(kafka3: Kafka) -> None:
    """Also while records are open: what was acked is committed at the new one, and nothing comes again."""
    topic, group = kafka3.create_topic(), f"group-{uuid.uuid4().hex[:8]}"
    patient: dict[str, Any] = {"session_timeout": "60s", "connect_timeout": "60s"}
    subscriber = await opened(kafka_subscriber(kafka3.url(), topic=topic, group=group, **patient))
    try:
        produce(kafka3, topic, b"0", b"1")
        first, second = await received(subscriber, 2)
        subscriber.ack([first])
        await until_committed(kafka3, group, topic, 1)
        gone = kafka3.coordinator(group)
        kafka3.broker(gone).kill()
        subscriber.ack([second])
        await until_committed(kafka3, group, topic, 2)
        assert kafka3.coordinator(group) not in {gone, -1}
        produce(kafka3, topic, b"2")
        assert bodies(await received(subscriber, 1)) == [b"2"]
    finally:
        await subscriber.close()


async def test_an_outage_says_what_is_wrong_with_the_connection() -> None:
    subscriber = kafka_subscriber("kafka://no-such-host.invalid", topic="orders", connect_timeout="1s")
    with pytest.raises(BrokerUnavailable, match=r"Failed to resolve 'no-such-host\.invalid"):
        await subscriber.open()
    await subscriber.close()


# -- memory ----------------------------------------------------------------------------------------------------------


async def test_no_more_than_prefetch_is_open_and_acks_make_room(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, *(b"%d" % n for n in range(2000)))
    subscriber = await opened(make(prefetch=3))
    seen = await received(subscriber, 3)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(subscriber.receive(), 1)
    assert await subscriber.waiting() == 1997
    while len(seen) < 2000:
        subscriber.ack(seen[-3:])
        seen += await received(subscriber, 1)
    assert bodies(seen) == [b"%d" % n for n in range(2000)]


async def test_nothing_more_is_read_while_too_many_bytes_are_held(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, *(bytes([n]) * 100_000 for n in range(100)))
    subscriber = await opened(make(max_held_bytes=300_000))
    seen = await received(subscriber, 1)
    await asyncio.sleep(1)  # time in which it could receive everything
    sessions = subscriber._sessions
    assert sessions is not None
    (session,) = sessions.by_place.values()
    assert session.paused
    assert session.held < 5_000_000
    while len(seen) < 100:
        subscriber.ack(seen)
        seen += await received(subscriber, 1)
    assert [each.body[0] for each in seen] == list(range(100))


# -- rebalances ------------------------------------------------------------------------------------------------------


async def test_partitions_that_go_to_another_wait_for_what_is_in_progress(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(partitions=2)
    for partition in range(2):
        produce(kafka, topic, *(b"%d" % n for n in range(3)), partition=partition)
    first = await opened(make(topics=[topic]))
    held = await received(first, 6)
    second = await opened(make(topics=[topic]))
    async with asyncio.timeout(60):
        revoked = await first.receive()
    assert isinstance(revoked, Revoked)
    assert len(revoked.sessions) == 1
    moving = [each for each in held if each.session in revoked.sessions]
    staying = [each for each in held if each.session not in revoked.sessions]
    first.ack(moving[:2])
    revoked.released()
    (last,) = await received(second, 1)
    assert (last.body, last.redelivered) == (b"2", None), "acks that came before the release count"
    first.ack(moving)  # too late
    first.ack(staying)
    second.ack([last])
    await first.close()
    await second.close()
    third = await opened(make(topics=[topic]))
    await until_none_wait(third)


async def test_a_drain_has_a_limit_and_acks_after_it_are_lost(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(partitions=2)
    for partition in range(2):
        produce(kafka, topic, b"a", partition=partition)
    first = await opened(make(topics=[topic], drain_timeout="1s"))
    held = await received(first, 2)
    second = await opened(make(topics=[topic]))
    (again,) = await received(second, 1)
    assert again.redelivered is None
    first.ack(held)
    await first.close()
    await second.close()
    third = await opened(make(topics=[topic]))
    (once_more,) = await received(third, 1)
    assert once_more.body == b"a"
    assert await third.waiting() == 0


async def test_slow_handlers_do_not_lose_the_membership(kafka: Kafka, topic: str, make: Make) -> None:
    """Nothing is acked for longer than max_poll_interval, and still nothing is revoked."""
    produce(kafka, topic, *(b"%d" % n for n in range(3000)))
    limits = {"session_timeout": "2s", "max_poll_interval": "3s", "drain_timeout": "1s"}
    subscriber = await opened(make(prefetch=10, **limits))
    seen = await received(subscriber, 10)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(subscriber.receive(), 7)
    sessions = subscriber._sessions
    assert sessions is not None
    assert [session.paused for session in sessions.by_place.values()] == [True]
    subscriber.ack(seen)
    assert bodies(await received(subscriber, 10)) == [b"%d" % n for n in range(10, 20)]


async def test_a_partition_that_was_paused_when_it_was_revoked_is_read_when_it_comes_back(
    kafka: Kafka, make: Make
) -> None:
    topic = kafka.create_topic(partitions=2)
    for partition in range(2):
        produce(kafka, topic, *(b"%d" % n for n in range(1500)), partition=partition)
    first = await opened(make(topics=[topic], drain_timeout="0", prefetch=5))
    await received(first, 10)
    sessions = first._sessions
    assert sessions is not None

    async def both_are_paused() -> bool:
        return [session.paused for session in sessions.by_place.values()] == [True, True]

    await until(both_are_paused)
    second = await opened(make(topics=[topic]))
    await until_assigned(second, 1)
    await until_assigned(first, 1)
    (moved,) = places(second)
    await second.close()
    await until_assigned(first, 2)
    again: list[Delivery] = []
    async with asyncio.timeout(60):
        while not again:
            now = await first.receive()
            if not isinstance(now, Revoked):
                again += [each for each in now if repr(each.session) == f"{topic}[{moved[1]}]"]
    assert again[0].body == b"0"


async def test_a_static_member_that_is_restarted_has_its_partitions_again(kafka: Kafka, make: Make) -> None:
    topic = kafka.create_topic(partitions=2)
    first, second = (make(topics=[topic], instance=f"i{n}", session_timeout="30s", drain_timeout="0") for n in range(2))
    await first.open()
    await second.open()
    await until_assigned(first, 1)
    await until_assigned(second, 1)
    before = places(first)
    await first.close()
    first = await opened(make(topics=[topic], instance="i0", session_timeout="30s"))
    await until_assigned(first, 1, seconds=25)
    assert places(first) == before


def places(subscriber: KafkaSubscriber) -> set[tuple[str, int]]:
    assert subscriber._sessions is not None
    return set(subscriber._sessions.by_place)


# -- dead letters ----------------------------------------------------------------------------------------------------


async def test_a_dead_letter_says_where_it_was(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, b"bad", key=b"k", headers=[("mine", b"\xff"), ("none", None)])
    subscriber = await opened(make())
    (bad,) = await received(subscriber, 1)
    await subscriber.dead_letter(bad, {"postroad-reason": "it is bad"})
    (letter,) = kafka.records(f"{subscriber._settings.group}.dead")
    headers: dict[str, Any] = dict(letter.headers() or ())
    assert (letter.key(), letter.value(), headers["mine"], headers["none"]) == (b"k", b"bad", b"\xff", None)
    assert headers["postroad-reason"] == b"it is bad"
    assert (headers["postroad-topic"], headers["postroad-offset"]) == (topic.encode(), b"0")
    settings = kafka.settings_of(f"{subscriber._settings.group}.dead")
    assert settings["retention.ms"] == "-1", "dead letters do not expire"


async def test_a_dead_letter_that_does_not_fit_loses_large_headers_and_otherwise_waits(
    kafka: Kafka, topic: str, make: Make
) -> None:
    dead = kafka.create_topic(max_message_bytes="2000")
    produce(kafka, topic, b"small", headers=[("large", b"x" * 3000), ("small", b"y")])
    produce(kafka, topic, b"x" * 3000)
    subscriber = await opened(make(dead_letter_topic=dead))
    headers, body = await received(subscriber, 2)
    await subscriber.dead_letter(headers, {"postroad-reason": "r" * 1000})
    with pytest.raises(BrokerUnavailable, match=r"does not fit; raise max\.message\.bytes"):
        await subscriber.dead_letter(body, {"postroad-reason": "bad"})
    (letter,) = kafka.records(dead)
    assert text_headers(letter)["postroad-left-out"] == "large"
    assert text_headers(letter)["small"] == "y"


async def test_a_dead_letter_topic_that_is_missing(kafka: Kafka, topic: str, make: Make) -> None:
    produce(kafka, topic, b"bad")
    subscriber = await opened(make(declare="no"))
    (bad,) = await received(subscriber, 1)
    with pytest.raises(BrokerUnavailable, match=r"dead-letter topic '.*\.dead'"):
        await subscriber.dead_letter(bad, {})


# -- what can be wrong -------------------------------------------------------------------------------------------------


async def test_topics_are_created_or_missing(kafka: Kafka, make: Make) -> None:
    missing = f"new-{uuid.uuid4().hex[:8]}"
    with pytest.raises(
        BrokerUnavailable, match=f"the topic '{missing}' is missing; create it, or set declare='create'"
    ):
        await make(topics=[missing], declare="check").open()
    subscriber = await opened(make(topics=[missing], declare="no"))
    with pytest.raises(BrokerUnavailable, match=f"the topic '{missing}' is missing"):
        await asyncio.wait_for(subscriber.receive(), 60)
    subscriber = await opened(make(topics=[missing], partitions=3))
    await until_assigned(subscriber, 3)


async def test_a_wrong_password_is_refused(kafka: Kafka, make: Make) -> None:
    url = f"kafka://shop:wrong@{kafka.sasl}"
    with pytest.raises(LoginRefused, match="refuse the user 'shop' or its password") as refused:
        await make(url=url, mechanism="PLAIN").open()
    assert "wrong@" not in str(refused.value)


def allow_consuming(kafka: Kafka, user: str, topic: str, subscriber: KafkaSubscriber) -> None:
    kafka.allow(user, topic, "READ", "DESCRIBE")
    kafka.allow(user, str(subscriber._settings.group), "READ", kind="GROUP")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_users(kafka: Kafka, topic: str, make: Make, mechanism: str) -> None:
    if mechanism != "PLAIN":
        kafka.create_user("shop", "shop-secret", mechanism)
    subscriber = make(url=f"kafka://shop:shop-secret@{kafka.sasl}", mechanism=mechanism, declare="no")
    allow_consuming(kafka, "shop", topic, subscriber)
    produce(kafka, topic, b"0")
    assert bodies(await received(await opened(subscriber), 1)) == [b"0"]


async def test_users_over_tls(kafka: Kafka, topic: str, make: Make) -> None:
    """With the mechanism that is the default."""
    kafka.create_user("shop", "shop-secret", "SCRAM-SHA-512")
    url = f"kafkas://shop:shop-secret@{kafka.sasl_tls}"
    subscriber = make(url=f"{url}?ca_file={kafka.ca_file}", declare="no")
    allow_consuming(kafka, "shop", topic, subscriber)
    produce(kafka, topic, b"0")
    assert bodies(await received(await opened(subscriber), 1)) == [b"0"]
    with pytest.raises(BrokerUnavailable, match="(?i)certificate"):
        await make(url=url, declare="no", connect_timeout="3s").open()
    with pytest.raises(LoginRefused, match="refuse the user 'shop' or its password"):
        wrong = url.replace("shop-secret", "wrong")
        await make(url=f"{wrong}?ca_file={kafka.ca_file}", declare="no", connect_timeout="30s").open()


async def test_a_client_with_a_certificate(kafka: Kafka, topic: str, make: Make) -> None:
    certificate, key = map(str, kafka.client_files)
    subscriber = make(
        url=f"kafkas://{kafka.tls}", ca_file=str(kafka.ca_file), cert_file=certificate, key_file=key, declare="no"
    )
    allow_consuming(kafka, "CN=client", topic, subscriber)
    produce(kafka, topic, b"0")
    assert bodies(await received(await opened(subscriber), 1)) == [b"0"]


async def test_a_token_in_a_file(kafka: Kafka, topic: str, make: Make, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{unsigned_token('bearer')}\n")
    url = f"kafka://{kafka.sasl}"
    subscriber = make(url=url, mechanism="OAUTHBEARER", token_file=file, declare="no", connect_timeout="30s")
    allow_consuming(kafka, "bearer", topic, subscriber)
    produce(kafka, topic, b"0")
    assert bodies(await received(await opened(subscriber), 1)) == [b"0"]


async def test_a_password_that_is_changed_in_its_file(kafka: Kafka, topic: str, make: Make, tmp_path: Path) -> None:
    """While the consumer runs: it ends its session with the reason, and `open` reads the file again."""
    kafka.create_user("clerk", "first")
    file = tmp_path / "password"
    file.write_text("first\n")
    user = {"username": "clerk", "password_file": file, "mechanism": "SCRAM-SHA-256"}
    subscriber = make(url=f"kafka://{kafka.sasl}", declare="no", connect_timeout="60s", **user)
    allow_consuming(kafka, "clerk", topic, subscriber)
    produce(kafka, topic, b"0")
    await subscriber.open()
    found = await received(subscriber, 1)
    subscriber.ack(found)
    await until_committed(kafka, str(subscriber._settings.group), topic, 1)
    kafka.create_user("clerk", "second")
    await asyncio.to_thread(kafka.restart)  # ends all connections
    with pytest.raises(LoginRefused, match="refuse the user 'clerk' or its password"):
        await received(subscriber, 1)
    with pytest.raises(LoginRefused, match="refuse the user 'clerk' or its password"):
        await subscriber.open()
    file.write_text("second\n")
    produce(kafka, topic, b"1")
    assert bodies(await received(await opened(subscriber), 1)) == [b"1"]


async def test_rights_that_are_missing(kafka: Kafka, topic: str, make: Make) -> None:
    def guest(**settings: Any) -> KafkaSubscriber:
        return make(url=f"kafka://guest:guest-secret@{kafka.sasl}", mechanism="PLAIN", **settings)

    with pytest.raises(BrokerUnavailable, match=f"user 'guest' may not read the topic '{topic}'"):
        await guest().open()
    kafka.allow("guest", topic, "READ", "DESCRIBE")
    with pytest.raises(BrokerUnavailable, match=r"user 'guest' may not read the topic '.*\.dead'|can't create it"):
        await guest().open()
    subscriber = await opened(guest(declare="no"))
    with pytest.raises(BrokerUnavailable, match="user 'guest' may not use the group"):
        await asyncio.wait_for(subscriber.receive(), 60)


async def test_without_a_server(unused_tcp_port: int, make: Make) -> None:
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{unused_tcp_port}"):
        await make(url=f"kafka://127.0.0.1:{unused_tcp_port}", connect_timeout="2s").open()


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"topic": "a b"}, "topic is 'a b'; it must be the name of a Kafka topic"),
        ({"topic": "a", "topics": ["b"]}, "topic and topics are both given"),
        ({"topics": []}, "topics is a list; it must be a list, each of it the name"),
        ({}, r"topics is \(\); it must be a list"),
        ({"topic": "a", "group": "a b"}, "dead_letter_topic is 'a b.dead'"),
        ({"topic": "a", "session_timeout": "5m"}, "session_timeout must be less"),
        ({"topic": "a", "options": {"auto.offset.reset": "latest"}}, "which is not yours to set; use start"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        kafka_subscriber("kafka://localhost", **settings)
