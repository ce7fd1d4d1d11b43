from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from postroad.brokers.kafka.answers import Answers
from postroad.brokers.kafka.producer import Failure, Sending
from postroad.brokers.kafka.records import Records
from postroad.brokers.kafka.silence import explain
from tests.destinations import a_page


async def explained(code: int, *, confirmed: int = 0) -> tuple[str | None, Answers]:
    """What is found of two messages without an answer, when the brokers say this of their topic."""
    page = a_page(2 + confirmed)
    answers, sending = Answers(page), Sending()
    answers.confirmed.update(message.position for message in page[2:])
    sending.failed = {message.position: Failure(KafkaError(KafkaError._PURGE_QUEUE), 0) for message in page[:2]}

    async def ask(topic: str) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=KafkaError(code), partitions={})})

    return await explain(page, sending, answers, Records("orders", "binary", 1_000_000), ask), answers


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED])
async def test_a_topic_that_takes_nothing_is_a_route(code: int) -> None:
    state, answers = await explained(code)
    assert state is None
    assert [refusal.route for refusal in answers.refusals()] == ["orders", "orders"]


@pytest.mark.parametrize("code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR])
async def test_what_passes_is_an_outage_and_counts_no_attempt(code: int) -> None:
    state, answers = await explained(code)
    assert state is not None
    assert "orders: " in state
    assert answers.refusals() == []
    state, answers = await explained(code, confirmed=1)
    assert state is None
    assert [refusal.route for refusal in answers.refusals()] == ["orders[0]", "orders[0]"]
