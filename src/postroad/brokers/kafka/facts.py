"""Asks a Kafka cluster what `checks` judges, without changing anything there: nothing is published or created."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource

from postroad.brokers.certificates import ask_certificate
from postroad.brokers.cloudevents import CannotEncode
from postroad.brokers.kafka.address import Address
from postroad.brokers.kafka.cluster import (
    ADMIN_SECONDS,
    MIN_ISR,
    UNCLEAN,
    Unreachable,
    answered,
    metadata,
    settings_of,
)
from postroad.brokers.kafka.producer import SILENT
from postroad.brokers.kafka.producers import Producers
from postroad.brokers.kafka.records import Records, check_topic
from postroad.errors import InvalidSetting
from postroad.findings import Facts, NotKnown
from postroad.message import StoredMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from postroad.brokers.kafka.settings import PublisherSettings

__all__ = ["gather"]

MOST_TOPICS: Final = 50
_STATES: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "missing",
    KafkaError._UNKNOWN_TOPIC: "missing",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "hidden",
}
_WRITERS: Final = (AclOperation.WRITE, AclOperation.ALL)
_NO_ID: Final = UUID(int=0)


async def gather(url: str, settings: PublisherSettings, known: Facts) -> Facts:
    """The facts of `checks`, and `broker_connection` and `broker_certificate`."""
    facts = Facts()
    address = Address(url, settings, client_id="postroad doctor")
    producers, seconds = Producers(address, settings), settings.seconds("connect_timeout")
    config = producers.admin_config()
    await _certificate(config, seconds, facts)
    try:
        found = await metadata(producers.shared(), None, seconds)
    except Unreachable as error:
        fix = {"fix": "check kafka.username, kafka.password and kafka.mechanism"} if error.login else {}
        facts.know("broker_connection", {"place": address.name, "error": str(error), **fix})
        for name in ("kafka_place", "kafka_size", "kafka_topics", "kafka_dead_letters"):
            facts.miss(name, "the broker can't be reached")
        return facts
    finally:
        await producers.close()
    server = f"a cluster of {len(found.brokers)} Kafka broker{'' if len(found.brokers) == 1 else 's'}"
    facts.know("broker_connection", {"place": address.name, "error": None, "server": server})
    facts.know("kafka_size", _size(settings, known))
    await asyncio.to_thread(_ask, config, address.user, sorted(found.brokers), Wanted(settings, known), facts)
    return facts


# -- the certificates ------------------------------------------------------------------------------------------------


async def _certificate(config: dict[str, Any], seconds: float, facts: Facts) -> None:
    """The certificate of the URL's hosts that is not accepted, or ends first."""
    if not config["security.protocol"].endswith("SSL"):
        facts.miss("broker_certificate", "the URL is kafka://, without TLS")
        return
    context = _context(config)
    found: list[dict[str, Any]] = []
    for address in config["bootstrap.servers"].split(","):
        host, _, port = address.rpartition(":")
        fix = "renew the certificate, name the host that it was issued for, or give its CA: kafka.ca_file = FILE"
        try:
            answer = await ask_certificate(host.strip("[]"), int(port), context, seconds, fix=fix)
        except NotKnown as reason:
            facts.miss("broker_certificate", str(reason))
        else:
            found.append({"host": address, **answer})
    if found:
        facts.know("broker_certificate", min(found, key=lambda each: each.get("seconds_left", 0)))


def _context(config: dict[str, Any]) -> ssl.SSLContext:
    """As librdkafka makes it of the same configuration."""
    try:
        context = ssl.create_default_context(cafile=config.get("ssl.ca.location"))
        if "ssl.certificate.location" in config:
            context.load_cert_chain(config["ssl.certificate.location"], config["ssl.key.location"])
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ("ca_file", "cert_file", "key_file")
        raise InvalidSetting(f"a certificate or key can't be used: {error}", settings=files) from error
    return context


# -- which topics ----------------------------------------------------------------------------------------------------


def _size(settings: PublisherSettings, known: Facts) -> dict[str, Any]:
    largest = known["largest_message"][0]["bytes"] if "largest_message" in known else None
    return {"bytes": largest, "max_message_size": settings.max_message_size, "compression": settings.compression}


