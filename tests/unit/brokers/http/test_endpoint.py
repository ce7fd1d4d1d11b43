from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.http.endpoint import ENOUGH_OTHERS, LONGEST_PAUSE, MOST_FAILURES, SET_ASIDE_AFTER, Endpoint, Fault


def fail(endpoint: Endpoint, number: int, *, unavailable: bool = False) -> Fault:
    """Send a message and let it fail."""
    before = endpoint.confirmed
    endpoint.fail("503" if unavailable else "500", unavailable=unavailable)
    found = endpoint.fault(UUID(int=number), before, unavailable=unavailable)
    if found is Fault.ENDPOINT:
        endpoint.is_hopeless(UUID(int=number))
    return found


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60))
def test_a_message_is_at_fault_only_if_another_was_taken_since_it_failed(steps: list[tuple[bool, int]]) -> None:
    endpoint = Endpoint("e")
    taken_since: dict[int, bool] = {}
    for taken, number in steps:
        if taken:
            endpoint.confirm(UUID(int=number))
            taken_since = {each: True for each in taken_since if each != number}
        else:
            expected = Fault.MESSAGE if taken_since.get(number, False) else Fault.ENDPOINT
            assert fail(endpoint, number) is expected
            taken_since[number] = False


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=200))
def test_a_message_is_blamed_for_what_is_not_available_only_if_no_other_fails_so(steps: list[tuple[bool, int]]) -> None:
    """And the endpoint takes several meanwhile: of all that was seen since it is the only one."""
    endpoint = Endpoint("e")
    taken_alone: dict[int, int] = {}
    for taken, number in steps:
        if taken:
            endpoint.confirm(UUID(int=number + 100))
            taken_alone = {each: taken + 1 for each, taken in taken_alone.items()}
        else:
            found = fail(endpoint, number, unavailable=True)
            assert (found is Fault.MESSAGE) is (taken_alone.get(number, 0) >= ENOUGH_OTHERS)
            taken_alone = {number: 0 if found is Fault.MESSAGE else taken_alone.get(number, 0)}


def test_one_that_fails_again_and_again_is_set_aside() -> None:
    endpoint = Endpoint("e")
    assert [endpoint.is_hopeless(UUID(int=1)) for _ in range(SET_ASIDE_AFTER)] == [False] * (SET_ASIDE_AFTER - 1) + [
        True
    ]


def test_an_endpoint_that_asks_to_wait_takes_nothing_until_then() -> None:
    endpoint = Endpoint("e")
    endpoint.wait("429", until=100)
    endpoint.confirm(UUID(int=1))
    assert endpoint.takes_nothing(99.0)
    assert endpoint.takes_nothing(100.0) is None


def test_an_endpoint_that_takes_nothing_is_left_alone_for_longer_each_time() -> None:
    endpoint, now = Endpoint("e"), 1000.0
    pauses = []
    for _ in range(6):
        endpoint.fail("no answer")
        endpoint.pause(now, took=30)
        endpoint.pause(now, took=30)  # another call, at the same time
        pauses.append(endpoint.waits(now))
        now += pauses[-1]
        assert endpoint.takes_nothing(now) is None
    assert pauses == [60, 120, 240, 480, 480, 480]
    assert endpoint.waits(now) == 0
    endpoint.pause(now, took=1000)
    assert endpoint.waits(now) == LONGEST_PAUSE
    endpoint.confirm(UUID(int=1))
    assert endpoint.takes_nothing(now) is None, "it works"


@pytest.mark.parametrize("counted", [False, True])
def test_a_message_that_fails_while_others_are_taken_waits_for_longer_each_time(counted: bool) -> None:
    endpoint, waits = Endpoint("e"), []
    for _ in range(12):
        endpoint.confirm(UUID(int=9))
        fail(endpoint, 1, unavailable=True)
        waits.append(endpoint.retry_in(UUID(int=1), 0.01, counted=counted))
    assert waits == sorted(waits)
    assert (waits[1], waits[-1]) == (60.0 if counted else 2.0, LONGEST_PAUSE)
    assert endpoint.retry_in(UUID(int=1), 30.0, counted=False) == LONGEST_PAUSE


def test_failures_are_forgotten_when_there_are_very_many() -> None:
    endpoint = Endpoint("e")
    for number in range(MOST_FAILURES + 10):
        endpoint.is_hopeless(UUID(int=number))
    assert len(endpoint._failures) == MOST_FAILURES
