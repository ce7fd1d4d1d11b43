"""webhooks: how fast a whole relay process brings a backlog from PostgreSQL to an endpoint, beside a bare loop.

Both take turns on one server and send the same signed requests, as many at once; a ratio is taken within a round. The
bare loop is aiohttp with ready-made requests, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks import draining
from benchmarks.process import REPOSITORY, Outcome, Process
from benchmarks.sections import Plan, Section, median, spread
from benchmarks.webhook_process import SECRET

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

AT_ONCE = 10
BARE, RELAY, BATCHES = "aiohttp, ready-made requests", "postroad relay", "postroad relay, batches of 100"


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(20_000, quick=2_000)
    section = Section(
        "webhooks",
        f"{messages:,} messages to an endpoint, each signed and answered with 204, {AT_ONCE} requests at once",
        ["", "messages/s", f"of {BARE}", "CPU each"],
    )
    command = [sys.executable, "-m", "benchmarks.webhook_process", "serve"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as endpoint:
        try:
            assert endpoint.stdout is not None
            url = f"http://127.0.0.1:{int(endpoint.stdout.readline())}/hooks"
            turns = _in_turns(server, plan, messages, url)
        finally:
            endpoint.kill()
    _describe(section, turns)
    section.notes.append("HTTP/1.1 without TLS, on the same machine, structured CloudEvents")
    return section


def _in_turns(server: PostgreSQL, plan: Plan, messages: int, url: str) -> dict[str, list[Outcome]]:
    given = {"allow_plaintext": True, "allow_networks": ["127.0.0.1"], "secrets": SECRET, "concurrency": AT_ONCE}
    ways = {RELAY: given, BATCHES: given | {"envelope": "batched"}}
    rounds = range(plan.rounds(5))
    sinks = [f"{way} {number}" for way in ways for number in rounds]
    log = draining.log(server, messages, 0, sinks, to=url, given=given)
    turns: dict[str, list[Outcome]] = {name: [] for name in (BARE, *ways)}
    for number in rounds:
        with Process("webhook_process", "bare", url, str(messages), str(AT_ONCE)) as bare:
            bare.say()
            turns[BARE].append(bare.outcome())
        for way, settings in ways.items():
            drained = draining.drain_ours(server, log, f"{way} {number}", messages, to=url, given=settings)
            turns[way].append(drained.outcome)
    return turns


def _describe(section: Section, turns: dict[str, list[Outcome]]) -> None:
    def shares(name: str) -> list[float]:
        return [one.rate / other.rate for one, other in zip(turns[name], turns[BARE], strict=True)]

    for name, each in turns.items():
        cpu = median([(turn.cpu_seconds - turn.starting_cpu_seconds) / turn.messages for turn in each])
        rates = spread([turn.rate for turn in each])
        section.rows.append([name, rates, spread(shares(name), "{:.0%}"), f"{cpu * 1e6:.0f} µs"])
    section.at_least(f"of {BARE}", 0.8, median(shares(RELAY)), "{:.0%}")
    section.raw = {name: list(each) for name, each in turns.items()}
