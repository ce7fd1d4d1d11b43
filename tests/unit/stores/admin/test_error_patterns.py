"""Which errors are one group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.stores.admin.error_patterns import LONGEST_PATTERN, normalise_error


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ("no 42", "no <n>"),
        ("attempt 3 of 10 took 1.5s", "attempt <n> of <n> took <n>s"),
        ("order 01a1e1a4-b273-7de5-a691-9ab476c02dc7 is unknown", "order <id> is unknown"),
        ("object at 0x7f3a2c is gone", "object at <id> is gone"),
        ("commit 9fceb02d0ae5 refused", "commit <id> refused"),
        (
            "no queue is bound to 'orders.created' of exchange \"shop\"",
            "no queue is bound to <value> of exchange <value>",
        ),
        ("can't reach it, won't try", "can't reach it, won't try"),
        ("10.0.0.7:5672 refused", "<address> refused"),
        ("[fe80::1]:5672 refused", "<address> refused"),
        ("rabbit-3.example:5672 refused", "<address> refused"),
        ("POST https://a.example/orders/77?x=1 returned 503", "POST <url> returned <n>"),
        ("anna.b@shop.example is no subscriber", "<email> is no subscriber"),
        ("ValueError:\n  bad   row", "ValueError: bad row"),
        ("decade", "decade"),
        ("", ""),
    ],
)
def test_patterns(error: str, pattern: str) -> None:
    assert normalise_error(error) == pattern


@given(st.text(max_size=300))
def test_any_text_has_a_short_pattern_of_one_line_without_numbers(text: str) -> None:
    pattern = normalise_error(text)
    assert len(pattern) <= LONGEST_PATTERN
    assert len(pattern.splitlines()) <= 1
    assert not any(letter in "0123456789" for letter in pattern)


def test_a_long_hostile_error_takes_no_time_that_matters() -> None:
    for part in ("'", '"', "a.", "a@", "1.", "1:", "deadbeef", "a-", "x://"):
        assert normalise_error(part * 1000) is not None
