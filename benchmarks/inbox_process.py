"""A consumer that is measured, in a process of its own: takes all messages of a queue, one effect each, and reports.

Run by the benchmarks as `python -m benchmarks.inbox_process DATABASE BROKER WAY MESSAGES`. The ways: `by-hand` is what
a careful person would write with aio-pika and asyncpg, with the same guarantee; `single`, `shared` and `batch` are a
Consumer's; `effects` has no messages at all, and is what the statements of the handlers take by themselves.
All have the same transactions at once, the same prefetch, the same table of effects and the same INSERTs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aio_pika
import asyncpg

from benchmarks.backlog import TOPIC
from benchmarks.subject import report, wait_for_go
from postroad import Consumer, Received
from postroad.heap import collect_seldom

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

QUEUE = "inbox"
AT_ONCE = 10
PREFETCH = 1000
BATCH = 500
TOGETHER = 50

EFFECT = "insert into effects (number) values ($1)"
EFFECTS = "insert into effects (number) select unnest($1::int[])"
NOTE = "insert into postroad.inbox (consumer, id, type) values ($1, $2, $3) on conflict do nothing"


@dataclass
class Placed:
    number: int


class Statements:
    """Counts what is sent to the database."""

    def __init__(self) -> None:
        self.count = 0

    async def watch(self, connection: Any) -> None:
        connection.add_query_logger(self._add)

    def _add(self, _: Any) -> None:
        self.count += 1


async def by_hand(pool: Any, broker: str, messages: int) -> None:
    """Begin, note, handle, commit, ack; as many at once as there are connections."""
    done, left = asyncio.Event(), messages

    async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        nonlocal left
        async with pool.acquire() as connection, connection.transaction():
            if await connection.execute(NOTE, "by hand", message.message_id, message.type) == "INSERT 0 1":
                await connection.execute(EFFECT, json.loads(message.body)["number"])
        await message.ack()
        left -= 1
        if not left:
            done.set()

    async with await aio_pika.connect(broker) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(QUEUE)
        await queue.consume(handle)
        await done.wait()


async def effects_alone(pool: Any, messages: int) -> None:
    """The handlers' INSERTs one after the other, as in a shared transaction, and nothing else."""
    async with pool.acquire() as connection:
        for first in range(0, messages, TOGETHER):
            async with connection.transaction():
                for number in range(first, min(first + TOGETHER, messages)):
                    await connection.execute(EFFECT, number)


async def with_consumer(pool: Any, broker: str, messages: int, way: str) -> None:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    collect_seldom()  # as `postroad consume`
    consumer: Consumer[Any] = Consumer(
        broker,
        name=QUEUE,
        begin=begin,
        declare="check",
        ordering="none",
        concurrency=AT_ONCE,
        messages_per_transaction=TOGETHER if way == "shared" else 1,
        prefetch=PREFETCH,
    )

    async def handle(event: Placed, tx: Any, message: Received) -> None:
        await tx.execute(EFFECT, event.number)

    async def handle_many(events: Sequence[tuple[Placed, Received]], tx: Any) -> None:
        await tx.execute(EFFECTS, [event.number for event, _ in events])

    if way == "batch":
        consumer.on_batch(Placed, type=TOPIC, size=BATCH)(handle_many)
    else:
        consumer.on(Placed, type=TOPIC)(handle)
    summary = await consumer.run_until_empty()
    assert summary.handled == messages, summary


async def measure(database: str, broker: str, way: str, messages: int) -> None:
    statements = Statements()
    pool = await asyncpg.create_pool(database, min_size=AT_ONCE, max_size=AT_ONCE, init=statements.watch)
    starting_cpu_seconds = wait_for_go()
    began = time.perf_counter()
    if way == "by-hand":
        await by_hand(pool, broker, messages)
    elif way == "effects":
        await effects_alone(pool, messages)
    else:
        await with_consumer(pool, broker, messages, way)
    report(
        messages=messages,
        seconds=time.perf_counter() - began,  # connecting to the broker included
        settings=str(statements.count),
        starting_cpu_seconds=starting_cpu_seconds,
    )
    pool.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("broker")
    parser.add_argument("way", choices=["by-hand", "single", "shared", "batch", "effects"])
    parser.add_argument("messages", type=int)
    asked = parser.parse_args()
    asyncio.run(measure(asked.database, asked.broker, asked.way, asked.messages))


if __name__ == "__main__":
    main()
