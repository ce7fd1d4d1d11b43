"""inbox: how fast messages of a RabbitMQ queue have their effect in PostgreSQL, once each, beside a loop by hand.

All take turns on one broker and one server, round after round, each with a fresh database and the same messages; a
ratio is taken within a round.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aio_pika
import msgspec

from benchmarks.backlog import create_log
from benchmarks.consuming import BATCHES, EFFECTS_ALONE, HEADER, SHARED, SINGLE, describe, shares
from benchmarks.inbox_process import AT_ONCE, BATCH, PREFETCH, QUEUE, TOGETHER
from benchmarks.process import Broken, Outcome, Process
from benchmarks.rabbitmq_yardsticks import EXCHANGE, in_pages, stored
from benchmarks.sections import Plan, Section, median
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.brokers.rabbitmq.settings import PublisherSettings
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from postroad.message import StoredMessage
    from tests.services.postgresql import PostgreSQL

BY_HAND = "aio-pika and asyncpg by hand"
WAYS = {BY_HAND: "by-hand", SINGLE: "single", SHARED: "shared", BATCHES: "batch", EFFECTS_ALONE: "effects"}


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(20_000, quick=2_000)
    section = Section(
        "inbox",
        f"{messages:,} messages from RabbitMQ, each with one effect in PostgreSQL",
        HEADER,
    )
    try:
        broker = RabbitMQ()
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    turns: dict[str, list[Outcome]] = {name: [] for name in WAYS}
    with broker:
        for _ in range(plan.rounds(5)):
            for name, way in WAYS.items():
                turns[name].append(_turn(server, broker.url(), way, messages))
    describe(section, turns, by_hand=BY_HAND)
    aims = {"a handler per message": (SINGLE, 1), f"{TOGETHER} per transaction": (SHARED, 3), "batches": (BATCHES, 5)}
    for what, (name, times) in aims.items():
        measured = median(shares(turns, name, BY_HAND))
        section.at_least(f"times as fast as by hand, {what}", times, measured, "{:.2f}")
    section.notes.append(
        f"{AT_ONCE} transactions at once, {PREFETCH:,} messages held, batches of up to {BATCH}; BEGIN, COMMIT and what "
        "asyncpg's pool sends are counted"
    )
    return section


def _turn(server: PostgreSQL, broker: str, way: str, messages: int) -> Outcome:
    database = create_log(server)
    server.psql(database, "create table effects (number int)")
    asyncio.run(_fill(broker, messages))
    with Process("inbox_process", database, broker, way, str(messages)) as process:
        process.say()
        outcome = process.outcome()
    effects = int(server.psql(database, "select count(*) from effects"))
    if effects != messages:
        raise Broken(f"{way}: {effects:,} effects of {messages:,} messages")
    server.drop_database(database)
    return outcome


async def _fill(broker: str, messages: int) -> None:
    """Let the messages wait in a queue of their own."""
    async with await aio_pika.connect(broker) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
        await channel.declare_queue(f"{QUEUE}.dead", durable=True)
        queue = await channel.declare_queue(QUEUE, durable=True)
        await queue.bind(exchange, "#")
        await queue.purge()
    publisher = RabbitMQPublisher(broker, PublisherSettings(exchange=EXCHANGE))
    for page in in_pages([_numbered(number) for number in range(1, messages + 1)]):
        if await publisher.publish(page):
            raise Broken("RabbitMQ did not take the messages")
    await publisher.close()


def _numbered(number: int) -> StoredMessage:
    message = stored(number)
    return msgspec.structs.replace(message, payload=message.payload.rstrip(b"}") + b',"number":%d}' % number)
