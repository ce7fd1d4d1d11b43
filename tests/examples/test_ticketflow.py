"""examples/ticketflow, end to end on real servers. It checks what it shows; here it must have shown all of it."""

from __future__ import annotations

import re

from examples.running import ROOT
from tests.examples.commands import assert_page_is_whole, printed_by, words_of
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ


def test_the_one_command(postgresql15: PostgreSQL, rabbitmq: RabbitMQ) -> None:
    words = words_of(printed_by("ticketflow"))
    for shown in (
        "relay default: acquired the lock 42; taking all lanes",
        "the lock 42 is held by server process",
        "The desk has 80 notices: each event once",
        "routing key ticket.status.changed",
        "attempt 1 of 3: agent 'kim' is not in the directory; retrying in 2,",
        "attempt 2 of 3: agent 'zoe' is not in the directory; retrying in 4,",
        "is dead after 3 attempts: agent 'zoe' is not in the directory",
        "postroad-dead-reason: agent 'zoe' is not in the directory",
        "at sink 'default': dead",
        "figures.sql pending 0, failing 0, dead 1, processed 86",
        "released the lock 42",
    ):
        assert shown in words
    steps = {
        step: words.find(step)
        for step in ("read a page of", ": published", "was refused", "is dead", "released the lock")
    }
    assert -1 not in steps.values()
    assert list(steps.values()) == sorted(steps.values())
    assert re.search(r"ended; \d+ published, \d+ attempts failed, 1 dead, 1 skipped", words)


def test_the_page() -> None:
    assert_page_is_whole("ticketflow")
    page = (ROOT / "examples/ticketflow/README.md").read_text(encoding="utf-8")
    for step in ("lock taken", "batch", "published", "failed", "dead", "lock released", "summary"):
        assert f"| {step} | `" in page
