"""bad_key: every second message has one key, and that key's first message is refused. How fast do the others go?

The same log three times, each time as a sink of its own: nothing is refused; the key's head is refused and its
followers are held; and that sink again, mended, so that the held ones drain in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.backlog import create_log, create_sinks, fill_sql
from benchmarks.payload import transactions
from benchmarks.process import Broken, Process
from benchmarks.sections import Plan, Section, median, spread

if TYPE_CHECKING:
    from benchmarks.process import Outcome
    from tests.services.postgresql import PostgreSQL

BAD = "bad"
OTHERS = 10_000


def run(server: PostgreSQL, plan: Plan) -> Section:
    followers = plan.size(200_000, quick=10_000)
    section = Section(
        "bad_key",
        f"One bad key with {followers:,} followers, and as many messages of {OTHERS:,} other keys",
        ["", "messages/s", "CPU each", "peak memory"],
    )
    sinks = [f"round {number}" for number in range(plan.rounds())]
    url = create_log(server)
    create_sinks(url, [f"{sink} {kind}" for sink in sinks for kind in ("well", "bad")])
    server.psql(url, ";".join(_every_second(first, last) for first, last in transactions(2 * followers)))
    well, bad, mended = [], [], []
    for sink in sinks:
        well.append(_carry(server, url, f"{sink} well", "well", 2 * followers))
        bad.append(_carry(server, url, f"{sink} bad", "refuse", followers))
        mended.append(_carry(server, url, f"{sink} bad", "mended", followers))
    # With nothing refused both halves take the same time, so the others' rate is half of the whole.
    others = [each.rate / 2 for each in well]
    section.rows += [
        _row("the other keys, when nothing is refused", others, well),
        _row("the other keys, while the bad key's messages are held", [each.rate for each in bad], bad),
        _row("the bad key when it is mended, in order", [each.rate for each in mended], mended),
    ]
    shares = [one.rate / other for one, other in zip(bad, others, strict=True)]
    section.at_least("of their rate is what the other keys keep", 0.8, median(shares), "{:.0%}")
    section.notes.append("To a publisher in memory that takes everything but that message, so nothing hides the cost.")
    section.raw = {"well": well, "bad": bad, "mended": mended}
    return section


def _every_second(first: int, last: int) -> str:
    one_key = f"case when n % 2 = 0 then '{BAD}' else 'key-' || (n::bigint * 7919 % {OTHERS})::text end"
    return fill_sql(first, last, key=one_key)


def _carry(server: PostgreSQL, url: str, sink: str, how: str, messages: int) -> Outcome:
    with Process("bad_key_process", url, sink, how, str(messages)) as relay:
        server.psql(url, "vacuum (analyze)")
        server.psql(url, "checkpoint")
        relay.say()
        outcome = relay.outcome()
    if outcome.messages != messages:
        raise Broken(f"{outcome.messages:,} of {messages:,} messages were carried")
    return outcome


def _row(name: str, rates: list[float], outcomes: list[Outcome]) -> list[str]:
    cpu = median([each.cpu_seconds / each.messages for each in outcomes])
    peak = max(each.peak_bytes for each in outcomes)
    return [name, spread(rates), f"{cpu * 1e6:.1f} µs", f"{peak / 1e6:.0f} MB"]
