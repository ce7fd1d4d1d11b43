"""A consumer of NATS or of a Redis Stream that is measured, in a process of its own: takes all messages, one effect
each.

Run by the benchmarks as `python -m benchmarks.stream_inbox_process DATABASE BROKER NAME WAY MESSAGES`. The ways:
`by-hand` is what a careful person would write with the broker's own client and asyncpg, with the same guarantee: an
inbox row in the handler's transaction, keys in order, and acks after the transactions. `single`, `shared` and `batch`
are a Consumer's. All have the same transactions at once, the same table of effects and the same INSERTs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg
import nats
import redis.asyncio

from benchmarks.backlog import TOPIC
from benchmarks.inbox_process import AT_ONCE, BATCH, EFFECT, EFFECTS, NOTE, PREFETCH, TOGETHER, Placed, Statements
from benchmarks.subject import report, wait_for_go
from postroad import Consumer, Received
from postroad.heap import collect_seldom

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

STREAM = "bench"


class Taken(NamedTuple):
    """A message as the loops by hand need it."""

    key: str
    id: str
    type: str
    data: bytes


async def nats_by_hand(pool: Any, url: str, name: str, messages: int) -> None:
    """Fetch, handle the page, ack each message of it."""
    client = await nats.connect(url)
    subscription = await client.jetstream().pull_subscribe(STREAM, durable=name, stream=STREAM)
    left = messages
    while left:
        page = await subscription.fetch(min(BATCH, left), timeout=30)
        headers = [each.headers or {} for each in page]
        taken = [
            Taken(its["ce-partitionkey"], its["ce-id"], its["ce-type"], each.data)
            for its, each in zip(headers, page, strict=True)
        ]
        await _handle(pool, taken)
        for each in page:
            await each.ack()
        left -= len(page)
    await client.close()


async def redis_by_hand(pool: Any, url: str, name: str, messages: int) -> None:
    """Read for the group, handle the page, ack all of it."""
    client: Any = redis.asyncio.Redis.from_url(url)
    await client.xgroup_create(STREAM, name, "0")
    left = messages
    while left:
        ((_, page),) = await client.xreadgroup(name, "one", {STREAM: ">"}, count=BATCH, block=30_000)
        taken = [
            Taken(its[b"ce_partitionkey"].decode(), its[b"ce_id"].decode(), its[b"ce_type"].decode(), its[b"data"])
            for _, its in page
        ]
        await _handle(pool, taken)
        await client.xack(STREAM, name, *(id for id, _ in page))
        left -= len(page)
    await client.aclose()


async def _handle(pool: Any, page: Sequence[Taken]) -> None:
    """For each message begin, note, handle, commit; of a key one after the other."""
    at_once = asyncio.Semaphore(AT_ONCE)
    by_key: dict[str, list[Taken]] = defaultdict(list)
    for each in page:
        by_key[each.key].append(each)

    async def handle_key(messages: Sequence[Taken]) -> None:
        for each in messages:
            async with at_once, pool.acquire() as connection, connection.transaction():
                if await connection.execute(NOTE, "by hand", each.id, each.type) == "INSERT 0 1":
                    await connection.execute(EFFECT, json.loads(each.data)["number"])

    await asyncio.gather(*map(handle_key, by_key.values()))


async def with_consumer(pool: Any, url: str, name: str, messages: int, *, way: str) -> None:
    left = messages

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    of_nats: dict[str, Any] = {"subject": STREAM} if url.startswith("nats:") else {}
    collect_seldom()  # as `postroad consume`
    consumer: Consumer[Any] = Consumer(
        url,
        name=name,
        stream=STREAM,
        begin=begin,
        concurrency=AT_ONCE,
        messages_per_transaction=TOGETHER if way == "shared" else 1,
        prefetch=PREFETCH,
        **of_nats,
    )

    def count(handled: int) -> None:
        nonlocal left
        left -= handled
        if not left:
            consumer.stop()

    async def handle(event: Placed, tx: Any, message: Received) -> None:
        await tx.execute(EFFECT, event.number)
        count(1)

    async def handle_many(events: Sequence[tuple[Placed, Received]], tx: Any) -> None:
        await tx.execute(EFFECTS, [event.number for event, _ in events])
        count(len(events))

    if way == "batch":
        consumer.on_batch(Placed, type=TOPIC, size=BATCH)(handle_many)
    else:
        consumer.on(Placed, type=TOPIC)(handle)
    summary = await consumer.run()
    assert summary.handled == messages, summary


async def measure(asked: argparse.Namespace) -> None:
    statements = Statements()
    pool = await asyncpg.create_pool(asked.database, min_size=AT_ONCE, max_size=AT_ONCE, init=statements.watch)
    by_hand = nats_by_hand if asked.broker.startswith("nats:") else redis_by_hand
    starting_cpu_seconds = wait_for_go()
    began = time.perf_counter()
    where = (pool, asked.broker, asked.name, asked.messages)
    await (by_hand(*where) if asked.way == "by-hand" else with_consumer(*where, way=asked.way))
    report(
        messages=asked.messages,
        seconds=time.perf_counter() - began,  # connecting and leaving included
        settings=str(statements.count),
        starting_cpu_seconds=starting_cpu_seconds,
    )
    pool.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("database", "broker", "name"):
        parser.add_argument(name)
    parser.add_argument("way", choices=["by-hand", "single", "shared", "batch"])
    parser.add_argument("messages", type=int)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
