"""nats_inbox and redis_inbox: how fast messages of a NATS stream, or of a Redis Stream, have their effect in
PostgreSQL, once each, beside a loop by hand.

All take turns on one broker and one server, round after round, each with a fresh database, a durable consumer or a
group of its own, and the same messages; a ratio is taken within a round.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

from benchmarks.backlog import create_log
from benchmarks.consuming import BATCHES, HEADER, SHARED, SINGLE, describe
from benchmarks.inbox_process import AT_ONCE, BATCH, PREFETCH, TOGETHER
from benchmarks.kafka_inbox import KEYS, numbered
from benchmarks.process import Broken, Outcome, Process
from benchmarks.rabbitmq_yardsticks import in_pages
from benchmarks.sections import Plan, Section
from benchmarks.stream_inbox_process import STREAM
from postroad.brokers.nats.publisher import NATSPublisher
from postroad.brokers.nats.settings import PublisherSettings as NATSSettings
from postroad.brokers.redis.publisher import RedisPublisher
from postroad.brokers.redis.settings import PublisherSettings as RedisSettings
from tests.services.nats import NATS
from tests.services.redis import Redis
from tests.services.server import ServerMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroad.brokers.base import Publisher
    from tests.services.postgresql import PostgreSQL


def run_nats(server: PostgreSQL, plan: Plan) -> Section:
    def started(stack: ExitStack) -> tuple[str, Publisher]:
        url = stack.enter_context(NATS()).url()
        return url, NATSPublisher(url, NATSSettings(stream=STREAM, subject=STREAM, declare="create"))

    section = _section("nats_inbox", "NATS JetStream", plan)
    return _measured(section, server, plan, started, by_hand="nats-py and asyncpg by hand")


def run_redis(server: PostgreSQL, plan: Plan) -> Section:
    def started(stack: ExitStack) -> tuple[str, Publisher]:
        url = stack.enter_context(Redis(appendfsync="everysec")).url
        return url, RedisPublisher(url, RedisSettings(stream=STREAM))

    section = _section("redis_inbox", "a Redis Stream", plan)
    return _measured(section, server, plan, started, by_hand="redis-py and asyncpg by hand")


def _messages(plan: Plan) -> int:
    return plan.size(20_000, quick=2_000)


def _section(name: str, source: str, plan: Plan) -> Section:
    return Section(
        name,
        f"{_messages(plan):,} messages from {source}, each with one effect in PostgreSQL, in order per key",
        HEADER,
    )


def _measured(
    section: Section,
    server: PostgreSQL,
    plan: Plan,
    started: Callable[[ExitStack], tuple[str, Publisher]],
    *,
    by_hand: str,
) -> Section:
    messages = _messages(plan)
    ways = {by_hand: "by-hand", SINGLE: "single", SHARED: "shared", BATCHES: "batch"}
    turns: dict[str, list[Outcome]] = {each: [] for each in ways}
    with ExitStack() as stack:
        try:
            url, publisher = started(stack)
        except ServerMissing as missing:
            section.notes.append(f"Left out: {missing}")
            return section
        asyncio.run(_fill(publisher, messages))
        for _ in range(plan.rounds(5)):
            for each, way in ways.items():
                turns[each].append(_turn(server, url, way, messages))
    describe(section, turns, by_hand=by_hand)
    section.notes.append(
        f"{KEYS:,} keys, {AT_ONCE} transactions at once, {PREFETCH:,} messages held, batches of up to {BATCH}, "
        f"{TOGETHER} messages per transaction where they share one"
    )
    return section


def _turn(server: PostgreSQL, url: str, way: str, messages: int) -> Outcome:
    database = create_log(server)
    server.psql(database, "create table effects (number int)")
    name = f"{way}-{uuid4().hex[:8]}"
    with Process("stream_inbox_process", database, url, name, way, str(messages)) as process:
        process.say()
        outcome = process.outcome()
    effects = int(server.psql(database, "select count(*) from effects"))
    if effects != messages:
        raise Broken(f"{way}: {effects:,} effects of {messages:,} messages")
    server.drop_database(database)
    return outcome


async def _fill(publisher: Publisher, messages: int) -> None:
    await publisher.open()
    for page in in_pages([numbered(number) for number in range(1, messages + 1)]):
        if await publisher.publish(page):
            raise Broken(f"{publisher.name} did not take the messages")
    await publisher.close()
