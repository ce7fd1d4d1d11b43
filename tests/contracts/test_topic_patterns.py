"""Patterns mean the same everywhere: in Python, in PostgreSQL, in SQLite, and in RabbitMQ's own topic exchange."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import aio_pika
import asyncpg

from postroad import Message
from postroad.sink_filter import SinkFilter, takes
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import OUTBOX, PostgreSQLLog
from tests.services.postgresql import PostgreSQL

WORDS = ["a", "b", "ab", "", "a_b", "%", "\\", "ü"]


def made(seed: int, count: int, extra: Iterable[str] = ()) -> list[str]:
    """Different texts of a few words."""
    chance = random.Random(seed)
    found: set[str] = set()
    while len(found) < count:
        text = ".".join(chance.choice([*WORDS, *extra]) for _ in range(chance.randint(1, 4)))
        if text:
            found.add(text)
    return sorted(found)


TOPICS = made(1, 120)
PATTERNS = made(2, 150, extra=["*", "#", "*", "#", "#"])


def taken_by_python(pattern: str) -> set[str]:
    return {topic for topic in TOPICS if takes(SinkFilter(topics=[pattern]).text, topic, "t", "{}")}


async def test_rabbitmqs_topic_exchange_takes_the_same_topics(vhost: str) -> None:
    """One queue per pattern; what arrives there is what the exchange takes for it."""
    connection = await aio_pika.connect(vhost)
    async with connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("patterns", "topic", auto_delete=True)
        queues = []
        for pattern in PATTERNS:
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(exchange, pattern)
            queues.append(queue)
        for topic in TOPICS:
            await exchange.publish(aio_pika.Message(topic.encode()), topic, mandatory=False)
        for pattern, queue in zip(PATTERNS, queues, strict=True):
            found = set()
            while message := await queue.get(fail=False, no_ack=True):
                found.add(message.body.decode())
            assert found == taken_by_python(pattern), pattern


async def test_postgresql_takes_the_same_messages(postgresql: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql)
    connection = await asyncpg.connect(log.url)
    try:
        for pattern in PATTERNS:
            for filter in (SinkFilter(topics=[pattern, "x.y"]), SinkFilter(exclude_topics=[pattern])):
                columns = filter.columns
                found = await connection.fetch(
                    """
                    select topic from unnest($1::text[]) as topic
                     where postroad.takes(row(null, null, null, $2, $3, $4, $5, $6, $7, $8)::postroad.sinks,
                                          topic, 't', '{}')
                    """,
                    TOPICS,
                    *columns,
                )
                python = {topic for topic in TOPICS if takes(filter.text, topic, "t", "{}")}
                assert {row["topic"] for row in found} == python, filter
    finally:
        await connection.close()
        await log.close()


def test_sqlite_takes_the_same_messages_without_any_function_of_ours(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "log")
    with closing(sqlite3.connect(tmp_path / "log")) as connection:
        OUTBOX.add_many(connection, [Message("1", type="t", topic=topic, id=uuid4()) for topic in TOPICS])
        for number, pattern in enumerate(PATTERNS):
            for kind, filter in enumerate((SinkFilter(topics=[pattern, "x.y"]), SinkFilter(exclude_topics=[pattern]))):
                sink = f"{number} {kind}"
                connection.execute("insert into postroad_sinks (sink, filter) values (?, ?)", (sink, filter.text))
                rows = connection.execute(
                    "select topic from postroad_taken t join postroad_outbox o on o.position = t.position "
                    "where t.sink = ?",
                    (sink,),
                )
                python = {topic for topic in TOPICS if takes(filter.text, topic, "t", "{}")}
                assert {topic for (topic,) in rows} == python, filter
