"""redis: how fast a whole relay process brings a backlog from PostgreSQL to a Redis Stream, beside ready-made commands
on a bare socket and beside redis-py's pipeline.

All take turns on one server, each with an empty stream; a ratio is taken within a round. The relay is a process with
the default settings. The others are in this process, page by page, and wait for the answers of each page as a lane
does: commands that were made before the clock starts, written to a socket, whose answers hiredis reads; and redis-py's
asyncio pipeline with the same fields.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import hiredis
from redis.asyncio import Redis as Client

from benchmarks import draining
from benchmarks.process import Broken
from benchmarks.rabbitmq import Turn
from benchmarks.rabbitmq_yardsticks import PAGE, stored
from benchmarks.sections import Plan, Section
from benchmarks.turns import RELAYS, columns, describe
from postroad.brokers.cloudevents import wrap
from postroad.brokers.redis.entries import Entries
from postroad.brokers.redis.settings import PublisherSettings
from tests.services.redis import Redis
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from postroad.message import StoredMessage
    from tests.services.postgresql import PostgreSQL

HAND, CLIENT = "commands by hand on a bare socket", "redis-py, a pipeline per page"


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(400_000, quick=5_000)
    section = Section(
        "redis",
        f"{messages:,} messages to a Redis Stream, each confirmed by the server",
        columns(HAND, CLIENT),
    )
    try:
        broker = Redis(appendfsync="everysec")
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    with broker:
        turns = _in_turns(server, broker, plan, messages)
    describe(section, turns, hand=HAND, client=CLIENT, share=0.6, times=2)
    section.notes.append("Redis on the same machine, appendonly yes, appendfsync everysec")
    return section


def _in_turns(server: PostgreSQL, broker: Redis, plan: Plan, messages: int) -> dict[str, list[Turn]]:
    sinks = [f"round {number}" for number in range(plan.rounds(3))]
    logs = {name: draining.log(server, messages, keys, sinks, to=broker.url) for name, keys in RELAYS.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in (HAND, CLIENT, *RELAYS)}
    asyncio.run(_by_hand(broker, min(messages, 20 * PAGE)))  # this turn only warms the server up
    for sink in sinks:
        for name, each in turns.items():
            broker.call("FLUSHALL")
            if name in logs:
                each.append(_relay(server, logs[name], sink, messages, broker.url))
            else:
                each.append(asyncio.run((_by_hand if name == HAND else _by_client)(broker, messages)))
            arrived = int(broker.call("XLEN", stored(1).topic))
            if arrived != messages:
                raise Broken(f"{name}: {arrived:,} of {messages:,} messages arrived")
    return turns


async def _by_hand(broker: Redis, messages: int) -> Turn:
    entries = Entries(PublisherSettings())
    made = [_command(entries, stored(number)) for number in range(1, messages + 1)]
    pages = [b"".join(made[first : first + PAGE]) for first in range(0, messages, PAGE)]
    connection, answers = await asyncio.open_connection("127.0.0.1", broker.port), hiredis.Reader()
    reader, writer = connection
    left = messages
    began, used = time.perf_counter(), time.process_time()
    for page in pages:
        writer.write(page)
        missing = min(PAGE, left)
        left -= missing
        while missing:
            answers.feed(await reader.read(1 << 18))
            while missing and answers.gets() is not False:
                missing -= 1
    turn = Turn(messages, time.perf_counter() - began, time.process_time() - used)
    writer.close()
    await writer.wait_closed()
    return turn


def _command(entries: Entries, message: StoredMessage) -> bytes:
    return entries.command(entries.entry_of(message, entries.stream_of(message)), ())


async def _by_client(broker: Redis, messages: int) -> Turn:
    made = [(message.topic, _fields(message)) for message in map(stored, range(1, messages + 1))]
    client = Client.from_url(broker.url)
    began, used = time.perf_counter(), time.process_time()
    for first in range(0, messages, PAGE):
        pipeline = client.pipeline(transaction=False)
        for stream, fields in made[first : first + PAGE]:
            pipeline.xadd(stream, fields)
        await pipeline.execute()
    turn = Turn(messages, time.perf_counter() - began, time.process_time() - used)
    await client.aclose()
    return turn


def _fields(message: StoredMessage) -> dict[Any, Any]:
    content_type, headers, body = wrap(message, "binary", "ce_")
    return {**headers, "content-type": content_type, "data": body}


def _relay(server: PostgreSQL, log: str, sink: str, messages: int, url: str) -> Turn:
    outcome = draining.drain_ours(server, log, sink, messages, to=url).outcome
    return Turn(outcome.messages, outcome.seconds, outcome.cpu_seconds - outcome.starting_cpu_seconds)
