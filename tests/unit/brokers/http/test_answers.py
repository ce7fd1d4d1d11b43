from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.brokers.http.answers import LONGEST_WAIT, Answer, Verdict, seconds_to_wait, verdict_on


@given(st.integers(100, 999), st.none() | st.text(max_size=30))
def test_only_2xx_confirms_and_only_413_is_never_tried_again(status: int, retry_after: str | None) -> None:
    verdict = verdict_on(Answer(status, retry_after))
    assert (verdict is Verdict.CONFIRMED) is (200 <= status < 300)
    assert (verdict is Verdict.TOO_LARGE) is (status == 413)
    assert (verdict is Verdict.GONE) is (status == 410)
    if status >= 500 or status == 429:
        assert verdict in {Verdict.WAIT, Verdict.FAILING, Verdict.UNAVAILABLE}, "nothing is counted without evidence"


@given(st.text(max_size=60), st.floats(0, 4e9))
def test_any_retry_after_is_a_time(text: str, now: float) -> None:
    assert 0 <= seconds_to_wait(text, now) <= LONGEST_WAIT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (" 5 ", 5),
        ("-5", 0),
        ("1e3", 0),
        ("99999999", LONGEST_WAIT),
        (None, 0),
        ("soon", 0),
        (formatdate(1000060, usegmt=True), 60),
        (formatdate(999000, usegmt=True), 0),
    ],
)
def test_retry_after(text: str | None, seconds: float) -> None:
    assert seconds_to_wait(text, 1_000_000) == seconds
