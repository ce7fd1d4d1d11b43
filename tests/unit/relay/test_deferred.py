"""What a lane decides about deferred messages, where it is subtle: routes whose messages must not be forgotten."""

from __future__ import annotations

from postroad import Refusal
from postroad.lifecycle import State
from postroad.message import StoredMessage, new_id
from postroad.relay.deferred import DeferredMessages
from postroad.retry import Backoff
from postroad.stores.base import Claim, Claimed, Lease, Loaded
from postroad.stores.cursor import Cursor

LEASE = Lease("s", 0, 0, 1023, new_id(), 1, 1, Cursor(0))


def message(position: int, key: str | None = None) -> StoredMessage:
    return StoredMessage(position, new_id(), "t", key, 0, "t", b"", "text/plain", "{}", 0)


def blocked(position: int) -> Refusal:
    return Refusal(position, "no queue", route="r")


def waiting_for_r(*, due_in: float | None = 0.0) -> DeferredMessages:
    deferred = DeferredMessages(Backoff())
    deferred.loaded(Loaded(LEASE, {}, ["r"], due_in), now=0.0)
    return deferred


def claim(*claimed: Claimed, due_in: float | None = None) -> Claim:
    return Claim(LEASE, claimed, due_in)


def test_a_route_that_is_back_is_remembered_while_a_claim_leaves_something() -> None:
    deferred = waiting_for_r()
    deferred.confirmed(Claimed(message(1), 0, "r"))
    deferred.claimed(claim(Claimed(message(2), 0, None), due_in=0.0), now=0.0)
    assert deferred.unblocked_routes == {"r"}
    deferred.claimed(claim(Claimed(message(3), 0, None), due_in=None), now=0.0)
    assert deferred.unblocked_routes == set()


def test_who_asks_for_a_route_and_is_refused_for_itself_leaves_the_asking_to_another() -> None:
    deferred = waiting_for_r()
    probe = Claimed(message(1), 0, "r")
    deferred.claimed(claim(probe), now=0.0)
    assert deferred.decide(probe.message, Refusal(1, "too large", permanent=True), 0).state is State.DEAD
    deferred.answered([probe])
    assert deferred.due_in(0.0) == 0, "the next of the route is claimed"
    deferred.claimed(claim(Claimed(message(2), 0, "r")), now=0.0)
    assert deferred.decide(message(2), blocked(2), 0).due_in is not None, "and asks from time to time"


def test_a_route_that_is_still_out_is_asked_by_one_message_only() -> None:
    deferred = waiting_for_r()
    probe = Claimed(message(1), 0, "r")
    deferred.claimed(claim(probe), now=0.0)
    assert deferred.decide(probe.message, blocked(1), 0).due_in is not None
    deferred.answered([probe])
    assert deferred.unblocked_routes == set()
    assert deferred.decide(message(2), blocked(2), 0).due_in is None


def test_a_late_message_in_front_of_the_one_that_asks_asks_itself() -> None:
    deferred = DeferredMessages(Backoff())
    deferred.loaded(Loaded(LEASE, {}, [], None), now=0.0)
    first = deferred.decide(message(10, "k"), blocked(10), 0)
    deferred.block(first, deferred.blocked_keys)
    late = deferred.decide(message(9, "k"), blocked(9), 0)
    assert (first.due_in is not None, late.due_in is not None) == (True, True)


def test_a_late_message_that_dies_in_front_of_the_one_that_asks_lets_another_ask() -> None:
    deferred = DeferredMessages(Backoff(max_attempts=1), on_dead="hold")
    deferred.loaded(Loaded(LEASE, {}, [], None), now=0.0)
    deferred.block(deferred.decide(message(10, "k"), blocked(10), 0), deferred.blocked_keys)
    deferred.decide(message(9, "k"), Refusal(9, "never"), 0)
    assert deferred.unblocked_routes == {"r"}
