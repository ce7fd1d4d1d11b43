"""Settings check themselves and say what would be right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroad import InvalidSetting
from postroad.config import RelaySettings, checked_schema, duration


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


@pytest.mark.parametrize("value", ["5", 5, "5 parsecs", "", None, "-5s", timedelta(seconds=-1), "s"])
def test_a_duration_that_is_none_is_named(value: Any) -> None:
    with pytest.raises(InvalidSetting, match="lease is"):
        duration("lease", value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lanes", 0), ("lanes", 65), ("lanes", "4"), ("lanes", True), ("batch_size", 0), ("page_bytes", -1),
        ("poll_interval", 50), ("grace", "soon"), ("start", "middle"), ("ordering", "random"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_value(setting: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=f"^{setting} is {value!r}; "):
        RelaySettings(**{setting: value})


def test_durations_of_settings_are_read() -> None:
    assert RelaySettings(grace="2s").seconds("grace") == 2


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "a.b", "1a", "x" * 51, 'a"; drop table', None])
def test_a_schema_is_a_plain_identifier(name: Any) -> None:
    with pytest.raises(InvalidSetting, match="schema is"):
        checked_schema(name)
