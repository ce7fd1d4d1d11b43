"""waiting: a million messages wait. How much memory does a relay need, and is it as fast as with a tenth of them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import draining
from benchmarks.backlog import create_log, create_sinks, fill
from benchmarks.sections import Plan, Section, median

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL


def run(server: PostgreSQL, plan: Plan) -> Section:
    many = plan.size(1_000_000, quick=100_000)
    few = max(many // 10, 1)
    section = Section("waiting", f"{many:,} messages waiting", draining.HEADER)
    sinks = [f"round {number}" for number in range(plan.rounds())]
    logs = {}
    for messages in (few, many):
        logs[messages] = create_log(server)
        create_sinks(logs[messages], sinks)
        fill(server, logs[messages], messages)
    rounds: dict[int, list[draining.Drained]] = {few: [], many: []}
    for sink in sinks:
        for messages, url in logs.items():
            rounds[messages].append(draining.drain_ours(server, url, sink, messages))
    for messages, drains in rounds.items():
        section.rows.append(draining.row(f"postroad, {messages:,} waiting", drains))
    shares = [one.rate / other.rate for one, other in zip(rounds[many], rounds[few], strict=True)]
    peak = max(each.outcome.peak_bytes for each in rounds[many])
    section.at_most(f"MB of memory with {many:,} waiting", 150, peak / 1e6)
    section.at_least(f"of the rate with {few:,} waiting", 0.8, median(shares), "{:.0%}")
    section.raw = {str(messages): [each.outcome for each in drains] for messages, drains in rounds.items()}
    return section
