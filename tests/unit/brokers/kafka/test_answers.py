"""What Kafka's answers mean, and which of them count for a key."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from postroad.brokers.kafka.answers import Answers, Verdict, verdict_on
from postroad.brokers.kafka.producer import Failure
from tests.destinations import stored

PAGE = [stored(1, key="k"), stored(2, key="k"), stored(3, key="l"), stored(4, key=None), stored(5, key="k")]
K1, K2, L3, N4, K5 = PAGE


def failure(code: int) -> Failure:
    return Failure(KafkaError(code), 0)


def positions(messages: Any) -> list[int]:
    return [message.position for message in messages]


def decided(failed: dict[int, int], *, alone: bool = False) -> tuple[Answers, set[int]]:
    answers = Answers(PAGE)
    codes = {position: failure(code) for position, code in failed.items()}
    return answers, answers.decide(PAGE, codes, lambda message: message.topic, alone=alone)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (KafkaError._PURGE_INFLIGHT, Verdict.AGAIN),
        (KafkaError._FATAL, Verdict.AGAIN),
        (KafkaError._STATE, Verdict.AGAIN),
        (KafkaError.MSG_SIZE_TOO_LARGE, Verdict.SUSPECT),
        (KafkaError.INVALID_RECORD, Verdict.SUSPECT),
        (KafkaError._UNKNOWN_TOPIC, Verdict.UNROUTABLE),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Verdict.ROUTE),
        (KafkaError.TOPIC_EXCEPTION, Verdict.PERMANENT),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Verdict.OUTAGE),
        (KafkaError.POLICY_VIOLATION, Verdict.SUSPECT),
    ],
)
def test_verdicts(code: int, verdict: Verdict) -> None:
    assert verdict_on(KafkaError(code)) is verdict


def test_at_first_all_are_missing() -> None:
    answers = Answers(PAGE)
    assert positions(answers.missing()) == [1, 2, 3, 4, 5]
    assert positions(answers.first_missing()) == [1, 3, 4]
    answers.confirmed.update({1, 2, 3, 4, 5})
    assert positions(answers.missing()) == []


def test_a_refusal_ends_its_key_and_nothing_before_it() -> None:
    answers = Answers(PAGE)
    answers.refuse(K2, "no")
    assert positions(answers.missing()) == [1, 3, 4]
    answers.confirmed.update({1, 3, 4})
    assert positions(answers.missing()) == []
    assert positions(answers.refusals()) == [2]


def test_a_refusal_behind_what_was_not_taken_does_not_count() -> None:
    answers = Answers(PAGE)
    answers.refuse(K2, "no")
    answers.refuse(N4, "no")
    assert positions(answers.refusals()) == [4], "an outage may keep it from taking the first"
    answers.refuse(K1, "no")
    assert positions(answers.refusals()) == [1, 4], "of a key, the first"


def test_what_was_dropped_gets_no_answer() -> None:
    answers, suspects = decided({1: KafkaError._PURGE_QUEUE, 3: KafkaError._PURGE_INFLIGHT})
    assert not suspects
    assert answers.count == 0


def test_of_a_batch_all_are_suspects() -> None:
    answers, suspects = decided({1: KafkaError.MSG_SIZE_TOO_LARGE, 2: KafkaError.MSG_SIZE_TOO_LARGE})
    assert suspects == {1, 2}
    assert answers.count == 0


@pytest.mark.parametrize(
    ("code", "permanent"), [(KafkaError.MSG_SIZE_TOO_LARGE, True), (KafkaError.POLICY_VIOLATION, False)]
)
def test_alone_it_is_guilty(code: int, permanent: bool) -> None:
    answers, suspects = decided({3: code}, alone=True)
    assert not suspects
    (refusal,) = answers.refusals()
    assert (refusal.position, refusal.permanent, refusal.route) == (3, permanent, None)


def test_topics_are_routes() -> None:
    answers, _ = decided({3: KafkaError.TOPIC_AUTHORIZATION_FAILED, 4: KafkaError._UNKNOWN_TOPIC})
    denied, missing = answers.refusals()
    assert (denied.route, denied.permanent, denied.unroutable) == ("order.created", False, False)
    assert (missing.route, missing.permanent, missing.unroutable) == ("order.created", False, True)
