"""What a lane decides about messages in trouble, where it is subtle: routes whose messages must not be forgotten."""

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


def out(position: int) -> Refusal:
    return Refusal(position, "no queue", route="r")


def waiting_for_r(*, due_in: float | None = 0.0) -> DeferredMessages:
    deferred_messages = DeferredMessages(Backoff())
    deferred_messages.loaded(Loaded(LEASE, {}, ["r"], due_in), now=0.0)
    return deferred_messages


def claim(*claimed: Claimed, due_in: float | None = None) -> Claim:
    return Claim(LEASE, claimed, due_in)


def test_a_route_that_is_back_is_remembered_while_a_claim_leaves_something() -> None:
    deferred_messages = waiting_for_r()
    deferred_messages.confirmed(Claimed(message(1), 0, "r"))
    deferred_messages.claimed(claim(Claimed(message(2), 0, None), due_in=0.0), now=0.0)
    assert deferred_messages.released == {"r"}
    deferred_messages.claimed(claim(Claimed(message(3), 0, None), due_in=None), now=0.0)
    assert deferred_messages.released == set()


def test_who_asks_for_a_route_and_is_refused_for_itself_leaves_the_asking_to_another() -> None:
    deferred_messages = waiting_for_r()
    probe = Claimed(message(1), 0, "r")
    deferred_messages.claimed(claim(probe), now=0.0)
    assert deferred_messages.refused(probe.message, Refusal(1, "too large", permanent=True), 0).state is State.DEAD
    deferred_messages.answered([probe])
    assert deferred_messages.due_in(0.0) == 0, "the next of the route is claimed"
    deferred_messages.claimed(claim(Claimed(message(2), 0, "r")), now=0.0)
    assert deferred_messages.refused(message(2), out(2), 0).due_in is not None, "and asks from time to time"


def test_a_route_that_is_still_out_is_asked_by_one_message_only() -> None:
    deferred_messages = waiting_for_r()
    probe = Claimed(message(1), 0, "r")
    deferred_messages.claimed(claim(probe), now=0.0)
    assert deferred_messages.refused(probe.message, out(1), 0).due_in is not None
    deferred_messages.answered([probe])
    assert deferred_messages.released == set()
    assert deferred_messages.refused(message(2), out(2), 0).due_in is None


def test_a_late_message_in_front_of_the_one_that_asks_asks_itself() -> None:
    deferred_messages = DeferredMessages(Backoff())
    deferred_messages.loaded(Loaded(LEASE, {}, [], None), now=0.0)
    first = deferred_messages.refused(message(10, "k"), out(10), 0)
    deferred_messages.blocked(first, deferred_messages.heads)
    late = deferred_messages.refused(message(9, "k"), out(9), 0)
    assert (first.due_in is not None, late.due_in is not None) == (True, True)


def test_a_late_message_that_dies_in_front_of_the_one_that_asks_lets_another_ask() -> None:
    deferred_messages = DeferredMessages(Backoff(max_attempts=1), on_dead="hold")
    deferred_messages.loaded(Loaded(LEASE, {}, [], None), now=0.0)
    deferred_messages.blocked(deferred_messages.refused(message(10, "k"), out(10), 0), deferred_messages.heads)
    deferred_messages.refused(message(9, "k"), Refusal(9, "never"), 0)
    assert deferred_messages.released == {"r"}
