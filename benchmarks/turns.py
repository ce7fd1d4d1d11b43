"""A relay beside two yardsticks, in turns on one server: what the rounds of `nats` and `redis` say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.drain import KEYS
from benchmarks.sections import median, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.rabbitmq import Turn
    from benchmarks.sections import Section

RELAYS = {"postroad relay, no keys": 0, f"postroad relay, {KEYS:,} keys": KEYS}
UNKEYED, KEYED = RELAYS


def columns(hand: str, client: str) -> list[str]:
    """The heads of the table."""
    return ["", "messages/s", f"of {hand}", f"of {client}", "share of a core", "CPU each"]


def describe(
    section: Section, turns: Mapping[str, Sequence[Turn]], *, hand: str, client: str, share: float, times: float
) -> None:
    """Add the rows; and the aims: at least this share of what is done by hand, and so many times the client's rate."""

    def shares(name: str, of: str) -> list[float]:
        return [one.rate / other.rate for one, other in zip(turns[name], turns[of], strict=True)]

    for name, each in turns.items():
        section.rows.append(
            [
                name,
                spread([turn.rate for turn in each]),
                spread(shares(name, hand), "{:.0%}"),
                spread(shares(name, client), "{:.1f} x"),
                f"{median([turn.cpu_share for turn in each]):.0%}",
                f"{median([turn.cpu_each for turn in each]) * 1e6:.1f} µs",
            ]
        )
    section.at_least(f"of {hand} (no keys)", share, median(shares(UNKEYED, hand)), "{:.0%}")
    section.at_least(f"times {client} (no keys)", times, median(shares(UNKEYED, client)), "{:.1f}")
    section.raw |= {name: list(each) for name, each in turns.items()}
