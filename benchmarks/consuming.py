"""What the benchmarks of consumers have in common: their ways, and the table that compares them with a loop by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.inbox_process import TOGETHER
from benchmarks.sections import median, spread

if TYPE_CHECKING:
    from benchmarks.process import Outcome
    from benchmarks.sections import Section

__all__ = ["BATCHES", "EFFECTS_ALONE", "HEADER", "SHARED", "SINGLE", "describe", "shares"]

SINGLE = "postroad, a handler per message"
SHARED = f"postroad, a handler per message, {TOGETHER} per transaction"
BATCHES = "postroad, batches"
EFFECTS_ALONE = f"no messages: the handlers' INSERTs alone, {TOGETHER} per transaction"
HEADER = ["", "messages/s", "of the loop by hand", "statements each", "CPU each"]


def shares(turns: dict[str, list[Outcome]], name: str, other: str) -> list[float]:
    """The rate as a multiple of the other's, round by round."""
    return [one.rate / beside.rate for one, beside in zip(turns[name], turns[other], strict=True)]


def describe(section: Section, turns: dict[str, list[Outcome]], *, by_hand: str) -> None:
    """Add the rows: each way beside the loop by hand, and what shared transactions reach of what their handlers can."""
    for name, each in turns.items():
        section.rows.append(
            [
                name,
                spread([turn.rate for turn in each]),
                spread(shares(turns, name, by_hand), "{:.2f} x"),
                f"{median([int(turn.settings) / turn.messages for turn in each]):.2f}",
                f"{median([_cpu_each(turn) for turn in each]) * 1e6:.0f} µs",
            ]
        )
    if EFFECTS_ALONE in turns:
        possible = median(shares(turns, SHARED, EFFECTS_ALONE))
        section.notes.append(f"{TOGETHER} per transaction: {possible:.0%} of the rate of the handlers' INSERTs alone")
    section.raw = {name: list(each) for name, each in turns.items()}


def _cpu_each(turn: Outcome) -> float:
    return (turn.cpu_seconds - turn.starting_cpu_seconds) / turn.messages
