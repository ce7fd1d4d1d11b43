"""kafka_inbox: how fast records of Kafka have their effect in PostgreSQL, once each, beside a loop by hand.

All take turns on one broker and one server, round after round, each with a fresh database, a group of its own and the
same messages; a ratio is taken within a round.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from benchmarks.backlog import create_log
from benchmarks.consuming import BATCHES, EFFECTS_ALONE, HEADER, SHARED, SINGLE, describe, shares
from benchmarks.inbox_process import AT_ONCE, BATCH, PREFETCH, TOGETHER
from benchmarks.process import Broken, Outcome, Process
from benchmarks.rabbitmq_yardsticks import in_pages, stored
from benchmarks.sections import Plan, Section, median
from postroad.brokers.kafka.publisher import KafkaPublisher
from postroad.brokers.kafka.settings import PublisherSettings
from tests.services.kafka import FULL_SPEED, Kafka
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from postroad.message import StoredMessage
    from tests.services.postgresql import PostgreSQL

BY_HAND = "confluent-kafka and asyncpg by hand"
WAYS = {BY_HAND: "by-hand", SINGLE: "single", SHARED: "shared", BATCHES: "batch"}
PARTITIONS = 4
KEYS = 1000


def run(server: PostgreSQL, plan: Plan) -> Section:
    messages = plan.size(60_000, quick=2_000)
    section = Section(
        "kafka_inbox",
        f"{messages:,} messages from Kafka, each with one effect in PostgreSQL, in order per key",
        HEADER,
    )
    try:
        broker = Kafka(java_options=FULL_SPEED)
    except ServerMissing as missing:
        section.notes.append(f"Left out: {missing}")
        return section
    turns: dict[str, list[Outcome]] = {name: [] for name in (*WAYS, EFFECTS_ALONE)}
    with broker:
        topic = broker.create_topic(partitions=PARTITIONS)
        asyncio.run(_fill(broker.url(), topic, messages))
        for _ in range(plan.rounds(5)):
            for name, way in WAYS.items():
                turns[name].append(_turn(server, broker, topic, way, messages))
            turns[EFFECTS_ALONE].append(_effects_alone(server, messages))
    describe(section, turns, by_hand=BY_HAND)
    aims = {"a handler per message": (SINGLE, 1), f"{TOGETHER} per transaction": (SHARED, 3), "batches": (BATCHES, 8)}
    for what, (name, times) in aims.items():
        measured = median(shares(turns, name, BY_HAND))
        section.at_least(f"times as fast as by hand, {what}", times, measured, "{:.2f}")
    section.notes.append(
        f"{PARTITIONS} partitions, {KEYS:,} keys, {AT_ONCE} transactions at once, {PREFETCH:,} messages of a partition "
        f"held, batches of up to {BATCH}; the time is that from the first effect to the last commit"
    )
    return section


def _turn(server: PostgreSQL, broker: Kafka, topic: str, way: str, messages: int) -> Outcome:
    group = f"{way}-{uuid4().hex[:8]}"
    broker.create_topic(f"{group}.dead")
    return _measured(server, messages, "kafka_inbox_process", broker.bootstrap, topic, group, way)


def _effects_alone(server: PostgreSQL, messages: int) -> Outcome:
    return _measured(server, messages, "inbox_process", "no broker", "effects")


def _measured(server: PostgreSQL, messages: int, module: str, *arguments: str) -> Outcome:
    database = create_log(server)
    server.psql(database, "create table effects (number int)")
    with Process(module, database, *arguments, str(messages)) as process:
        process.say()
        outcome = process.outcome()
    effects = int(server.psql(database, "select count(*) from effects"))
    if effects != messages:
        raise Broken(f"{arguments[-1]}: {effects:,} effects of {messages:,} messages")
    server.drop_database(database)
    return outcome


async def _fill(broker: str, topic: str, messages: int) -> None:
    publisher = KafkaPublisher(broker, PublisherSettings(topic=topic))
    await publisher.open()
    for page in in_pages([numbered(number) for number in range(1, messages + 1)]):
        if await publisher.publish(page):
            raise Broken("Kafka did not take the messages")
    await publisher.close()


def numbered(number: int) -> StoredMessage:
    message = stored(number)
    payload = message.payload.rstrip(b"}") + b',"number":%d}' % number
    return msgspec.structs.replace(message, payload=payload, key=str(number * 7919 % KEYS))
