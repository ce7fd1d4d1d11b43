"""metrics: what watching a relay costs it, and what a scrape costs with a million messages in the log."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks import draining
from benchmarks.backlog import create_log, create_sinks, fill
from benchmarks.operations import AFTERMATH, SINK
from benchmarks.process import Broken, Process
from benchmarks.sections import Plan, Section, median, spread
from postroad.metrics import DatabaseReader, Metrics
from postroad.metrics.answers import answer

if TYPE_CHECKING:
    from benchmarks.process import Outcome
    from tests.services.postgresql import PostgreSQL

OFF, ON = "no exporter", "all exporters, each asked every 5 seconds"
SCRAPES = 20


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(3_000_000, quick=50_000)
    section = Section(
        "metrics", f"Metrics: draining {messages:,} messages, watched and not", ["", "messages/s", "CPU per message"]
    )
    _drain(server, section, messages, rounds=plan.rounds(3))
    _scrape(server, section, plan.size(1_000_000, quick=50_000))
    return section


def _drain(server: PostgreSQL, section: Section, messages: int, *, rounds: int) -> None:
    """Both take turns, and each round is a ratio of its own. Which of the two is first changes from round to round."""
    sinks = [f"{name} {number}" for number in range(rounds + 1) for name in ("off", "on")]
    url = draining.log(server, messages, 0, sinks)
    server.psql(url, "vacuum (analyze)")
    server.psql(url, "checkpoint")
    outcomes: dict[str, list[Outcome]] = {OFF: [], ON: []}
    for number in range(rounds + 1):
        order = (OFF, ON) if number % 2 else (ON, OFF)
        for name in order:
            drained = _drained(url, f"{'on' if name == ON else 'off'} {number}", messages, exporters=name == ON)
            if number:  # the first round warms the server up
                outcomes[name].append(drained)
    for name, each in outcomes.items():
        cpu = median([(one.cpu_seconds - one.starting_cpu_seconds) / one.messages for one in each])
        section.rows.append([name, spread([one.rate for one in each]), f"{cpu * 1e6:.2f} µs"])
    pairs = list(zip(outcomes[ON], outcomes[OFF], strict=True))
    ratios = [100 * on.rate / off.rate for on, off in pairs]
    section.notes.append(f"In each of {rounds} rounds, watched as a part of unwatched: {spread(ratios, '{:.1f} %')}.")
    section.at_least("% of the messages/s without exporters", 98, median(ratios), "{:.1f}")
    section.raw["outcomes"] = outcomes


def _drained(url: str, sink: str, messages: int, *, exporters: bool) -> Outcome:
    with Process("metrics_process", url, sink, *["--exporters"] * exporters) as relay:
        relay.say()
        outcome = relay.outcome()
    if outcome.messages != messages:
        raise Broken(f"{outcome.messages:,} of {messages:,} messages were delivered")
    return outcome


def _scrape(server: PostgreSQL, section: Section, messages: int) -> None:
    url = create_log(server)
    create_sinks(url, [SINK])
    fill(server, url, messages, keys=messages // 100)
    server.psql(url, AFTERMATH.format(behind=messages // 2, sink=SINK))
    server.psql(url, "vacuum (analyze)")
    fresh, cached = asyncio.run(_scraped(url))
    section.notes.append(
        f"With {messages:,} messages in the log, half of them waiting and {messages // 10:,} deferred, a scrape that "
        f"reads the database takes {spread(fresh, '{:.1f} ms')}, one that does not {spread(cached, '{:.2f} ms')}."
    )
    section.at_most("ms for a scrape that reads the database", 50, median(fresh), "{:.1f}")
    section.raw |= {"scrapes that read the database": fresh, "scrapes that do not": cached}


async def _scraped(url: str) -> tuple[list[float], list[float]]:
    """Milliseconds of scrapes that read the database, and of scrapes that do not."""
    now = 0.0
    database = DatabaseReader(url, monotonic=lambda: now)
    metrics, fresh, cached = Metrics(database=database), list[float](), list[float]()
    async with metrics:
        for number in range(SCRAPES + 1):
            now += 60
            for times in (fresh, cached):
                began = time.perf_counter()
                found = await answer(metrics, "GET", "/metrics")
                if number:  # the first one connects, and prepares the statements
                    times.append((time.perf_counter() - began) * 1000)
                if found.status != 200 or b"postroad_outbox_pending_messages{" not in found.body:
                    raise Broken(found.body.decode())
    return fresh, cached
