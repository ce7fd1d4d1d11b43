"""The checks of `postroad doctor` on a real Kafka: made ill, found, and mended. Nothing is left in the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from postroad import Message
from postroad.admin import Finding, Level, Limits, examine
from postroad.brokers.kafka.settings import PublisherSettings
from postroad.brokers.registry import publisher_for
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore
from tests.contracts.test_doctor import running
from tests.logs import SQLiteLog
from tests.services.kafka import Kafka, done, until

SECONDS = 60
SECRET = "shop-secret"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(tmp_path / "shop.sqlite")
    yield log
    await log.close()


async def found(log: SQLiteLog, check: str, to: str, **options: Any) -> list[Finding]:
    settings = PublisherSettings(**{"connect_timeout": "30s"} | options.pop("settings", {}))
    findings = await examine(f"sqlite:///{log.path}", to=to, watch_seconds=0, broker_settings=settings, **options)
    assert SECRET not in str(findings)
    return [each for each in findings if each.check == check]


async def the_one(log: SQLiteLog, check: str, to: str, **options: Any) -> Finding:
    (finding,) = await found(log, check, to, **options)
    assert finding.link == f"docs/doctor.md#{check}"
    return finding


async def until_found(level: Level, log: SQLiteLog, check: str, to: str, **options: Any) -> Finding:
    """Brokers learn of a change some time later."""
    async with asyncio.timeout(SECONDS):
        while True:
            finding = await the_one(log, check, to, **options)
            if finding.level is level:
                return finding
            await asyncio.sleep(0.05)


def configure(kafka: Kafka, topic: str, setting: str, value: str) -> None:
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    done(kafka.admin.incremental_alter_configs([resource]))


async def log_of(log: SQLiteLog, *topics: str) -> None:
    for topic in topics:
        await log.add(Message({"n": 1}, type="order.created", topic=topic))


# -- reaching it -----------------------------------------------------------------------------------------------------


async def test_a_cluster_that_is_away_or_refuses_the_user(log: SQLiteLog, kafka: Kafka) -> None:
    finding = await the_one(log, "broker", kafka.url())
    assert (finding.level, finding.evidence["server"]) == (Level.OK, "a cluster of 1 Kafka broker")
    for url, timeout, reason, fix in (
        (f"kafka://shop:wr0ng@{kafka.sasl}?mechanism=PLAIN", "30s", "Authentication failed", "check kafka.username"),
        ("kafka://127.0.0.1:1", "1s", "no broker has answered within 1 seconds", "check the URL"),
    ):
        settings = {"connect_timeout": timeout}
        finding = await the_one(log, "broker", url, settings=settings)
        assert (finding.level, reason in finding.text) == (Level.ERROR, True), finding.text
        assert (finding.fix or "").startswith(fix)
        assert "wr0ng" not in str(finding)
        assert (await the_one(log, "kafka-topics", url, settings=settings)).level is Level.SKIPPED


async def test_certificates(log: SQLiteLog, kafka: Kafka) -> None:
    """Those of the server are valid for two days."""
    assert (await the_one(log, "broker-certificate", kafka.url())).level is Level.SKIPPED
    finding = await the_one(log, "broker-certificate", f"kafkas://{kafka.tls}", settings={"connect_timeout": "3s"})
    assert finding.level is Level.ERROR
    assert "kafka.ca_file" in (finding.fix or "")
    trusted = f"kafkas://{kafka.tls}?ca_file={kafka.ca_file}"
    finding = await the_one(log, "broker-certificate", trusted)
    assert (finding.level, finding.evidence["host"]) == (Level.WARNING, kafka.tls)
    assert 0 < finding.evidence["seconds_left"] <= 2 * 86_400
    limits = Limits(certificate=timedelta(hours=1))
    assert (await the_one(log, "broker-certificate", trusted, limits=limits)).level is Level.OK


# -- its topics ------------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_missing(log: SQLiteLog, kafka: Kafka) -> None:
    check = "kafka-topics"
    assert (await the_one(log, check, kafka.url())).text == "no recent message goes to a topic"
    there, later = kafka.create_topic(), f"later-{time.time_ns()}"
    await log_of(log, there, later)
    finding = await the_one(log, check, kafka.url())
    assert finding.level is Level.ERROR
    assert finding.text == f"topic {later!r} does not exist: its messages wait"
    assert f"--create --topic {later} " in (finding.fix or "")
    assert (await the_one(log, check, kafka.url(), settings={"topic": there})).level is Level.OK
    kafka.create_topic(later)
    assert (await the_one(log, check, kafka.url())).level is Level.OK


async def test_the_topic_is_made_by_the_template(log: SQLiteLog, kafka: Kafka) -> None:
    topic = f"t-{time.time_ns()}"
    await log.add(Message({}, type="order.created", topic=topic, key="7", headers={"tenant": "north"}))
    for template in ("{topic}-{type}", "{tenant}.{topic}", "{topic}_{key}"):
        finding = await the_one(log, "kafka-topics", kafka.url(), settings={"topic": template})
        expected = template.format(topic=topic, type="order.created", tenant="north", key="7")
        assert finding.text == f"topic {expected!r} does not exist: its messages wait"
    unusable = await the_one(log, "kafka-topics", kafka.url(), settings={"topic": "{nowhere}.{topic}"})
    assert unusable.level is Level.OK, "no message goes to a topic: they are dead"


async def test_a_topic_that_the_relay_found_missing(log: SQLiteLog, kafka: Kafka) -> None:
    """The check of all brokers finds what a relay has met."""
    topic = f"later-{time.time_ns()}"
    await log_of(log, topic)
    relay = Relay(SQLiteStore(log.path), publisher_for(kafka.url()), settings=RelaySettings(lanes=1))
    async with running(relay):
        finding = await until_found(Level.ERROR, log, "unbound-topics", kafka.url())
        assert "create its topic" in (finding.fix or "")
        kafka.create_topic(topic)
        await until_found(Level.OK, log, "unbound-topics", kafka.url())


async def test_the_dead_letter_topic(log: SQLiteLog, kafka: Kafka) -> None:
    check, topic = "kafka-dead-letter-topic", f"dead-{time.time_ns()}"
    await log_of(log, kafka.create_topic())
    assert (await the_one(log, check, kafka.url())).level is Level.OK, "it is not set"
    relay = RelaySettings(dead_letter_topic=topic)
    finding = await the_one(log, check, kafka.url(), relay=relay)
    assert finding.level is Level.ERROR
    assert finding.text == f"topic {topic!r} does not exist: copies of dead messages are not published"
    kafka.create_topic(topic)
    assert (await the_one(log, check, kafka.url(), relay=relay)).level is Level.OK


@pytest.mark.parametrize("rights", [(), ("DESCRIBE",)])
async def test_a_user_that_may_not_write(log: SQLiteLog, kafka: Kafka, rights: tuple[str, ...]) -> None:
    check, topic = "kafka-write-rights", kafka.create_topic()
    await log_of(log, topic)
    assert (await the_one(log, check, kafka.url())).level is Level.OK
    if rights:
        kafka.allow("shop", topic, *rights)
    url = f"kafka://shop:{SECRET}@{kafka.sasl}?mechanism=PLAIN"
    finding = await until_found(Level.ERROR, log, check, url)
    assert f"user 'shop' may not write to topic {topic!r}" in finding.text
    assert f"--allow-principal User:shop --producer --topic {topic}" in (finding.fix or "")
    relay = RelaySettings(dead_letter_topic=topic)
    assert (await the_one(log, "kafka-dead-letter-topic", url, relay=relay)).level is Level.ERROR
    kafka.allow("shop", topic, "WRITE", "DESCRIBE")
    await until_found(Level.OK, log, check, url)
    unread = await the_one(log, "kafka-unclean-election", url)
    assert (unread.level, "DescribeConfigs" in unread.text) == (Level.SKIPPED, True)
    kafka.allow("shop", topic, "DESCRIBE_CONFIGS")
    await until_found(Level.OK, log, "kafka-unclean-election", url)


# -- what a confirm is worth -----------------------------------------------------------------------------------------


async def test_replication(log: SQLiteLog, kafka3: Kafka) -> None:
    check, url = "kafka-replication", kafka3.url()
    for copies, in_sync, level, words in (
        (3, 2, Level.OK, "each has several replicas"),
        (3, 1, Level.WARNING, "may be confirmed by one broker alone"),
        (3, 3, Level.WARNING, "its messages wait while one broker is down"),
        (1, 1, Level.WARNING, "has one replica"),
        (2, 3, Level.ERROR, "it takes no message"),
    ):
        topic = kafka3.create_topic(copies=copies, min_insync_replicas=str(in_sync))
        finding = await the_one(log, check, url, settings={"topic": topic})
        assert (finding.level, words in finding.text) == (level, True), finding.text
    healthy = kafka3.create_topic(copies=3, min_insync_replicas="4")
    assert (await the_one(log, check, url, settings={"topic": healthy})).level is Level.ERROR
    configure(kafka3, healthy, "min.insync.replicas", "2")
    await until_found(Level.OK, log, check, url, settings={"topic": healthy})


async def test_unclean_elections(log: SQLiteLog, kafka3: Kafka) -> None:
    check, topic = "kafka-unclean-election", kafka3.create_topic(unclean_leader_election_enable="true")
    await log_of(log, topic)
    finding = await the_one(log, check, kafka3.url())
    assert finding.level is Level.WARNING
    assert f"--entity-name {topic} --add-config unclean.leader.election.enable=false" in (finding.fix or "")
    configure(kafka3, topic, "unclean.leader.election.enable", "false")
    await until_found(Level.OK, log, check, kafka3.url())


async def test_a_broker_that_is_down(log: SQLiteLog, kafka3: Kafka) -> None:
    check, topic, alone = "kafka-replicas", kafka3.create_topic(partitions=3), kafka3.create_topic(copies=1)
    killed = kafka3.leader(alone)
    kept = killed % 3 + 1
    settings, lonely = {"topic": topic}, {"topic": alone}
    url = f"kafka://127.0.0.1:{kafka3.broker(kept).clear}"
    assert (await the_one(log, check, url, settings=settings)).level is Level.OK
    try:
        kafka3.broker(killed).kill()
        finding = await until_found(Level.WARNING, log, check, url, settings=settings)
        assert "has 2 of 3 replicas in sync" in finding.text
        finding = await until_found(Level.ERROR, log, check, url, settings=lonely)
        assert "have no leader" in finding.text
        configure(kafka3, topic, "min.insync.replicas", "3")
        finding = await until_found(Level.ERROR, log, check, url, settings=settings)
        assert "min.insync.replicas is 3: its messages wait" in finding.text
    finally:
        kafka3.start()
    until(lambda: len(kafka3.in_sync(topic, 0)) == 3, "all replicas are in sync")
    await until_found(Level.OK, log, check, url, settings=settings)
    await until_found(Level.OK, log, check, url, settings=lonely)


async def test_the_size_of_messages(log: SQLiteLog, kafka: Kafka) -> None:
    check, topic = "kafka-message-size", kafka.create_topic(max_message_bytes="10000")
    await log.add(Message(b"x" * 5000, type="large", topic=topic))
    finding = await the_one(log, check, kafka.url())
    assert (finding.level, "a batch that is larger is refused" in finding.text) == (Level.WARNING, True)
    await log.add(Message(b"x" * 20_000, type="large", topic=topic))
    finding = await the_one(log, check, kafka.url())
    assert finding.level is Level.ERROR
    assert "takes 10,000 bytes (max.message.bytes), and a recent message has 20,000" in finding.text
    compressed = await the_one(log, check, kafka.url(), settings={"compression": "gzip"})
    assert compressed.level is Level.WARNING, "it may fit"
    findings = await found(log, check, kafka.url(), settings={"max_message_size": 10_000})
    assert [each.text[:33] for each in findings] == ["a recent message has 20,000 bytes"]
    configure(kafka, topic, "max.message.bytes", "1048588")
    await until_found(Level.OK, log, check, kafka.url())


async def test_nothing_is_left_in_the_cluster(log: SQLiteLog, kafka3: Kafka) -> None:
    topic = kafka3.create_topic()
    await log_of(log, topic, "not-there")
    before = set(kafka3.admin.list_topics(timeout=SECONDS).topics)
    relay = RelaySettings(dead_letter_topic="nor-there")
    findings = await examine(f"sqlite:///{log.path}", to=kafka3.url(), watch_seconds=0, relay=relay)
    wrong = [each.check for each in findings if each.level in {Level.ERROR, Level.WARNING}]
    assert wrong == ["kafka-topics", "kafka-dead-letter-topic"]
    assert set(kafka3.admin.list_topics(timeout=SECONDS).topics) == before
    assert kafka3.size(topic) == 0
