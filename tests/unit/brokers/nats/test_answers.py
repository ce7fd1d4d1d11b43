"""What JetStream's answers mean for the messages of a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroad.brokers.nats.answers import Answers, why_not_stored
from tests.destinations import stored

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


def answers_of(count: int = 2) -> Answers:
    answers = Answers([stored(position) for position in range(1, count + 1)], lambda message: message.topic)
    answers.pending.update(range(count))
    return answers


def problem(err_code: int, code: int = 400) -> bytes:
    error = {"code": code, "err_code": err_code, "description": "words"}
    return json.dumps({"error": error, "stream": "S", "seq": 0}).encode()


def test_a_confirm_and_a_duplicate_are_confirms() -> None:
    answers = answers_of()
    assert answers.add(1, b"", b'{"stream":"S","seq":7}')
    assert answers.add(0, b"", b'{"stream":"S","seq":6,"duplicate":true}')
    assert (answers.confirmed, answers.pending, answers.is_complete) == ({1, 2}, set(), True)
    assert not answers.add(0, b"", b'{"stream":"S","seq":6}'), "once is enough"


@pytest.mark.parametrize("body", [b"", b"+OK", b"{}", b'{"ok":true}', b'{"stream":"S"}', b'{"seq":1}', b"\xff", b"[1]"])
def test_what_another_program_answers_is_no_confirm(body: bytes) -> None:
    answers = answers_of(1)
    assert not answers.add(0, b"", body)
    assert (answers.confirmed, answers.pending) == (set(), {0})
    assert why_not_stored(body) == "what answers there is no stream"


@pytest.mark.parametrize(
    ("err_code", "code", "wanted"),
    [
        (10054, 400, {"permanent": True, "route": None}),
        (10077, 503, {"permanent": False, "route": "order.created"}),
        (10047, 500, {"permanent": False, "route": "order.created"}),
        (10023, 503, {"permanent": False, "route": "order.created"}),
        (10109, 400, {"permanent": False, "route": "order.created"}),
        (19999, 400, {"permanent": False, "route": None}),
    ],
)
def test_refusals(err_code: int, code: int, wanted: dict[str, Any]) -> None:
    answers = answers_of()
    answers.add(0, b"", b'{"stream":"S","seq":6}')
    answers.add(1, b"", problem(err_code, code))
    (refusal,) = answers.in_order()
    assert refusal.position == 2
    assert {"permanent": refusal.permanent, "route": refusal.route} == wanted
    assert (answers.outage, answers.is_complete) == (None, True)
    assert why_not_stored(problem(err_code)) == f"words ({err_code})"


@pytest.mark.parametrize(("err_code", "code"), [(10008, 503), (10060, 400), (10076, 500)])
def test_outages(err_code: int, code: int) -> None:
    answers = answers_of(1)
    answers.add(0, b"", problem(err_code, code))
    assert answers.outage is not None
    assert (answers.in_order(), answers.is_complete) == ([], False)


def test_no_responders_is_a_missing_stream_or_a_lost_leader() -> None:
    answers = answers_of(1)
    answers.add(0, NO_RESPONDERS, b"")
    assert not answers.is_complete
    answers.explain({"order.created": ()})
    (refusal,) = answers.in_order()
    assert (refusal.route, refusal.unroutable, answers.is_complete) == ("order.created", True, True)
    answers = answers_of(1)
    answers.add(0, NO_RESPONDERS, b"")
    answers.explain({"order.created": ("S",)})
    assert (answers.in_order(), answers.is_complete) == ([], False)
    assert "has no leader" in str(answers.outage)
    answers = answers_of(1)
    answers.add(0, NO_RESPONDERS, b"")
    answers.explain({"order.created": None})
    (refusal,) = answers.in_order()
    assert (refusal.route, refusal.unroutable) == ("order.created", False), "not to be dropped: it may be an outage"


def test_a_permission_concerns_one_subject() -> None:
    answers = Answers([stored(1), stored(2, topic="other")], lambda message: message.topic)
    answers.pending.update((0, 1))
    assert not answers.deny("nothing", "words")
    assert answers.deny("other", "words")
    (refusal,) = answers.in_order()
    assert (refusal.position, refusal.route, answers.pending) == (2, "other", {0})
