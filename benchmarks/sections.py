"""What a benchmark has to say: a table for people, targets beside what was measured, and the raw figures."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class Target(msgspec.Struct, frozen=True):
    """What was wanted beside what was measured. Missing it fails nothing: timings depend on the machine."""

    what: str
    wanted: str
    measured: str
    met: bool


class Section(msgspec.Struct):
    """The results of one benchmark."""

    name: str
    title: str
    header: list[str]
    rows: list[list[str]] = []
    targets: list[Target] = []
    notes: list[str] = []
    raw: dict[str, Any] = {}

    def at_least(self, what: str, wanted: float, measured: float, form: str = "{:,.0f}") -> None:
        """Note a target that is better exceeded."""
        self._target(what, f"≥ {form.format(wanted)}", form.format(measured), met=measured >= wanted)

    def at_most(self, what: str, wanted: float, measured: float, form: str = "{:,.0f}") -> None:
        """Note a target that is better undercut."""
        self._target(what, f"≤ {form.format(wanted)}", form.format(measured), met=measured <= wanted)

    def _target(self, what: str, wanted: str, measured: str, *, met: bool) -> None:
        self.targets.append(Target(what, wanted, measured, met))


class Plan(msgspec.Struct, frozen=True):
    """How much is measured."""

    messages: int | None = None
    """Overrides every benchmark's own number of messages."""
    quick: bool = False

    def size(self, usual: int, *, quick: int) -> int:
        """How many messages a benchmark uses."""
        return self.messages or (quick if self.quick else usual)

    def rounds(self, usual: int = 3) -> int:
        """How often each contestant has its turn."""
        return 1 if self.quick else usual


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """The median, and the extremes when there are any."""
    text = form.format(median(values))
    if len(values) == 1:
        return text
    return f"{text} ({form.format(min(values))}-{form.format(max(values))})"
