"""rabbitmq: how fast a whole relay process brings a backlog from PostgreSQL to RabbitMQ, beside three yardsticks.

All take turns on one broker, round after round, and a ratio is taken within a round. The relay is a process with the
default settings; the yardsticks (see rabbitmq_yardsticks.py) are in this process, with their messages in memory.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aio_pika
import msgspec
from yarl import URL

from benchmarks import draining
from benchmarks.drain import KEYS
from benchmarks.process import Broken
from benchmarks.rabbitmq_yardsticks import EXCHANGE, Bare, bound_queue, stored, with_aio_pika, with_publisher
from benchmarks.sections import Plan, Section, median, spread
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.services.postgresql import PostgreSQL

SOCKET, AIO_PIKA = "bare socket, ready-made frames", "aio-pika, 500 at a time"
ONE_CALL, FOUR_CALLS = "postroad's publisher alone, one call at a time", "postroad's publisher alone, four at a time"
UNKEYED, KEYED = "postroad relay, no keys", f"postroad relay, {KEYS:,} keys"
FEWER = 10
"""A rate is what counts, and aio-pika takes longer, so it gets a fraction of the messages."""


class Turn(msgspec.Struct, frozen=True):
    """What one contestant did in one round."""

    messages: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_share(self) -> float:
        return self.cpu_seconds / self.seconds

    @property
    def cpu_each(self) -> float:
        return self.cpu_seconds / self.messages


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(50_000, quick=10_000)
    section = Section(
        "rabbitmq",
        f"{messages:,} messages to RabbitMQ, each confirmed",
        ["", "messages/s", "of the socket", "of aio-pika", "share of a core", "CPU each"],
    )
    try:
        broker = RabbitMQ()
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    sinks = [f"round {number}" for number in range(plan.rounds(5))]
    logs = {UNKEYED: draining.log(server, messages, 0, sinks, to=broker.url())}
    logs[KEYED] = draining.log(server, messages, KEYS, sinks, to=broker.url())
    with broker:
        section.notes.append(f"RabbitMQ {broker.ctl('version').strip()}, on the same machine, a durable classic queue")
        _describe(section, asyncio.run(_in_turns(server, broker.url(), logs, sinks, messages)))
    return section


async def _in_turns(
    server: PostgreSQL, url: str, logs: dict[str, str], sinks: list[str], messages: int
) -> dict[str, list[Turn]]:
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(await aio_pika.connect(url))
        queue = await bound_queue(connection)
        yardsticks = await _yardsticks(stack, connection, url, messages)
        names = (SOCKET, UNKEYED, KEYED, ONE_CALL, FOUR_CALLS, AIO_PIKA)  # side by side what is compared the most
        turns: dict[str, list[Turn]] = {name: [] for name in names}
        await yardsticks[SOCKET]()  # this turn only warms the broker up
        await queue.purge()
        for sink in sinks:
            for name in names:
                if name in yardsticks:
                    turn = await yardsticks[name]()
                else:
                    turn = await asyncio.to_thread(_relay, server, logs[name], sink, messages, url)
                arrived = (await queue.purge()).message_count
                if arrived != turn.messages:
                    raise Broken(f"{name}: {arrived:,} of {turn.messages:,} messages arrived")
                turns[name].append(turn)
        return turns


async def _yardsticks(
    stack: AsyncExitStack, connection: aio_pika.abc.AbstractConnection, url: str, count: int
) -> dict[str, Callable[[], Awaitable[Turn]]]:
    messages = [stored(position) for position in range(1, count + 1)]
    fewer = messages[: max(count // FEWER, 1)]
    bare = Bare(URL(url))
    stack.callback(bare.close)
    pages = bare.pages(messages)
    publisher = RabbitMQPublisher(url, PublisherSettings(exchange=EXCHANGE))
    stack.push_async_callback(publisher.close)
    exchange = await (await connection.channel()).get_exchange(EXCHANGE)
    return {
        SOCKET: lambda: _timed(count, asyncio.to_thread(bare.publish, pages)),
        ONE_CALL: lambda: _timed(count, with_publisher(publisher, messages, lanes=1)),
        FOUR_CALLS: lambda: _timed(count, with_publisher(publisher, messages, lanes=4)),
        AIO_PIKA: lambda: _timed(len(fewer), with_aio_pika(exchange, fewer)),
    }


async def _timed(messages: int, publishing: Awaitable[None]) -> Turn:
    began, used = time.perf_counter(), time.process_time()
    await publishing
    return Turn(messages, time.perf_counter() - began, time.process_time() - used)


def _relay(server: PostgreSQL, log: str, sink: str, messages: int, url: str) -> Turn:
    outcome = draining.drain_ours(server, log, sink, messages, to=url).outcome
    return Turn(outcome.messages, outcome.seconds, outcome.cpu_seconds - outcome.starting_cpu_seconds)


def _describe(section: Section, turns: dict[str, list[Turn]]) -> None:
    def shares(name: str, of: str) -> list[float]:
        return [one.rate / other.rate for one, other in zip(turns[name], turns[of], strict=True)]

    for name, each in turns.items():
        section.rows.append(
            [
                name,
                spread([turn.rate for turn in each]),
                spread(shares(name, SOCKET), "{:.0%}"),
                spread(shares(name, AIO_PIKA), "{:.1f} x"),
                f"{median([turn.cpu_share for turn in each]):.0%}",
                f"{median([turn.cpu_each for turn in each]) * 1e6:.1f} µs",
            ]
        )
    for name in (UNKEYED, KEYED):
        of_socket, of_aio_pika = median(shares(name, SOCKET)), median(shares(name, AIO_PIKA))
        section.at_least(f"of the bare socket's rate, aiming at 80% ({name})", 0.6, of_socket, "{:.0%}")
        section.at_least(f"times as fast as aio-pika ({name})", 2, of_aio_pika, "{:.1f}")
    section.raw = {name: list(each) for name, each in turns.items()}
