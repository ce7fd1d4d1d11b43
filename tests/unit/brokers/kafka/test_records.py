"""Messages as records: the quick way makes the same headers as `wrap`; runs of one topic per key."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

import pytest

from postroad.brokers.cloudevents import CannotEncode, wrap
from postroad.brokers.kafka.answers import Answers
from postroad.brokers.kafka.records import Records, check_topic, next_run
from tests.destinations import CREATED_US, stored

OWN_HEADERS: list[dict[str, str]] = [
    {},
    {"tenant": "north"},
    {"correlation_id": "c", "causation_id": "d", "traceparent": "00-1-2-01", "tracestate": "x"},
    {"ce_id": "mine", "ce_type": "mine", "ce_time": "mine", "ce_subject": "mine", "content-type": "mine"},
]


@pytest.mark.parametrize("own", OWN_HEADERS)
@pytest.mark.parametrize("key", [None, "order-1", "ü"])
def test_headers_are_those_of_wrap(own: dict[str, str], key: str | None) -> None:
    records = Records("{topic}", "binary", 1)
    earlier = stored(2, key=None if key is None else "another", headers=own, created_us=CREATED_US + 1)
    for message in (earlier, stored(1, key=key, headers=own)):  # of the second one, a part is remembered
        topic, value, headers = records.of(message)
        assert headers == wrap(message, "binary", "ce_").headers | {"content-type": message.content_type}
        assert (topic, value) == ("order.created", message.payload)


def test_remembered_headers_are_not_changed_by_a_message() -> None:
    records = Records("{topic}", "binary", 1)
    assert "ce_subject" in records.of(stored(1, key="k"))[2]
    assert "ce_subject" not in records.of(stored(2, key=None))[2]


@pytest.mark.parametrize("headers_json", ["{}", "[]", "{", '{"source": 1}'])
def test_headers_that_cannot_be_encoded(headers_json: str) -> None:
    with pytest.raises(CannotEncode):
        Records("{topic}", "binary", 1).of(stored(1, headers_json=headers_json))


def test_messages_that_lack_what_the_topic_is_made_of_are_refused() -> None:
    page = [stored(1, headers={"tenant": "a"}), stored(2)]
    answers = Answers(page)
    Records("{tenant}", "binary", 1).refuse_topicless(page, answers)
    assert [refusal.position for refusal in answers.refusals()] == [2]
    assert list(answers.missing()) == page[:1]


@pytest.mark.parametrize("name", ["orders", "a.b-c_d", "x" * 249, "0", "..."])
def test_legal_topics(name: str) -> None:
    assert check_topic(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "ä", "a b", "a/b", "x" * 250, "a\n"])
def test_illegal_topics(name: str) -> None:
    assert check_topic(name) is not None


def run_of(*pairs: str) -> list[int]:
    """The positions of the first run of messages such as `k:a`, key and topic."""
    page: list[Any] = []
    for position, pair in enumerate(pairs):
        key, topic = pair.split(":")
        page.append(stored(position, key=key or None, topic=topic))
    return [message.position for message in next_run(page, attrgetter("topic"))]


def test_runs() -> None:
    assert run_of("k:a", "k:a", "l:a") == [0, 1, 2]
    assert run_of("k:a", "l:b", "k:a", "l:b") == [0, 1, 2, 3]
    assert run_of("k:a", "k:b", "k:a", "l:b") == [0, 3], "nothing behind the first of another topic"
    assert run_of(":a", ":b", ":a") == [0, 1, 2], "without a key there is no order"


def test_the_vectors_are_those_of_murmur2() -> None:
    """Java's algorithm, written down once more, so that the vectors need no server to be understood."""
    from pathlib import Path

    vectors = json.loads((Path(__file__).parents[3] / "partition_vectors.json").read_text())
    assert vectors
    for partitions, by_key in vectors.items():
        for key, partition in by_key.items():
            assert (murmur2(key.encode()) & 0x7FFFFFFF) % int(partitions) == partition, key


def murmur2(data: bytes) -> int:
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        part = (part ^ part >> 24) * multiplier & mask
        found = found * multiplier & mask ^ part
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * multiplier & mask
    found = (found ^ found >> 13) * multiplier & mask
    return found ^ found >> 15
