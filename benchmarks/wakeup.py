"""wakeup: how soon a sleeping relay has a message, what sleeping costs, and what it costs those who write."""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import asyncpg

from benchmarks.backlog import create_log
from benchmarks.peers.environment import PeersMissing
from benchmarks.peers.environment import python as peers_python
from benchmarks.process import Process
from benchmarks.sections import Plan, Section, median
from benchmarks.writing import CHECKPOINTER, NO_NAPS, NO_TRIGGER, NOTIFY_ALWAYS, Way, naps, rate
from postroad import Outbox

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

OURS, CONVOY = "postroad", "postroad, 16 lanes"
PEERS = ("txoutbox", "pgqueuer", "procrastinate")
PER_SECOND = 200
WITHOUT = Way("writers, no trigger", NO_TRIGGER)
WAYS = [
    WITHOUT,
    Way("writers, no lane naps", NO_NAPS),
    Way("writers, one lane naps, others are busy", naps(768, 1023), (0, 767)),
    Way("writers, a killed relay's naps", naps(0, 1023)),
    Way("writers, naps of a relay that can't be reached, until they end", naps(0, 1023, CHECKPOINTER)),
    Way("writers, notifying on every commit", NOTIFY_ALWAYS),
]
WITH_RELAY = [
    (Way("writers and a relay", "select 1"), "notify"),
    (Way("writers and a relay that polls, no trigger", NO_TRIGGER), "off"),
]


def run(server: PostgreSQL, plan: Plan) -> Section:
    section = Section("wakeup", "Waking a relay that sleeps", ["", "median", "99 %", "most", "times"])
    _latency(server, plan, section)
    url = create_log(server)
    with Process("wakeup_process", url):
        _idle(server, url, plan, section, "statements per second of an idle relay")
        asyncio.run(_moderate_rate(url, plan, section))
    url = create_log(server)
    with Process("wakeup_process", url, "notify", "16"):
        _idle(server, url, plan, section, "statements per second of an idle relay with 16 lanes")
    _writers(server, plan, section)
    return section


# -- from commit to publisher ----------------------------------------------------------------------------------------


def _latency(server: PostgreSQL, plan: Plan, section: Section) -> None:
    """All contestants idle at the same time, and are woken one after the other."""
    idle, times = (1.0, 5) if plan.quick else (10.0, 30)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        contestants = {OURS: stack.enter_context(Process("wakeup_process", create_log(server)))}
        contestants[CONVOY] = stack.enter_context(Process("wakeup_process", create_log(server), "notify", "16"))
        try:
            interpreter = peers_python()
        except PeersMissing as missing:
            section.notes.append(f"The peers could not be installed and are left out: {missing}")
        else:
            for peer in PEERS:
                process = Process(f"peers.wake_{peer}", server.create_database(), python=interpreter)
                contestants[peer] = stack.enter_context(process)
        for _ in range(times):
            time.sleep(idle)
            for name, process in contestants.items():
                process.say()
                found.setdefault(name, []).append(process.figures()["milliseconds"])
    for name, values in found.items():
        figures = [f"{each:.1f} ms" for each in (median(values), percentile(values), max(values))]
        section.rows.append([f"{name}, commit to publisher", *figures, str(times)])
    section.notes.append(f"Before each message all processes had been idle for {idle:g} s.")
    section.at_most("ms from commit to publisher, median", 2.5, median(found[OURS]), "{:.1f}")
    section.at_most("ms from commit to publisher, 99 %", 10, percentile(found[OURS]), "{:.1f}")
    section.raw["milliseconds"] = found


def percentile(values: list[float], share: float = 0.99) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# -- what sleeping costs ---------------------------------------------------------------------------------------------


def _idle(server: PostgreSQL, url: str, plan: Plan, section: Section, what: str) -> None:
    seconds = 10 if plan.quick else 60
    _have_statements_logged(server, url, "all")
    time.sleep(15)  # it has taken its lanes and fallen asleep
    before = server.log.stat().st_size
    time.sleep(seconds)
    with server.log.open() as log:
        log.seek(before)
        statements = sum(bool(_STATEMENT.search(line)) for line in log)
    _have_statements_logged(server, url, "none")
    section.at_most(what, 0.5, statements / seconds, "{:.2f}")
    section.raw[what] = statements / seconds


_STATEMENT = re.compile(r" LOG: +(statement|execute [^:]+): ")


def _have_statements_logged(server: PostgreSQL, url: str, which: str) -> None:
    server.psql(url, f"alter system set log_statement = '{which}'")
    server.psql(url, "select pg_reload_conf()")


async def _moderate_rate(url: str, plan: Plan, section: Section) -> None:
    """Messages at random moments, so many a second on average."""
    messages = PER_SECOND * (3 if plan.quick else 30)
    outbox, chance = Outbox(source="/benchmarks"), random.Random(1)
    connection = await asyncpg.connect(url)
    before = await connection.fetchval(_NAPS_BEGUN)
    due = time.monotonic()
    for _ in range(messages):
        due += chance.expovariate(PER_SECOND)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        async with connection.transaction():
            await outbox.add(connection, {"order": 1}, type="order.placed")
    begun = await connection.fetchval(_NAPS_BEGUN) - before
    await connection.close()
    section.at_most(f"naps per 100 messages at {PER_SECOND} a second", 1, 100 * begun / messages, "{:.2f}")
    section.raw["naps_per_100_messages"] = 100 * begun / messages


_NAPS_BEGUN = "select last_value from postroad.naps_id_seq"


# -- what it costs those who write -----------------------------------------------------------------------------------


def _writers(server: PostgreSQL, plan: Plan, section: Section) -> None:
    seconds, rounds = (2, 1) if plan.quick else (3, 10)
    url = create_log(server)
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        order = -1 if number % 2 else 1  # whoever comes later has a larger log and a fuller disk
        for way in WAYS[::order]:
            rates.setdefault(way.name, []).append(rate(server, url, way, seconds))
        for way, wakeup in WITH_RELAY[::order]:  # it sleeps or polls, and then has its hands full
            with Process("wakeup_process", url, wakeup):
                rates.setdefault(way.name, []).append(rate(server, url, way, seconds))
    for name, values in rates.items():
        section.rows.append([name, f"{median(values):,.0f}/s", "", f"{max(values):,.0f}/s", str(rounds)])
    for name in [way.name for way in WAYS[1:4]]:
        section.at_least(
            f"of the rate without a trigger: {name}", 0.9, _share(rates[name], rates[WITHOUT.name]), "{:.0%}"
        )
    both = _share(*(rates[way.name] for way, _ in WITH_RELAY))
    section.at_least("of the rate without a trigger: writers and a relay", 0.9, both, "{:.0%}")
    section.raw["transactions_per_second"] = rates


def _share(some: list[float], others: list[float]) -> float:
    """Within a round, because a machine is never equally busy for long."""
    return median([one / other for one, other in zip(some, others, strict=True)])
