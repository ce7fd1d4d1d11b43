"""What the kinds of settings accept, and how they read texts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad import InvalidSetting
from postroad.kinds import FLAG, PASSWORD_FILE, TEXTS, VALUES, Kind, duration, duration_text

# -- durations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50ms", timedelta(milliseconds=50)),
        ("5s", timedelta(seconds=5)),
        ("1.5 s", timedelta(seconds=1.5)),
        ("10m", timedelta(minutes=10)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("0", timedelta(0)),
        (0, timedelta(0)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_have_units(text: Any, expected: timedelta) -> None:
    assert duration("lease", text) == expected


@pytest.mark.parametrize(
    "value",
    ["5", 5, "5 parsecs", "", None, "-5s", timedelta(seconds=-1), "s", False, "9" * 400 + "d", "36501d", "٣s", {}, [0]],
)  # fmt: skip
def test_a_duration_that_is_none_is_named(value: Any) -> None:
    with pytest.raises(InvalidSetting, match="lease is"):
        duration("lease", value)


@pytest.mark.parametrize("text", ["50ms", "5s", "90s", "10m", "12h", "7d", "0", "1.5ms", "0.001ms"])
def test_a_duration_is_shown_as_people_write_it(text: str) -> None:
    assert duration_text(duration("lease", text)) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_a_duration_that_is_shown_can_be_read_back(value: timedelta) -> None:
    assert duration("lease", duration_text(value)) == value


# -- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (FLAG, True, True),
        (FLAG, False, False),
        (FLAG, FLAG.parse("TRUE"), True),
        (FLAG, FLAG.parse("false"), False),
        (TEXTS, ["a", "b"], ("a", "b")),
        (TEXTS, [], ()),
        (TEXTS, TEXTS.parse("a,b"), ("a", "b")),
        (VALUES, {"x-queue-type": "quorum", "x-max-length": 5}, {"x-queue-type": "quorum", "x-max-length": 5}),
        (VALUES, {}, {}),
        (PASSWORD_FILE, Path("/run/secret"), "/run/secret"),
    ],
)
def test_what_is_accepted(kind: Kind, value: Any, expected: Any) -> None:
    assert kind.check("it", value) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (FLAG, 1), (FLAG, "true"), (FLAG, FLAG.parse("maybe")), (TEXTS, "a"), (TEXTS, [1]), (TEXTS, [""]), (TEXTS, 5),
        (VALUES, [("a", 1)]), (VALUES, {5: 1}), (VALUES, "a"), (PASSWORD_FILE, 5), (PASSWORD_FILE, ""),
    ],
)  # fmt: skip
def test_what_is_not(kind: Kind, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=f"^it is .*; it must be {kind.expected}"):
        kind.check("it", value)
