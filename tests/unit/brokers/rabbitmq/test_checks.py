"""Judgements about RabbitMQ, also of versions that no test server has."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.admin import ConsumerFacts, Level
from postroad.brokers.rabbitmq.checks import UNLIMITED, dead_letter_arguments, version_of
from postroad.config import RelaySettings
from postroad.lifecycle import State
from postroad.relay.derived import without_dead_letter
from postroad.stores.base import Deferred
from tests.judging import judged

SIZE: dict[str, Any] = {"bytes": 5000, "limit": None, "envelope": "binary", "max_message_size": 134_217_728}


@pytest.mark.parametrize(
    ("text", "version"), [("3.10.8", (3, 10)), ("4.1.0-rc.1", (4, 1)), ("4", (4, 0)), ("?", (0, 0)), ("", (0, 0))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("version", "size", "level"),
    [
        ("3.13.7", {"envelope": "structured"}, Level.OK),
        ("4.0.0", {}, Level.OK),
        ("4.0.0", {"envelope": "structured"}, Level.WARNING),
        ("4.0.0", {"envelope": "structured", "max_message_size": 16_777_216}, Level.OK),
        ("4.0.0", {"limit": 1000}, Level.ERROR),
        ("3.10.8", {"limit": 1000}, Level.ERROR),
        ("3.10.8", {"bytes": None}, Level.OK),
    ],
)
def test_the_size_of_messages(version: str, size: dict[str, Any], level: Level) -> None:
    (finding,) = judged("rabbitmq-message-size", rabbitmq_version=version, rabbitmq_size=SIZE | size)
    assert finding.level is level


@pytest.mark.parametrize(
    ("version", "arguments", "level"),
    [
        ("4.0.2", {"x-queue-type": "quorum"}, Level.WARNING),
        ("3.13.7", {"x-queue-type": "quorum"}, Level.OK),
        ("4.0.2", {"x-queue-type": "quorum", "x-delivery-limit": -1}, Level.OK),
        ("4.0.2", {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead"}, Level.OK),
        ("4.0.2", {"x-queue-type": "classic"}, Level.OK),
        ("4.0.2", {}, Level.OK),
        ("3.10.8", {"x-queue-type": "quorum", "x-delivery-limit": -1}, Level.ERROR),
        ("3.10.8", {"x-queue-type": "quorum", "x-delivery-limit": 5}, Level.OK),
    ],
)
def test_a_quorum_queue_that_drops(version: str, arguments: dict[str, Any], level: Level) -> None:
    consumers = [ConsumerFacts("stock", None, 0, arguments)]
    (finding,) = judged(
        "rabbitmq-delivery-limit", rabbitmq_version=version, consumers_given=consumers, rabbitmq_dead_letter_queues={}
    )
    assert finding.level is level


@pytest.mark.parametrize(
    ("version", "there", "levels"),
    [
        ("4.0.2", {"stock.dead": "inequivalent arg"}, [Level.OK, Level.WARNING]),
        ("4.0.2", {"stock.dead": None}, [Level.OK]),
        ("4.0.2", {}, [Level.OK]),
        ("3.13.7", {"stock.dead": "inequivalent arg"}, [Level.OK]),
    ],
)
def test_a_dead_letter_queue_that_drops(version: str, there: dict[str, str | None], levels: list[Level]) -> None:
    arguments = UNLIMITED if version.startswith("4") else {"x-queue-type": "quorum"}
    findings = judged(
        "rabbitmq-delivery-limit",
        rabbitmq_version=version,
        consumers_given=[ConsumerFacts("stock", None, 0, arguments, "stock.dead")],
        rabbitmq_dead_letter_queues=there,
    )
    assert [finding.level for finding in findings] == levels
    assert all("'stock.dead'" in finding.text for finding in findings[1:])


@pytest.mark.parametrize(
    ("version", "arguments", "declared"),
    [
        ("4.0.2", {"x-queue-type": "quorum", "x-max-length": 5}, UNLIMITED),
        ("3.13.7", {"x-queue-type": "quorum", "x-max-length": 5}, {"x-queue-type": "quorum"}),
        ("4.1.0", {"x-queue-type": "classic"}, {"x-queue-type": "classic"}),
        ("4.1.0", {"x-message-ttl": 5}, {}),
        ("?", {"x-queue-type": "quorum"}, {"x-queue-type": "quorum"}),
    ],
)
def test_how_a_dead_letter_queue_is_declared(version: str, arguments: dict[str, Any], declared: dict[str, Any]) -> None:
    assert dead_letter_arguments(arguments, version) == declared


def test_a_dead_letter_topic_that_was_refused() -> None:
    settings = RelaySettings(dead_letter_topic="graveyard")
    dead = Deferred(1, None, State.DEAD, error="it is odd")
    rows = [
        {"sink": "s", "error": without_dead_letter(dead, topic, "312 NO_ROUTE").error} for topic in ("graveyard", "x")
    ]
    (finding,) = judged("rabbitmq-dead-letter-topic", relay_settings=settings, refused_dead_letters=rows)
    assert finding.level is Level.ERROR
    assert finding.text.endswith("of sink 's': 312 NO_ROUTE")
    (finding,) = judged("rabbitmq-dead-letter-topic", relay_settings=settings, refused_dead_letters=rows[1:])
    assert finding.level is Level.SKIPPED
