"""sqlite: how fast one relay process empties a backlog in an SQLite file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.backlog import fill_sqlite
from benchmarks.process import Broken, Process
from benchmarks.sections import Plan, Section, median, spread

if TYPE_CHECKING:
    from benchmarks.process import Outcome


def run(plan: Plan) -> Section:
    messages = plan.size(200_000, quick=20_000)
    section = Section(
        "sqlite", f"Draining {messages:,} messages from SQLite", ["", "messages/s", "CPU per message", "peak memory"]
    )
    with tempfile.TemporaryDirectory(prefix="postroad-benchmark-") as folder:
        path = Path(folder) / "log.sqlite"
        fill_sqlite(path, messages)
        outcomes = [_drain(path, f"round {number}", messages) for number in range(plan.rounds())]
    rates = [each.rate for each in outcomes]
    cpu = median([each.cpu_seconds / each.messages for each in outcomes])
    peak = max(each.peak_bytes for each in outcomes)
    section.rows.append(["postroad, no keys", spread(rates), f"{cpu * 1e6:.1f} µs", f"{peak / 1e6:.0f} MB"])
    section.at_least("messages/s from SQLite", 50_000, median(rates))
    section.raw = {"outcomes": outcomes}
    return section


def _drain(path: Path, sink: str, messages: int) -> Outcome:
    """Every round is a sink of its own, so that the log need not be made again."""
    with Process("relay_process", f"sqlite:///{path}", sink) as relay:
        relay.say()
        outcome = relay.outcome()
    if outcome.messages != messages:
        raise Broken(f"{outcome.messages:,} of {messages:,} messages were delivered")
    return outcome
