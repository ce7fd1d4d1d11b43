"""What a lane decides about deferred messages, where it is subtle: routes whose messages must not be forgotten."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from postroad import Refusal
from postroad.lifecycle import State
from postroad.message import StoredMessage, new_id
from postroad.relay.deferred import LONGEST_WAIT, DeferredMessages, waits_of_routes
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


# -- how long a destination asks to wait -----------------------------------------------------------------------------


def test_the_next_attempt_is_neither_before_the_policy_nor_before_what_was_asked_for() -> None:
    deferred = DeferredMessages(Backoff(first=timedelta(seconds=10), jitter=0))
    assert deferred.decide(message(1), Refusal(1, "busy", retry_in=3.0), 0).due_in == 10
    assert deferred.decide(message(1), Refusal(1, "busy", retry_in=300.0), 0).due_in == 300


def test_the_next_probe_is_not_before_what_was_asked_for() -> None:
    deferred = DeferredMessages(Backoff(), longest_pause=5.0)
    probe = deferred.decide(message(1), Refusal(1, "busy", route="r", retry_in=7200.0), 0)
    other = deferred.decide(message(2), Refusal(2, "busy", route="r", retry_in=7200.0), 0)
    assert (probe.due_in, other.due_in, probe.counted) == (7200, None, False)


def test_of_the_refusals_of_a_route_the_longest_wait_counts() -> None:
    refusals = [
        Refusal(1, "", route="r", retry_in=5.0),
        Refusal(2, "", route="r", retry_in=60.0),
        Refusal(3, "", route="r"),
        Refusal(4, "", route="s"),
        Refusal(5, "", retry_in=9.0),
        Refusal(6, "", route="t", retry_in=float("nan")),
    ]
    assert waits_of_routes(refusals) == {"r": 60.0, "t": 0.0}


def test_a_message_whose_route_is_probed_rarely_dies_at_the_first_probe_after_the_timeout() -> None:
    deferred = DeferredMessages(Backoff(), route_timeout=3600.0)
    refusal = Refusal(1, "down", route="r", retry_in=3000.0)
    assert deferred.decide(message(1), refusal, 0, waited=3000.0).due_in == 3000
    deferred.claimed(claim(Claimed(message(1), 0, "r")), now=0.0)
    dead = deferred.decide(message(1), refusal, 0, waited=6000.0)
    assert (dead.state, dead.due_in) == (State.DEAD, None)
    assert "it has waited 6,000 s, and route_timeout is 3,600 s" in str(dead.error)


@given(
    asked=st.none() | st.floats() | st.integers(-10, 10**12),
    policy=st.floats(0, 1e6),
    route=st.none() | st.just("r"),
)
def test_whatever_was_asked_for_a_message_is_due_some_time(
    asked: float | None, policy: float, route: str | None
) -> None:
    deferred = DeferredMessages(Fixed(policy), longest_pause=5.0)
    due_in = deferred.decide(message(1), Refusal(1, "busy", route=route, retry_in=asked), 0).due_in
    pause = timedelta(seconds=policy).total_seconds()
    assert due_in is not None
    assert 0 <= due_in <= max(LONGEST_WAIT, pause)
    if route is None:
        assert due_in >= pause
    if asked is not None and asked > 0:
        assert due_in >= min(asked, LONGEST_WAIT)


class Fixed:
    def __init__(self, seconds: float) -> None:
        self._pause = timedelta(seconds=seconds)

    def retry_in(self, attempts: int, refusal: Refusal) -> timedelta | None:
        return self._pause
