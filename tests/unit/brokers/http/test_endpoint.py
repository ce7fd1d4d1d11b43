from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.http.endpoint import MOST_FAILURES, SET_ASIDE_AFTER, Endpoint


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=60))
def test_a_message_is_at_fault_only_if_another_was_taken_since_it_failed(steps: list[tuple[bool, int]]) -> None:
    endpoint = Endpoint("e")
    taken_since: dict[int, bool] = {}
    for taken, position in steps:
        if taken:
            endpoint.confirm(position)
            taken_since = {each: True for each in taken_since if each != position}
        else:
            expected = taken_since.get(position, False)
            assert endpoint.takes_others(position, endpoint.confirmed) is expected
            if not expected:
                endpoint.is_hopeless(position)
            taken_since[position] = False


def test_one_that_fails_again_and_again_is_set_aside() -> None:
    endpoint = Endpoint("e")
    assert [endpoint.is_hopeless(1) for _ in range(SET_ASIDE_AFTER)] == [False] * (SET_ASIDE_AFTER - 1) + [True]


def test_an_endpoint_that_asks_to_wait_takes_nothing_until_then() -> None:
    endpoint = Endpoint("e")
    endpoint.wait("429", until=100)
    endpoint.confirm(1)
    assert endpoint.takes_nothing(99.0)
    assert endpoint.takes_nothing(100.0) is None


def test_failures_are_forgotten_when_there_are_very_many() -> None:
    endpoint = Endpoint("e")
    for position in range(MOST_FAILURES + 10):
        endpoint.is_hopeless(position)
    assert len(endpoint._failures) == MOST_FAILURES
