"""lanes: what a message costs when a relay has more lanes, with a convoy and when every lane reads alone; and whether a
lane whose destination does not answer delays the others of its convoy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import draining
from benchmarks.sections import Plan, Section, median, spread
from postroad.message import SLOTS

if TYPE_CHECKING:
    from benchmarks.draining import Drained
    from tests.services.postgresql import PostgreSQL

LANES = (4, 16, 64)
HANGING = 16
"""In a convoy of so many lanes one hangs."""


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(500_000, quick=50_000)
    section = Section("lanes", f"Draining {messages:,} messages with more lanes", [*draining.HEADER, "convoy is"])
    rounds: dict[tuple[int, bool], list[Drained]] = {}
    sinks = [f"round {number}" for number in range(2 * plan.rounds())]
    hanging = [f"one hangs, round {number}" for number in range(plan.rounds())]
    logs = {lanes: draining.log(server, messages, 0, [*sinks, *hanging], lanes=lanes) for lanes in LANES}
    first_lane = SLOTS // HANGING
    others = int(server.psql(logs[HANGING], f"select count(*) from postroad.outbox where slot >= {first_lane}"))
    one_hangs: list[Drained] = []
    for number in range(plan.rounds()):
        for lanes, url in logs.items():
            for sink, alone in zip(sinks[2 * number :], (True, False), strict=False):
                drained = draining.drain_ours(server, url, sink, messages, alone=alone)
                rounds.setdefault((lanes, alone), []).append(drained)
        one_hangs.append(draining.drain_ours(server, logs[HANGING], hanging[number], others, hang=first_lane))
    for (lanes, alone), drains in rounds.items():
        times = "1 x" if alone else spread(_ratios(drains, rounds[lanes, True]), "{:.2f} x") + " as fast"
        section.rows.append([*draining.row(f"{lanes} lanes{', each alone' * alone}", drains), times])
        section.raw[f"{lanes} {'alone' if alone else 'convoy'}"] = [each.rate for each in drains]
    ratios = _ratios(one_hangs, rounds[HANGING, False])
    name = f"{HANGING} lanes, one of them hangs: the others"
    section.rows.append([*draining.row(name, one_hangs), ""])
    section.at_least(
        f"of their rate is what the others keep when one of {HANGING} lanes hangs", 0.9, median(ratios), "{:.0%}"
    )
    for lanes, wanted in ((16, 1.35), (64, 2.3)):
        ratio = median(_ratios(rounds[lanes, False], rounds[lanes, True]))
        section.at_least(f"times as fast as alone, {lanes} lanes", wanted, ratio, "{:.2f}")
    of_few = median(_ratios(rounds[64, False], rounds[4, False]))
    section.at_least("64 lanes, of the rate with 4", 0.85, of_few, "{:.2f}")
    return section


def _ratios(these: list[Drained], those: list[Drained]) -> list[float]:
    return [one.rate / other.rate for one, other in zip(these, those, strict=True)]
