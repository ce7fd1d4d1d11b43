"""Settings are values that check themselves when they are built. Nothing here reads the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal

from postroad.errors import InvalidSetting

__all__ = ["DEFAULT_SCHEMA", "Duration", "RelaySettings", "checked_schema", "duration"]

DEFAULT_SCHEMA: Final = "postroad"

Duration = timedelta | str
"""A timedelta, or a number with its unit: "50ms", "5s", "10m", "12h", "7d"."""

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,49}")


def duration(name: str, value: Any) -> timedelta:
    """Read a duration; 0 needs no unit, every other number does."""
    if isinstance(value, timedelta):
        found = value
    elif value in (0, "0"):
        found = timedelta(0)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        found = timedelta(**{_UNITS[match[2]]: float(match[1])})
    else:
        raise InvalidSetting(
            f"{name} is {value!r}; give a number with its unit, such as '50ms', '5s', '10m', '12h', '7d'"
        )
    if found < timedelta(0):
        raise InvalidSetting(f"{name} is {value!r}; it must not be negative")
    return found


def checked_schema(value: Any) -> str:
    """The schema's name is the only thing that is ever put into SQL text, so it is a plain identifier."""
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        raise InvalidSetting(
            f"schema is {value!r}; it must be a lower-case name of letters, digits and underscores (at most 50)"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay works. Every field has a default that suits most services."""

    lanes: int = field(default=4, metadata={"least": 1, "most": 64})
    """How many lanes a new sink gets. Fixed when the sink is created."""
    start: Literal["oldest", "now"] = "oldest"
    """Where a new sink begins: at the oldest message that is kept, or at what is added from now on."""
    ordering: Literal["key", "none"] = "key"
    """"key" keeps a key's messages in order; "none" sends a page at once, whatever the keys."""
    batch_size: int = field(default=1000, metadata={"least": 1, "most": 100_000})
    """The most messages that a lane reads at once."""
    page_bytes: int = field(default=4 * 1024 * 1024, metadata={"least": 1, "most": 1 << 30})
    """A page ends with the message whose payload reaches this many bytes."""
    poll_interval: Duration = timedelta(milliseconds=50)
    """How soon a lane that found nothing looks again, at first."""
    max_idle_backoff: Duration = timedelta(seconds=1)
    """How long that interval grows while nothing comes."""
    settle_interval: Duration = timedelta(milliseconds=50)
    """Under load the cursor is saved this often. A crash publishes at most that much again."""
    outage_backoff: Duration = timedelta(seconds=5)
    """The longest pause between two attempts to reach a database or broker that is out."""
    grace: Duration = timedelta(seconds=10)
    """How long a stopping relay waits for the broker's confirms."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if "least" in each.metadata:
                _check_number(each.name, value, each.metadata["least"], each.metadata["most"])
            elif isinstance(each.default, timedelta):
                object.__setattr__(self, each.name, duration(each.name, value))
        _check_choice("start", self.start, ("oldest", "now"))
        _check_choice("ordering", self.ordering, ("key", "none"))

    def seconds(self, name: str) -> float:
        """A duration of this object as seconds."""
        value = getattr(self, name)
        assert isinstance(value, timedelta), name  # noqa: S101 - __post_init__ made it one
        return value.total_seconds()


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(f"{name} is {value!r}; it must be a whole number from {least:,} to {most:,}")


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSetting(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
