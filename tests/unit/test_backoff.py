"""Pauses double up to the longest."""

from __future__ import annotations

from postroad.backoff import ExponentialBackoff


def test_pauses_double_up_to_the_longest() -> None:
    assert [ExponentialBackoff(1.0, first=0.25).after(failures) for failures in range(1, 5)] == [0.25, 0.5, 1.0, 1.0]


def test_the_first_pause_is_not_longer_than_the_longest() -> None:
    assert ExponentialBackoff(0.001).after(1) == 0.001


def test_any_number_of_failures_has_a_pause() -> None:
    assert ExponentialBackoff(5.0).after(10**6) == 5.0
