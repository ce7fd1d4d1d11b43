"""The explainer, an answer at a time, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroad.admin import AuditEntry, FollowedSlot, HeldKey, Pause
from postroad.commands import command_of
from postroad.lifecycle import State
from postroad.stores.admin.answers import (
    Answer,
    DeferredFacts,
    KeyFacts,
    LaneFacts,
    MessageFacts,
    PublishedFacts,
    Reason,
    SinkFacts,
    UnknownFacts,
)
from postroad.stores.admin.explain import explain, explain_key, explain_unknown
from postroad.stores.admin.explain_decided import DECIDED

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ME, HEAD = UUID("01a1e1a4-b273-7de5-a691-9ab476c02dc7"), UUID("01a1e1a4-b270-712d-a0cd-be728d84d7a7")
RELAY = UUID(int=7)
SECRET = "gehe1m"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def lane(**fields: Any) -> LaneFacts:
    """A lane whose relay is alive, and has just published something."""
    values: dict[str, Any] = {
        "sink": "default", "lane": 2, "position": 100, "reading": "ahead", "owner": RELAY, "lease_until": ago(-10),
        "host": "a.host", "pid": 4711, "heartbeat_at": ago(2), "served_at": ago(1), "relays": 1, "pause": None,
        "progressed_at": ago(1),
    }  # fmt: skip
    return LaneFacts(**(values | fields))


def deferred(state: State, id: UUID = ME, **fields: Any) -> DeferredFacts:
    values: dict[str, Any] = {
        "id": id, "position": 90, "state": state, "attempts": 0, "due_at": None, "key": "k", "route": None,
        "route_since": None, "error": None, "deferred_at": ago(300), "failed_at": None, "rewound": False,
    }  # fmt: skip
    return DeferredFacts(**(values | fields))


def message(*sinks: SinkFacts, **fields: Any) -> MessageFacts:
    values: dict[str, Any] = {
        "at": NOW, "id": ME, "type": "order.created", "topic": "order.created", "key": "k", "position": 350,
        "created_at": ago(5), "sinks": sinks,
    }  # fmt: skip
    return MessageFacts(**(values | fields))


def line(command: str, reason: str | None = "because", **arguments: Any) -> AuditEntry:
    return AuditEntry(
        number=3, at=ago(60), who="anna", role="ops", command=command, arguments=arguments, reason=reason, changed=1
    )


def command(answer: Answer) -> str | None:
    return None if answer.remedy is None else command_of(answer.remedy)


def the_answer(facts: MessageFacts) -> Answer:
    found = explain(facts)
    assert (found.id, found.at) == (ME, NOW)
    (answer,) = found.answers
    return answer


def about(there: SinkFacts, **fields: Any) -> Answer:
    return the_answer(message(there, **fields))


# -- before any sink -------------------------------------------------------------------------------------------------


def test_scheduled() -> None:
    answer = the_answer(message(position=None, deliver_at=ago(-7380)))
    assert answer.reason is Reason.SCHEDULED
    assert answer.text == "it is scheduled for 2026-03-01 14:03:00Z (in 2h 3m); a relay then moves it into the log"
    assert (answer.sink, command(answer), answer.evidence["deliver_at"]) == (None, None, ago(-7380))
    assert the_answer(message(position=None, deliver_at=ago(3))).reason is Reason.SCHEDULED, "within a relay's tick"


def test_due_and_not_moved_into_the_log() -> None:
    answer = the_answer(message(position=None, deliver_at=ago(60)))
    assert answer.reason is Reason.OVERDUE
    assert "it was due at 2026-03-01 11:59:00Z (1m ago), and no relay" in answer.text
    assert command(answer) == "postroad relays"


def test_no_sink_yet() -> None:
    answer = the_answer(message())
    assert (answer.reason, answer.sink) == (Reason.NO_SINK, None)
    assert command(answer) == "postroad relay"


# -- the sink and the lane -------------------------------------------------------------------------------------------

PAUSE = Pause(ago(120), "anna", "the broker moves")


def test_paused() -> None:
    answer = about(SinkFacts(lane=lane(sink="two words", pause=PAUSE, owner=None)))
    assert answer.reason is Reason.PAUSED, "which stops it, whether a relay runs or not"
    assert answer.text == "sink 'two words' is paused, by anna since 2026-03-01 11:58:00Z (2m ago): the broker moves"
    assert command(answer) == "postroad resume 'two words'"
    assert answer.evidence == {"lane": 2, "who": "anna", "since": ago(120), "why": "the broker moves"}


def test_no_owner() -> None:
    answer = about(SinkFacts(lane=lane(owner=None, lease_until=None, relays=0, served_at=ago(3600))))
    assert answer.reason is Reason.NO_OWNER
    assert answer.text == (
        "no relay owns lane 2 of sink 'default'; a relay last served the sink at 2026-03-01 11:00:00Z (1h ago)"
    )
    assert (answer.advice, command(answer)) == ("start a relay of this sink", "postroad relay --sink default")


def test_no_owner_for_a_moment() -> None:
    answer = about(SinkFacts(lane=lane(owner=None, lease_until=None, relays=2)))
    assert answer.reason is Reason.NO_OWNER
    assert answer.text.endswith("; 2 relays of the sink are alive and may take it")
    assert command(answer) == "postroad relays"


def test_lease_expired() -> None:
    answer = about(
        SinkFacts(lane=lane(lease_until=ago(30), relays=0), deferred=deferred(State.RETRYING, error="no", due_at=NOW))
    )
    assert answer.reason is Reason.LEASE_EXPIRED
    assert answer.text == (
        "the relay on a.host, process 4711, stopped renewing its lease on lane 2, which expired at "
        "2026-03-01 11:59:30Z (30s ago); no other relay serves the sink"
    )
    assert answer.evidence["heartbeat_at"] == ago(2)
    assert (answer.evidence["state"], answer.evidence["error"]) == (State.RETRYING, "no")
    assert command(answer) == "postroad relay --sink default"


def test_the_filter_does_not_take_it() -> None:
    answer = about(SinkFacts(lane=lane(not_taken_by="topics order.#", pause=PAUSE)))
    assert answer.reason is Reason.NOT_TAKEN, "whatever the sink does now"
    assert answer.text == "sink 'default' does not take it: it takes topics order.#"
    assert (answer.evidence, command(answer)) == ({"lane": 2, "filter": "topics order.#"}, None)


# -- carried by another program --------------------------------------------------------------------------------------


def test_the_slot_is_lost() -> None:
    lost = FollowedSlot(name="shop", lost="the replication slot 'shop' does not exist any more")
    answer = about(SinkFacts(lane=lane(slot=lost, pause=PAUSE)))
    assert answer.reason is Reason.SLOT_LOST, "which resuming the sink would not end"
    assert answer.text == "sink 'default' is paused, because the replication slot 'shop' does not exist any more"
    assert command(answer) == "postroad sink adopt-slot default"
    assert "it may never have been carried" in answer.advice


@pytest.mark.parametrize(
    ("active", "text", "advice"),
    [
        (None, "there is no replication slot 'shop'", "start the program that creates it"),
        (False, "no program reads the replication slot 'shop', which carries it", "start the program that reads it"),
        (True, "has not confirmed it; 5,000 bytes of the write-ahead log are not", "without heartbeat.action.query"),
    ],
)
def test_the_reader_of_the_slot_has_not_confirmed_it(active: bool | None, text: str, advice: str) -> None:
    slot = FollowedSlot(name="shop", active=active, behind_bytes=5000)
    answer = about(SinkFacts(lane=lane(slot=slot, progressed_at=None)), created_at=ago(60))
    assert answer.reason is Reason.NOT_CONFIRMED, "not stalled: the relay publishes nothing there"
    assert text in answer.text
    assert advice in answer.advice
    assert (answer.evidence["slot"], answer.evidence.get("active")) == ("shop", active)
    assert about(SinkFacts(lane=lane(slot=slot, reading="passed"))).reason is Reason.PUBLISHED


# -- not read --------------------------------------------------------------------------------------------------------


def test_not_read_yet() -> None:
    answer = about(SinkFacts(lane=lane()))
    assert answer.reason is Reason.NOT_READ
    assert answer.text == "lane 2 has not read it yet: it is at position 100, and the message at 350"
    assert answer.evidence == {"lane": 2, "position": 350, "lane_position": 100, "gap": 250}


def test_committed_late() -> None:
    answer = about(SinkFacts(lane=lane(reading="late", position=400)))
    assert answer.reason is Reason.COMMITTED_LATE
    assert answer.text == (
        "its transaction committed late: lane 2 was past its position, 350, by then (400), and reads it next"
    )


@pytest.mark.parametrize(("moved", "words"), [(ago(90), " since 2026-03-01 11:58:30Z (1m 30s ago)"), (None, "")])
def test_stalled(moved: datetime | None, words: str) -> None:
    answer = about(SinkFacts(lane=lane(progressed_at=moved)), created_at=ago(60))
    assert answer.reason is Reason.STALLED
    assert answer.text == (
        "it has been waiting since 2026-03-01 11:59:00Z (1m ago): the relay on a.host, process 4711, owns lane 2, and "
        f"has published nothing{words}"
    )
    assert "broker may be unavailable" in answer.advice


def test_a_lane_that_moves_is_not_stalled() -> None:
    assert about(SinkFacts(lane=lane(progressed_at=ago(1))), created_at=ago(600)).reason is Reason.NOT_READ


# -- deferred --------------------------------------------------------------------------------------------------------

HOLD = HeldKey("default", "k 1", ago(60), "anna", f"see amqp://me:{SECRET}@h")


def test_key_held_by_an_operator() -> None:
    answer = about(SinkFacts(lane=lane(), deferred=deferred(State.HELD), hold=HOLD, head=deferred(State.HELD, HEAD)))
    assert answer.reason is Reason.KEY_HELD, "which is more than the head before it"
    assert answer.text == "key 'k 1' is held, by anna since 2026-03-01 11:59:00Z (1m ago): see amqp://me:***@h"
    assert command(answer) == "postroad key release 'k 1' --sink default"
    assert SECRET not in str(answer)


def test_behind_a_head_that_is_retrying() -> None:
    head = deferred(State.RETRYING, HEAD, attempts=2, due_at=ago(-4), error="404", position=80)
    answer = about(SinkFacts(lane=lane(), deferred=deferred(State.HELD), head=head))
    assert answer.reason is Reason.BEHIND
    assert answer.text == f"it is behind message {HEAD} of its key, which must go first"
    assert answer.evidence == {"lane": 2, "head": HEAD, "head_position": 80}
    assert answer.because is not None
    assert (answer.because.reason, answer.because.because) == (Reason.RETRYING, None)
    assert answer.because.text == "after 2 failed attempts, it is tried again at 2026-03-01 12:00:04Z (in 4s): 404"


def test_behind_a_dead_head() -> None:
    head = deferred(State.DEAD, HEAD, attempts=5, failed_at=ago(60), error="no")
    answer = about(SinkFacts(lane=lane(), deferred=deferred(State.HELD), head=head))
    assert answer.because is not None
    assert answer.because.reason is Reason.DEAD
    assert command(answer) == f"postroad dead retry {HEAD} --sink default", "of the head, not of the message"


def test_route_blocked() -> None:
    blocked = deferred(State.HELD, route="order.created", route_since=ago(600), error="312 NO_ROUTE")
    answer = about(SinkFacts(lane=lane(), deferred=blocked))
    assert answer.reason is Reason.ROUTE_BLOCKED
    assert answer.text == "route 'order.created' has been blocked since 2026-03-01 11:50:00Z (10m ago): 312 NO_ROUTE"
    assert answer.advice.startswith("bind a queue to this route")
    endpoint = deferred(State.HELD, route="https://partner.example/", route_since=ago(600), error="it answered 503")
    advice = about(SinkFacts(lane=lane(), deferred=endpoint)).advice
    assert advice == "find out why this endpoint does not answer with 2xx; the relay tries again by itself"


def test_retry_due() -> None:
    waits = deferred(State.RETRYING, attempts=1, due_at=ago(-4), error="x" * 500, failed_at=ago(1))
    answer = about(SinkFacts(lane=lane(), deferred=waits))
    assert answer.reason is Reason.RETRYING
    assert answer.text.startswith("after 1 failed attempt, it is tried again at 2026-03-01 12:00:04Z (in 4s): xxx")
    assert answer.text.endswith("xxx..."), "long errors are cut"
    assert answer.evidence["error"] == "x" * 500, "and whole in the evidence"


def test_sent_next() -> None:
    answer = about(SinkFacts(lane=lane(), deferred=deferred(State.HELD, due_at=ago(1), rewound=True)))
    assert answer.reason is Reason.NEXT
    assert answer.text == "nothing holds it: lane 2 sends it next again, because of a rewind"


def test_due_and_stalled() -> None:
    waits = deferred(State.RETRYING, attempts=1, due_at=ago(60), error="no")
    answer = about(SinkFacts(lane=lane(progressed_at=ago(90)), deferred=waits))
    assert answer.reason is Reason.STALLED
    assert answer.text.startswith("it has been due since 2026-03-01 11:59:00Z (1m ago): ")
    assert answer.evidence["error"] == "no"


def test_being_sent() -> None:
    assert about(SinkFacts(lane=lane(), deferred=deferred(State.SENDING), hold=HOLD)).reason is Reason.SENDING


# -- decided ---------------------------------------------------------------------------------------------------------


def test_dead() -> None:
    dead = deferred(State.DEAD, attempts=5, failed_at=ago(60), error=f"no amqp://me:{SECRET}@h")
    answer = about(SinkFacts(lane=lane(owner=None, pause=PAUSE), deferred=dead))
    assert answer.reason is Reason.DEAD, "whatever the sink does"
    assert answer.text == "it has been dead since 2026-03-01 11:59:00Z (1m ago) after 5 attempts: no amqp://me:***@h"
    assert command(answer) == f"postroad dead retry {ME} --sink default"
    assert SECRET not in str(answer)


def test_dead_by_an_operator() -> None:
    dead = deferred(State.DEAD, failed_at=ago(60), error="poisoned by anna: no address")
    answer = about(SinkFacts(lane=lane(), deferred=dead), audit=[line("poison", ids=[str(ME)])])
    assert answer.text == "it has been dead since 2026-03-01 11:59:00Z (1m ago), by anna: poisoned by anna: no address"
    assert answer.evidence["audit"] == 3


@pytest.mark.parametrize(
    ("state", "command", "reason"),
    [(State.SKIPPED, "skip", Reason.SKIPPED), (State.SKIPPED, "skip_key", Reason.SKIPPED),
     (State.DROPPED, "drop", Reason.DROPPED)],
)  # fmt: skip
def test_decided_by_an_operator(state: State, command: str, reason: Reason) -> None:
    verb = state.value
    there = SinkFacts(lane=lane(), deferred=deferred(state, error="no such carrier"))
    answer = about(there, audit=[line(command, key="k", sink="default", error="CARRIER")])
    assert answer.reason is reason
    assert answer.text == f"anna {verb} it at 2026-03-01 11:59:00Z (1m ago): because"
    assert answer.evidence["who"] == "anna"
    assert about(there).text == f"an operator {verb} it", "the line is too old to be found"


@pytest.mark.parametrize(
    "other",
    [
        line("skip", ids=[str(HEAD)]), line("skip", key="other"), line("skip", type="other"), line("hold", key="k"),
        line("skip", sink="other"), line("skip", error="timeout"),
    ],
)  # fmt: skip
def test_lines_of_the_audit_about_something_else(other: AuditEntry) -> None:
    there = SinkFacts(lane=lane(), deferred=deferred(State.SKIPPED, error="404"))
    mine = line("skip", ids=[str(ME)], reason="mine")
    assert about(there, audit=[other, mine]).text.endswith(": mine")


def test_dropped_because_it_is_unroutable() -> None:
    gone = deferred(State.DROPPED, route="order.created", error="312 NO_ROUTE")
    answer = about(SinkFacts(lane=lane(), deferred=gone), audit=[line("drop")])
    assert answer.reason is Reason.UNROUTABLE
    assert "because no consumer had subscribed to 'order.created' (unroutable = drop): 312 NO_ROUTE" in answer.text


def test_canceled() -> None:
    there = SinkFacts(lane=lane(), deferred=deferred(State.CANCELED))
    answer = about(there, audit=[line("cancel", reason=None, id=str(ME))])
    assert answer.reason is Reason.CANCELED
    assert answer.text == "the application, as anna, canceled it at 2026-03-01 11:59:00Z (1m ago)"
    assert about(there).text == "the application canceled it"


def test_published() -> None:
    there = SinkFacts(lane=lane(reading="passed", owner=None, pause=PAUSE))
    at = SinkFacts(lane=there.lane, published=PublishedFacts(None, ago(2)))
    answer = about(at, created_at=ago(2.5))
    assert answer.reason is Reason.PUBLISHED, "whatever the sink does now"
    assert answer.text == "it was published at 2026-03-01 11:59:58Z (2s ago)"
    between = SinkFacts(lane=there.lane, published=PublishedFacts(ago(30), ago(2)))
    answer = about(between, created_at=ago(60))
    assert answer.text == "it was published between 2026-03-01 11:59:30Z and 2026-03-01 11:59:58Z (2s ago)"
    assert answer.evidence == {"lane": 2, "after": ago(30), "before": ago(2)}
    assert about(there).text == "it was published; when is not recorded any more"


def test_an_answer_for_every_state_and_every_sink() -> None:
    there = [SinkFacts(lane=lane(sink=state), deferred=deferred(state)) for state in State if state in DECIDED]
    found = explain(message(*there, SinkFacts(lane=lane(sink="x"))))
    assert [answer.sink for answer in found.answers] == ["dead", "canceled", "dropped", "skipped", "x"]


# -- unknown ids -----------------------------------------------------------------------------------------------------


def unknown(**fields: Any) -> Answer:
    values: dict[str, Any] = {"at": NOW, "id": ME, "made_at": ago(60), "oldest_at": ago(600), "open_transactions": 0}
    found = explain_unknown(UnknownFacts(**(values | fields)))
    assert (found.type, found.position) == (None, None)
    (answer,) = found.answers
    return answer


def test_an_unknown_id() -> None:
    answer = unknown()
    assert answer.reason is Reason.UNKNOWN
    assert (
        answer.text == "no message has this id: its transaction was rolled back, or is still open, or the id is wrong"
    )
    assert unknown(open_transactions=1).text.endswith("; 1 open transaction has written to the log")
    assert unknown(made_at=None).reason is Reason.UNKNOWN
    assert "and the log is empty: retention has deleted it, or" in unknown(oldest_at=None).text


def test_an_id_older_than_the_log() -> None:
    answer = unknown(made_at=ago(86400 * 8))
    assert answer.reason is Reason.EXPIRED
    assert "made at 2026-02-21 12:00:00Z (8d ago)" in answer.text
    assert "retention has deleted it" in answer.text
    assert unknown(made_at=ago(602)).reason is Reason.UNKNOWN, "clocks differ"


def test_a_scheduled_message_that_was_canceled() -> None:
    answer = unknown(audit=[line("cancel", reason=None, id=str(ME))])
    assert answer.reason is Reason.CANCELED
    assert answer.text == "the application, as anna, canceled it at 2026-03-01 11:59:00Z (1m ago), before it was due"


# -- keys ------------------------------------------------------------------------------------------------------------


def of_key(**fields: Any) -> Answer:
    values: dict[str, Any] = {
        "at": NOW, "key": "k", "sink": "default", "hold": None, "waiting": 0, "most": 1000, "first": None,
        "newest": None, "searched": 10_000,
    }  # fmt: skip
    found = explain_key("k", NOW, [KeyFacts(**(values | fields))])
    (answer,) = found.answers
    assert answer.sink == "default"
    return answer


def test_a_key_with_a_head() -> None:
    head = SinkFacts(lane=lane(), deferred=deferred(State.RETRYING, attempts=1, due_at=ago(-4)))
    answer = of_key(first=message(head), waiting=3)
    assert answer.reason is Reason.RETRYING
    assert answer.text.startswith(f"its first message, {ME}, with 2 messages behind it: after 1 failed attempt, it is")
    assert (answer.evidence["message"], answer.evidence["waiting"]) == (ME, 3)
    assert "at least 999 messages" in of_key(first=message(head), waiting=1000).text
    assert of_key(first=message(head), waiting=1).text.startswith(f"its first message, {ME}: after")


def test_a_key_that_is_held_without_messages() -> None:
    answer = of_key(hold=HOLD)
    assert answer.reason is Reason.KEY_HELD
    assert answer.text.endswith("; none of its messages waits yet")
    assert command(answer) == "postroad key release 'k 1' --sink default"


def test_a_key_of_which_none_waits() -> None:
    assert of_key().text == "none of its messages waits, and none is among the newest 10,000 messages of the log"
    sent = SinkFacts(lane=lane(reading="passed"), published=PublishedFacts(None, ago(2)))
    answer = of_key(newest=message(sent))
    assert answer.reason is Reason.NONE_WAITS
    assert answer.text.startswith(f"none of its messages waits; its newest, {ME}: it was published ")


@pytest.mark.parametrize("reason", Reason)
def test_every_answer_has_a_test_here(reason: Reason) -> None:
    assert f"Reason.{reason.name}" in Path(__file__).read_text(encoding="utf-8")
