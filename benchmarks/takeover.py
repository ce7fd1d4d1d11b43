"""takeover: one of two relays ends. How long do its lanes stand still?

From the signal until every lane has dealt with messages that were committed after it. Direct connections, and the
default lease of 15 s: what is measured is not the lease.
"""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

from benchmarks.backlog import create_log, fill_sql
from benchmarks.sections import Plan, Section, spread
from benchmarks.team import Team

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

MESSAGES = 200
"""Enough that each lane gets some."""


def run(server: PostgreSQL, plan: Plan) -> Section:
    section = Section("takeover", "One of two relays ends: until its lanes move again", ["", "ms"])
    url = create_log(server)
    rounds: dict[str, list[float]] = {}
    for name, number in (("killed (SIGKILL)", signal.SIGKILL), ("asked to end (SIGTERM)", signal.SIGTERM)):
        sinks = [f"{number.name} {each}" for each in range(plan.rounds(10))]
        rounds[name] = [1000 * asyncio.run(_seconds(url, sink, number)) for sink in sinks]
        section.rows.append([name, spread(rounds[name])])
    killed, asked = rounds.values()
    section.at_most("ms after SIGKILL, at most", 2000, max(killed))
    section.at_most("ms after SIGTERM, at most", 200, max(asked))
    section.raw = dict(rounds)
    return section


async def _seconds(url: str, sink: str, number: signal.Signals) -> float:
    async with Team(url, sink, "null://", relays=2) as team:
        await asyncio.sleep(random.random() * 5)  # anywhere between two heartbeats
        began = team.end_one(number)
        _, last = await team.fill([fill_sql(1, MESSAGES)])
        return await team.until_passed(last) - began
