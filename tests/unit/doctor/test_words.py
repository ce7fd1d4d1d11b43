"""Ages and names in findings."""

from __future__ import annotations

import pytest

from postroad.doctor.words import identifier, literal, short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (0.5, "0.5 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"), (259_200, "3 d"), (1e8, "1,157 d")],
)
def test_a_length_of_time(seconds: float, text: str) -> None:
    assert short(seconds) == text


def test_names_in_sql() -> None:
    assert [identifier(each) for each in ("shop", "Shop", 'a"b', "1a", "ä")] == [
        "shop", '"Shop"', '"a""b"', '"1a"', '"ä"',
    ]  # fmt: skip
    assert literal("it's") == "'it''s'"
