"""The configuration of a stream that is created, and what of a stream's is warned of."""

from __future__ import annotations

import pytest

from postroad.brokers.nats.jetstream import StreamConfig, StreamInfo
from postroad.brokers.nats.streams import new_stream, warnings_of
from postroad.brokers.nats.subscriber_settings import matches


def test_values_from_the_command_line_are_texts() -> None:
    given = {"num_replicas": "3", "deny_delete": "true", "description": "mine", "max_bytes": 1000}
    assert new_stream("S", ("a",), given) == {
        "name": "S",
        "subjects": ["a"],
        "storage": "file",
        "discard": "new",
        "num_replicas": 3,
        "deny_delete": True,
        "description": "mine",
        "max_bytes": 1000,
    }


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (StreamConfig(num_replicas=3), []),
        (StreamConfig(num_replicas=3, max_bytes=1), ["discard is 'old'"]),
        (StreamConfig(num_replicas=3, max_bytes=1, discard="new"), []),
        (StreamConfig(num_replicas=3, storage="memory"), ["storage is 'memory'"]),
        (StreamConfig(no_ack=True), ["num_replicas is 1", "no_ack is true"]),
    ],
)
def test_what_is_warned_of(config: StreamConfig, warned: list[str]) -> None:
    assert [text.partition(": ")[2].partition(",")[0] for text in warnings_of(StreamInfo(config))] == warned


@pytest.mark.parametrize(
    ("pattern", "subject", "wanted"),
    [
        ("a", "a", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.b", True),
        ("a.b", "a.c", False),
    ],
)
def test_wildcards(pattern: str, subject: str, wanted: bool) -> None:
    assert matches(pattern, subject) is wanted
