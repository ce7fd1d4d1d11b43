"""examples/cloudevents, end to end on real servers. It checks what it shows; here it must have shown all of it."""

from __future__ import annotations

from tests.examples.commands import assert_page_is_whole, printed_by, words_of
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ


def test_the_one_command(postgresql15: PostgreSQL, rabbitmq: RabbitMQ) -> None:
    words = words_of(printed_by("cloudevents", "--attempts", "3"))
    for shown in (
        "5 events in binary mode",
        "ce-type: org.example.reading.taken.v1",
        "5 events in structured mode",
        "application/cloudevents+json; charset=utf-8",
        "5 events in batched mode, by HTTP",
        "application/cloudevents-batch+json; charset=utf-8",
        "requests 1, with 5 events",
        "The events are the same in every mode",
        "The other 5 events are billed at once",
        "attempt 1 of 3: LookupError: there is no tariff 'night'; retrying in 2,",
        "attempt 2 of 3: LookupError: there is no tariff 'night'; retrying in 4,",
        "is dead after 3 attempts: LookupError: there is no tariff 'night'",
        "poisoned by anna: the meter ran backwards",
        "1 dead message will be retried",
        "attempt 3 failed: LookupError: there is no tariff 'night'",
        "now published",
        "meter-9: 180.00",
    ):
        assert shown in words
    assert words.count("the SDK org.example.reading.taken.v1 of meter-0: {'reading': 1,") == 3


def test_the_page() -> None:
    assert_page_is_whole("cloudevents")
