"""compression: adding and draining messages of 20 KB, compressed by PostgreSQL in its two ways, or by the application.

`postroad migrate` chooses lz4 where the server offers it; pglz is what the server would use otherwise. zstd is the
codec of the outbox; the server then finds nothing to compress. Each contestant has a log of its own. Adding is
`add_many` of ten messages per transaction through asyncpg, one connection; what was added is then drained.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import msgspec

from benchmarks.backlog import create_log, create_sinks
from benchmarks.draining import Drained, drain_ours
from benchmarks.sections import Plan, Section, median, spread
from postroad import Message, Outbox
from postroad.codecs import Codec, Zstd
from postroad.message import LARGEST_PAYLOAD_OF_ALL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.services.postgresql import PostgreSQL

PAYLOAD_BYTES = 20_000
MESSAGES_PER_TRANSACTION = 10
PGLZ, LZ4, ZSTD = "pglz, by the server", "lz4, by the server", "zstd, by the application"


class Way(NamedTuple):
    """How payloads are stored."""

    compression: str
    """The server's."""
    codecs: Sequence[Codec] = ()


WAYS = {PGLZ: Way("pglz"), LZ4: Way("lz4"), ZSTD: Way("pglz", [Zstd()])}


class Written(msgspec.Struct, frozen=True):
    """What adding cost, and then draining."""

    rate: float
    """Messages added per second."""
    table_bytes: int
    drained: Drained


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(5_000, quick=300)
    header = ["", "added/s", "table", "drained/s", "CPU each: process + server"]
    section = Section(
        "compression", f"Adding and draining {messages:,} messages of 20 KB, compressed in several ways", header
    )
    rounds = in_turns(server, plan, WAYS, [order(number, PAYLOAD_BYTES) for number in range(200)], messages)
    describe(section, rounds)
    added, drained = times_as_many(rounds, LZ4, PGLZ)
    section.at_least("times as many messages added with lz4 as with pglz", 1.5, added, "{:.1f}")
    section.at_least("times as many messages drained with lz4 as with pglz", 1.2, drained, "{:.1f}")
    added, drained = times_as_many(rounds, ZSTD, PGLZ)
    section.notes.append(
        f"With zstd, {added:.1f} times as many are added as with pglz, and {drained:.1f} times drained."
    )
    return section


def in_turns(
    server: PostgreSQL, plan: Plan, ways: Mapping[str, Way], events: Sequence[dict[str, Any]], messages: int
) -> dict[str, list[Written]]:
    """Each has its turn in each round, once from the first to the last, and once the other way."""
    rounds: dict[str, list[Written]] = {name: [] for name in ways}
    for number in range(plan.rounds()):
        for name in ways if number % 2 else reversed(list(ways)):
            rounds[name].append(_turn(server, ways[name], events, messages))
    return rounds


def times_as_many(rounds: Mapping[str, list[Written]], one: str, other: str) -> tuple[float, float]:
    """How much faster the one is than the other: adding, and draining."""
    pairs = list(zip(rounds[one], rounds[other], strict=True))
    added = median([this.rate / that.rate for this, that in pairs])
    return added, median([this.drained.rate / that.drained.rate for this, that in pairs])


def describe(section: Section, rounds: Mapping[str, list[Written]]) -> None:
    """The rows of the table."""
    section.rows = [_row(name, written) for name, written in rounds.items()]
    section.raw = {name: [msgspec.to_builtins(each) for each in written] for name, written in rounds.items()}


def _turn(server: PostgreSQL, way: Way, events: Sequence[dict[str, Any]], messages: int) -> Written:
    url = create_log(server)
    server.psql(url, f"alter table postroad.outbox alter column payload set compression {way.compression}")
    create_sinks(url, ["drain"])
    server.psql(url, "checkpoint")
    rate = asyncio.run(_add(url, way, events, messages))
    size = int(server.execute(url, "select pg_total_relation_size('postroad.outbox')"))
    drained = drain_ours(server, url, "drain", messages)
    server.drop_database(url)
    return Written(rate, size, drained)


async def _add(url: str, way: Way, events: Sequence[dict[str, Any]], messages: int) -> float:
    outbox = Outbox(source="/benchmarks", codecs=way.codecs, largest_payload=LARGEST_PAYLOAD_OF_ALL)
    connection = await asyncpg.connect(url)
    try:
        began = time.perf_counter()
        for first in range(0, messages, MESSAGES_PER_TRANSACTION):
            numbers = range(first, min(first + MESSAGES_PER_TRANSACTION, messages))
            async with connection.transaction():
                await outbox.add_many(
                    connection, [Message(events[n % len(events)], type="order.placed", key=n) for n in numbers]
                )
        return messages / (time.perf_counter() - began)
    finally:
        await connection.close()


def order(number: int, size: int) -> dict[str, Any]:
    """An event of this size as JSON, or a little more: names and words that repeat, ids and prices that do not."""
    chance = random.Random(number)
    words = ("parcel", "express", "customer", "warehouse", "returned", "address", "confirmed", "damaged")
    lines: list[dict[str, Any]] = []
    while size > 0:
        line = {
            "sku": f"{chance.getrandbits(48):012x}",
            "quantity": chance.randrange(1, 9),
            "price": round(chance.random() * 500, 2),
            "note": " ".join(chance.choices(words, k=6)),
        }
        lines.append(line)
        size -= len(msgspec.json.encode(line)) + 1
    return {"order": f"{chance.getrandbits(64):016x}", "lines": lines}


def _row(name: str, written: list[Written]) -> list[str]:
    messages = written[0].drained.outcome.messages
    process = median([each.drained.outcome.cpu_seconds / messages for each in written])
    server = median([each.drained.work.per(messages).cpu_seconds for each in written])
    return [
        name,
        spread([each.rate for each in written]),
        f"{median([each.table_bytes for each in written]) / 1e6:.1f} MB",
        spread([each.drained.rate for each in written]),
        f"{process * 1e6:.0f} + {server * 1e6:.0f} µs",
    ]