class Wanted:
    """The topics that the newest messages go to, and their dead letters would."""

    def __init__(self, settings: PublisherSettings, known: Facts) -> None:
        self._records = Records(settings.topic, settings.envelope, settings.max_message_size)
        self._known = known
        self.dead_letters: str | None = known["relay_settings"].dead_letter_topic

    def topics(self) -> list[str]:
        """Raises NotKnown."""
        if self._records.only_topic is not None:
            return [self._records.only_topic]
        return list(dict.fromkeys(self._of(self._newest())))[:MOST_TOPICS]

    def dead_letter_topics(self) -> list[str]:
        """Several, if the template names more than the message's topic. Raises NotKnown."""
        if self.dead_letters is None:
            return []
        other = {"topic": self.dead_letters}
        stand_in = {"type": self.dead_letters, "key": None, "headers": "{}", **other}
        rows = self._newest() if "newest_messages" in self._known else []
        return list(dict.fromkeys(self._of([row | other for row in rows] or [stand_in])))[:MOST_TOPICS]

    def _newest(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._known["newest_messages"]
        return rows

    def _of(self, rows: Collection[dict[str, Any]]) -> Iterator[str]:
        for row in rows:
            with suppress(CannotEncode):  # such a message is dead
                message = (1, _NO_ID, row["topic"], row["key"], 0, row["type"], b"", "text/plain", row["headers"], 0)
                topic = self._records.topic_of(StoredMessage(*message))
                if check_topic(topic) is None:
                    yield topic


# -- what the brokers answer -----------------------------------------------------------------------------------------


def _ask(config: dict[str, Any], user: str | None, brokers: list[int], wanted: Wanted, facts: Facts) -> None:
    """It blocks."""
    admin = AdminClient(config | {"logger": SILENT})
    defaults = settings_of(admin, ConfigResource.Type.BROKER, [str(brokers[0])]) if brokers else {}
    creates = next(iter(defaults.values()), {}).get("auto.create.topics.enable")
    place = {"hosts": config["bootstrap.servers"], "user": user, "brokers": len(brokers), "creates": creates == "true"}
    facts.know("kafka_place", place)
    for name, topics in (("kafka_topics", wanted.topics), ("kafka_dead_letters", wanted.dead_letter_topics)):
        try:
            facts.know(name, _described(admin, topics()))
        except NotKnown as reason:
            facts.miss(name, str(reason))


def _described(admin: AdminClient, topics: Collection[str]) -> list[dict[str, Any]]:
    """Of each topic: whether it is there, its replicas, its settings, and what our user may do. Raises NotKnown."""
    if not topics:
        return []
    try:
        answers = admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ADMIN_SECONDS
        )
    except KafkaException as error:
        raise NotKnown(f"the topics could not be asked for: {error.args[0].str()}") from error
    found = {topic: answered(admin, answer) for topic, answer in answers.items()}
    there = [topic for topic, answer in found.items() if not isinstance(answer, KafkaError)]
    settings = settings_of(admin, ConfigResource.Type.TOPIC, there) if there else {}
    return [_row(topic, answer, settings.get(topic, {})) for topic, answer in found.items()]


def _row(topic: str, answer: Any, settings: dict[str, str]) -> dict[str, Any]:
    if isinstance(answer, KafkaError):
        return {"topic": topic, "state": _STATES.get(answer.code(), "unknown"), "error": answer.str()}
    allowed = answer.authorized_operations
    partitions = answer.partitions
    return {
        "topic": topic,
        "state": "there",
        "partitions": len(partitions),
        "leaderless": sum(1 for each in partitions if each.leader is None or each.leader.id < 0),
        "copies": min(len(each.replicas) for each in partitions),
        "in_sync": min(len(each.isr) for each in partitions),
        "may_write": None if allowed is None else any(each in allowed for each in _WRITERS),
        "min_in_sync": _number(settings.get(MIN_ISR)),
        "max_message_bytes": _number(settings.get("max.message.bytes")),
        "unclean": None if UNCLEAN not in settings else settings[UNCLEAN] == "true",
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
