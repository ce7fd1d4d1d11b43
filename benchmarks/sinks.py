"""sinks: several sinks in one process, compared with a process for each; and how fast a sink whose filter takes one
message in a hundred gets through the log, compared with one that takes all.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.backlog import create_log, create_sinks, fill
from benchmarks.process import Broken, Process
from benchmarks.sections import Plan, Section, median, spread
from postroad.sink_filter import SinkFilter

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

SINKS = 3
TOPICS = 100
FILTERS = {
    "one topic": ("shop.thing7.created",),
    "a pattern with *": ("shop.thing7.*",),
    "a pattern with #": ("shop.thing7.#",),
    "five patterns": ("shop.thing7.*", "payment.#", "a.*.b", "#.failed", "stock.*"),
}
"""Each takes one message in a hundred."""


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(500_000, quick=50_000)
    section = Section(
        "sinks", f"Several sinks, and filters, with {messages:,} messages in the log", ["", "of the log/s", "ratio"]
    )
    rates: dict[str, list[float]] = {}
    for number in range(plan.rounds()):
        for name, rate in _round(server, messages, number).items():
            rates.setdefault(name, []).append(rate)
    one, apart, together = (rates.pop(name) for name in ("one", "apart", "together"))
    section.rows.append(["one sink", spread(one), "1 x"])
    section.rows.append([f"{SINKS} sinks, a process each: the sum", spread(apart), _times(apart, one)])
    section.rows.append([f"{SINKS} sinks in one process: the sum", spread(together), _times(together, one)])
    for name, its in rates.items():
        section.rows.append([f"a filter that takes 1 %: {name}", spread(its), _times(its, one)])
        section.at_least(f"times as fast as sending all: {name}", 3, median(_ratios(its, one)), "{:.1f}")
    best = [max(pair) for pair in zip(one, apart, strict=True)]
    section.at_least(
        f"of what the log allows, {SINKS} sinks in one process", 0.9, median(_ratios(together, best)), "{:.0%}"
    )
    section.raw |= {"one": one, "apart": apart, "together": together, **rates}
    return section


def _round(server: PostgreSQL, messages: int, number: int) -> dict[str, float]:
    url = create_log(server)
    apart, together = ([f"{kind} {each}" for each in range(SINKS)] for kind in ("apart", "together"))
    create_sinks(url, ["one", *apart, *together])
    for name, topics in FILTERS.items():
        create_sinks(url, [name], filter=SinkFilter(topics=topics))
    fill(server, url, messages, topic=f"'shop.thing' || n % {TOPICS} || '.created'")
    server.psql(url, "vacuum (analyze)")
    server.psql(url, "checkpoint")
    rates = {"one": _drained(url, [["one"]], messages)}
    rates["apart"] = _drained(url, [[sink] for sink in apart], SINKS * messages)
    rates["together"] = _drained(url, [together], SINKS * messages)
    for name, topics in FILTERS.items():
        rate = _drained(url, [[name]], messages // TOPICS, topics=topics)
        rates[name] = rate * TOPICS
    server.drop_database(url)
    return rates


def _drained(url: str, processes: list[list[str]], messages: int, *, topics: tuple[str, ...] = ()) -> float:
    """Messages per second of all these processes, each with its sinks, from the word to the end of the last one."""
    options = ["--topics", *topics] if topics else []
    with ExitStack() as stack:
        started = [stack.enter_context(Process("sinks_process", url, *sinks, *options)) for sinks in processes]
        for each in started:
            each.say()
        outcomes = [each.outcome() for each in started]
    delivered = sum(each.messages for each in outcomes)
    if delivered != messages:
        raise Broken(f"{delivered:,} of {messages:,} messages were delivered")
    return messages / max(each.seconds for each in outcomes)


def _ratios(these: list[float], those: list[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


def _times(these: list[float], those: list[float]) -> str:
    return spread(_ratios(these, those), "{:.2f} x")
