"""large: five million delivered messages are still in the log. Is a relay as fast, and are the plans the right ones?
And another sink has not read any of them yet: what does its first page cost?

The plans in benchmarks/results/plans.txt are of the relay's own statements, as auto_explain saw them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks import draining, plans
from benchmarks.backlog import create_log, create_sinks, fill
from benchmarks.process import REPOSITORY
from benchmarks.sections import Plan, Section

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

PLANS = REPOSITORY / "benchmarks/results/plans.txt"


def run(server: PostgreSQL, plan: Plan) -> Section:
    delivered = 200_000 if plan.quick else 5_000_000
    messages = plan.size(500_000, quick=50_000)
    section = Section("large", f"Draining {messages:,} messages behind {delivered:,} delivered ones", draining.HEADER)
    sinks = [f"round {number}" for number in range(plan.rounds())]
    url = create_log(server)
    create_sinks(url, ["away"])
    fill(server, url, delivered)
    create_sinks(url, [*sinks, "plans"], start="now")
    fill(server, url, messages)
    drains = [draining.drain_ours(server, url, sink, messages) for sink in sinks]
    section.rows.append(draining.row(f"postroad, {delivered:,} delivered", drains))
    first, second = asyncio.run(plans.after_absence(server, url, "away"))
    section.at_most(
        f"times what the next page takes is what the first one takes with {delivered + messages:,} waiting",
        2,
        first.read_ms / second.read_ms,
        "{:.1f}",
    )
    found = [first, second, *asyncio.run(plans.explained(server, url, "plans"))]
    PLANS.parent.mkdir(parents=True, exist_ok=True)
    PLANS.write_text("\n\n".join(f"{each.title}\n{each.plan}" for each in found))
    section.notes += [
        f"{each.title}: {each.rows:,} rows; the statement takes {each.statement_ms:.1f} ms under EXPLAIN ANALYZE, "
        f"reading the page {each.read_ms:.1f} ms"
        for each in found
    ]
    section.raw = {"drains": [each.outcome for each in drains], "plans": found}
    return section
