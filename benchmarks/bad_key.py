"""bad_key: every second message has one key, and that key's first message is refused. How fast do the others go?

Beside it, a log with the same messages of the other keys and none of the bad one's: that is their own rate. Then the
key is mended, and what was held drains in order. All of it into RabbitMQ, and into a publisher in memory that takes
everything at once, behind which no cost can hide.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aio_pika
import msgspec

from benchmarks.backlog import create_log, create_sinks, fill_sql
from benchmarks.bad_key_process import BAD
from benchmarks.payload import transactions
from benchmarks.process import Broken, Outcome, Process
from benchmarks.rabbitmq_yardsticks import bound_queue
from benchmarks.sections import Plan, Section, median, spread
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL

OTHERS = 10_000
MEMORY = "null://"
ROUNDS = 3


class Rounds(msgspec.Struct, frozen=True):
    """What was measured, round by round."""

    alone: list[Outcome]
    beside: list[Outcome]
    mended: list[Outcome]

    def share(self) -> float:
        """What the other keys keep of their rate."""
        return median([one.rate / other.rate for one, other in zip(self.beside, self.alone, strict=True)])


def run(server: PostgreSQL, plan: Plan) -> Section:
    followers = plan.size(200_000, quick=10_000)
    section = Section(
        "bad_key",
        f"One bad key with {followers:,} followers, and as many messages of {OTHERS:,} other keys",
        ["", "messages/s", "CPU each", "peak memory"],
    )
    try:
        broker: RabbitMQ | None = RabbitMQ()
    except ServerMissing as missing:
        section.notes.append(f"Without RabbitMQ: {missing}")
        broker = None
    sinks = {MEMORY: [f"memory {number}" for number in range(plan.rounds(ROUNDS))]}
    if broker is not None:
        sinks[broker.url()] = [f"rabbitmq {number}" for number in range(plan.rounds(ROUNDS))]
    others = _log(server, followers, sinks, key="key")
    mixed = _log(server, 2 * followers, sinks, key=f"case when n % 2 = 0 then '{BAD}' else key end")
    memory = _rounds(server, others, mixed, sinks[MEMORY], to=MEMORY, followers=followers)
    _describe(section, "memory", memory)
    section.notes.append(f"To a publisher in memory the other keys keep {memory.share():.0%} of their rate.")
    if broker is None:
        return section
    with broker:
        asyncio.run(_bind(broker.url()))
        rabbitmq = _rounds(server, others, mixed, sinks[broker.url()], to=broker.url(), followers=followers)
    _describe(section, "RabbitMQ", rabbitmq)
    section.at_least("of their rate is what the other keys keep", 0.8, rabbitmq.share(), "{:.0%}")
    return section


def _log(server: PostgreSQL, messages: int, sinks: dict[str, list[str]], *, key: str) -> str:
    url = create_log(server)
    for to, names in sinks.items():
        create_sinks(url, names, to=to)
    key = key.replace("key", f"'key-' || (n::bigint * 7919 % {OTHERS})::text")
    server.psql(url, ";".join(fill_sql(first, last, key=key) for first, last in transactions(messages)))
    return url


async def _bind(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        await bound_queue(connection)


def _rounds(server: PostgreSQL, others: str, mixed: str, sinks: list[str], *, to: str, followers: int) -> Rounds:
    rounds = Rounds([], [], [])
    for sink in sinks:
        rounds.alone.append(_carry(server, others, sink, "well", to=to, messages=followers))
        rounds.beside.append(_carry(server, mixed, sink, "refuse", to=to, messages=followers))
        rounds.mended.append(_carry(server, mixed, sink, "mended", to=to, messages=followers))
    return rounds


def _carry(server: PostgreSQL, url: str, sink: str, how: str, *, to: str, messages: int) -> Outcome:
    with Process("bad_key_process", url, sink, how, to, str(messages)) as relay:
        server.psql(url, "vacuum (analyze)")
        server.psql(url, "checkpoint")
        relay.say()
        outcome = relay.outcome()
    if outcome.messages != messages:
        raise Broken(f"{outcome.messages:,} of {messages:,} messages were delivered")
    return outcome


def _describe(section: Section, to: str, rounds: Rounds) -> None:
    section.rows += [
        _row(f"{to}: the other keys, without the bad one", rounds.alone),
        _row(f"{to}: the other keys, while the bad key's messages are held", rounds.beside),
        _row(f"{to}: the bad key when it is mended, in order", rounds.mended),
    ]
    section.raw[to] = rounds


def _row(name: str, outcomes: list[Outcome]) -> list[str]:
    cpu = median([each.cpu_seconds / each.messages for each in outcomes])
    peak = max(each.peak_bytes for each in outcomes)
    return [name, spread([each.rate for each in outcomes]), f"{cpu * 1e6:.1f} µs", f"{peak / 1e6:.0f} MB"]
