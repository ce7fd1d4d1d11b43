"""When a refused message is tried again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroad import InvalidSetting, Refusal
from postroad.retry import Backoff

NO = Refusal(1, "no")


def pauses(policy: Backoff, count: int) -> list[float | None]:
    found = [policy.retry_in(attempts, NO) for attempts in range(1, count + 1)]
    return [pause if pause is None else pause.total_seconds() for pause in found]


def test_backoff_is_right() -> None:
    assert pauses(Backoff(jitter=0), 6) == [2, 4, 8, 16, None, None]


def test_backoff_is_capped_at_five_minutes() -> None:
    assert pauses(Backoff(jitter=0, max_attempts=100), 10) == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert pauses(Backoff(jitter=1, chance=lambda: 1, max_attempts=100), 10)[-2:] == [300, 300], "with jitter too"
    assert Backoff(max_attempts=10**6).retry_in(10**5, NO) == timedelta(minutes=5), "however many there were"


def test_jitter_only_adds() -> None:
    assert pauses(Backoff(chance=lambda: 0), 3) == [2, 4, 8]
    assert pauses(Backoff(chance=lambda: 1), 3) == pytest.approx([2.2, 4.4, 8.8])
    real = {Backoff().retry_in(1, NO) for _ in range(20)}
    assert len(real) > 1
    assert all(pause is not None and 2 <= pause.total_seconds() <= 2.2 for pause in real)


def test_a_permanent_refusal_is_the_end() -> None:
    assert Backoff().retry_in(1, Refusal(1, "too large", permanent=True)) is None


def test_one_attempt_is_the_least() -> None:
    assert Backoff(max_attempts=1).retry_in(1, NO) is None
    with pytest.raises(InvalidSetting, match="max_attempts is 0; it must be at least 1"):
        Backoff(max_attempts=0)
    with pytest.raises(InvalidSetting, match="jitter is 2; it must be a number from 0 to 1"):
        Backoff(jitter=2)
