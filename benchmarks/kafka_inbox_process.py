"""A consumer of Kafka that is measured, in a process of its own: takes all messages of a topic, one effect each.

Run by the benchmarks as `python -m benchmarks.kafka_inbox_process DATABASE BROKER TOPIC GROUP WAY MESSAGES`. The ways:
`by-hand` is what a careful person would write with confluent-kafka and asyncpg, with the same guarantee: an inbox row
in the handler's transaction, keys in order, and offsets committed after the transactions. `single`, `shared` and
`batch` are a Consumer's. All have the same transactions at once, the same table of effects and the same INSERTs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import confluent_kafka

from benchmarks.backlog import TOPIC
from benchmarks.inbox_process import AT_ONCE, BATCH, EFFECT, EFFECTS, NOTE, PREFETCH, TOGETHER, Placed, Statements
from benchmarks.subject import report, wait_for_go
from postroad import Consumer, Received
from postroad.heap import collect_seldom

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Watch:
    """Runs from the first effect on: how long it takes to join a group is the broker's affair."""

    def __init__(self) -> None:
        self._began: float | None = None

    def start(self) -> None:
        if self._began is None:
            self._began = time.perf_counter()

    def seconds(self) -> float:
        assert self._began is not None
        return time.perf_counter() - self._began


async def by_hand(watch: Watch, pool: Any, broker: str, topic: str, group: str, *, messages: int) -> float:
    """Poll, and for each message begin, note, handle, commit; of a key one after the other; then commit the offsets."""
    client = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "isolation.level": "read_committed",
        }
    )
    client.subscribe([topic])
    at_once = asyncio.Semaphore(AT_ONCE)

    async def handle_key(records: list[Any]) -> None:
        for record in records:
            headers = dict(record.headers())
            async with at_once, pool.acquire() as connection, connection.transaction():
                noted = await connection.execute(
                    NOTE, "by hand", headers["ce_id"].decode(), headers["ce_type"].decode()
                )
                if noted == "INSERT 0 1":
                    watch.start()
                    await connection.execute(EFFECT, json.loads(record.value())["number"])

    left = messages
    while left:
        records = await asyncio.to_thread(client.consume, BATCH, 0.1)
        by_key: dict[bytes | None, list[Any]] = defaultdict(list)
        for record in records:
            assert record.error() is None, record.error()
            by_key[record.key()].append(record)
        await asyncio.gather(*map(handle_key, by_key.values()))
        left -= len(records)
        if records:
            client.commit(asynchronous=True)
    seconds = watch.seconds()
    await asyncio.to_thread(client.close)
    return seconds


async def with_consumer(
    watch: Watch, pool: Any, broker: str, topic: str, group: str, *, messages: int, way: str
) -> float:
    left, seconds = messages, 0.0

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        nonlocal seconds
        async with pool.acquire() as connection, connection.transaction():
            yield connection
        if not left:  # the last of them is committed
            seconds = watch.seconds()

    collect_seldom()  # as `postroad consume`
    consumer: Consumer[Any] = Consumer(
        f"kafka://{broker}",
        name=group,
        topic=topic,
        begin=begin,
        declare="check",
        concurrency=AT_ONCE,
        messages_per_transaction=TOGETHER if way == "shared" else 1,
        prefetch=PREFETCH,
    )

    def count(handled: int) -> None:
        nonlocal left
        left -= handled
        if not left:
            consumer.stop()

    async def handle(event: Placed, tx: Any, message: Received) -> None:
        watch.start()
        await tx.execute(EFFECT, event.number)
        count(1)

    async def handle_many(events: Sequence[tuple[Placed, Received]], tx: Any) -> None:
        watch.start()
        await tx.execute(EFFECTS, [event.number for event, _ in events])
        count(len(events))

    if way == "batch":
        consumer.on_batch(Placed, type=TOPIC, size=BATCH)(handle_many)
    else:
        consumer.on(Placed, type=TOPIC)(handle)
    summary = await consumer.run()
    assert summary.handled == messages, summary
    return seconds


async def measure(asked: argparse.Namespace) -> None:
    statements = Statements()
    pool = await asyncpg.create_pool(asked.database, min_size=AT_ONCE, max_size=AT_ONCE, init=statements.watch)
    starting_cpu_seconds = wait_for_go()
    where = (Watch(), pool, asked.broker, asked.topic, asked.group)
    seconds = await (
        by_hand(*where, messages=asked.messages)
        if asked.way == "by-hand"
        else with_consumer(*where, messages=asked.messages, way=asked.way)
    )
    report(
        messages=asked.messages,
        seconds=seconds,
        settings=str(statements.count),
        starting_cpu_seconds=starting_cpu_seconds,
    )
    pool.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("database", "broker", "topic", "group"):
        parser.add_argument(name)
    parser.add_argument("way", choices=["by-hand", "single", "shared", "batch"])
    parser.add_argument("messages", type=int)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
