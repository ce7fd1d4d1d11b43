"""Judgements about Kafka that the test servers give no occasion for."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.admin import Level
from tests.judging import judged

PLACE: dict[str, Any] = {"hosts": "one:9092,two:9092", "user": None, "brokers": 3, "creates": False}
THERE: dict[str, Any] = {
    "topic": "orders",
    "state": "there",
    "partitions": 6,
    "leaderless": 0,
    "copies": 3,
    "in_sync": 3,
    "may_write": True,
    "min_in_sync": 2,
    "max_message_bytes": 1_048_588,
    "unclean": False,
}


@pytest.mark.parametrize(
    ("state", "creates", "level"),
    [("missing", False, Level.ERROR), ("missing", True, Level.WARNING), ("unknown", True, Level.ERROR)],
)
def test_a_topic_that_is_not_there(state: str, creates: bool, level: Level) -> None:
    row = {"topic": "orders", "state": state, "error": "no answer"}
    place = PLACE | {"creates": creates}
    (finding,) = judged("kafka-topics", kafka_topics=[row, THERE], kafka_place=place)
    assert finding.level is level
    if state == "missing":
        assert finding.fix == (
            "kafka-topics.sh --bootstrap-server one:9092,two:9092 --create --topic orders --partitions 6 "
            "--replication-factor 3"
        )


def test_a_small_cluster_is_not_told_to_use_more_replicas_than_it_has_brokers() -> None:
    row = {"topic": "orders", "state": "missing", "error": ""}
    (finding,) = judged("kafka-topics", kafka_topics=[row], kafka_place=PLACE | {"brokers": 1})
    assert (finding.fix or "").endswith("--replication-factor 1")
    (finding,) = judged("kafka-replication", kafka_topics=[THERE | {"copies": 1}], kafka_place=PLACE | {"brokers": 1})
    assert finding.level is Level.ERROR, "it needs 2 in sync"


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, Level.OK),
        ({"may_write": None}, Level.SKIPPED),
        ({"may_write": False}, Level.ERROR),
        ({"state": "hidden"}, Level.ERROR),
    ],
)
def test_rights(changed: dict[str, Any], level: Level) -> None:
    (finding,) = judged("kafka-write-rights", kafka_topics=[THERE | changed], kafka_place=PLACE | {"user": "the shop"})
    assert finding.level is level
    if level is Level.ERROR:
        assert "--allow-principal 'User:the shop' --producer" in (finding.fix or "")


@pytest.mark.parametrize("check", ["kafka-replication", "kafka-unclean-election", "kafka-message-size"])
def test_settings_that_the_user_may_not_read(check: str) -> None:
    row = THERE | {"min_in_sync": None, "unclean": None, "max_message_bytes": None}
    size = {"bytes": None, "max_message_size": 1_048_576, "compression": "none"}
    (finding,) = judged(check, kafka_topics=[row], kafka_place=PLACE, kafka_size=size)
    assert (finding.level, "DescribeConfigs" in finding.text) == (Level.SKIPPED, True)


@pytest.mark.parametrize(
    "check", ["kafka-replicas", "kafka-replication", "kafka-unclean-election", "kafka-message-size"]
)
def test_no_topic(check: str) -> None:
    size = {"bytes": None, "max_message_size": 1_048_576, "compression": "none"}
    (finding,) = judged(check, kafka_topics=[], kafka_place=PLACE, kafka_size=size)
    assert finding.level is Level.OK
