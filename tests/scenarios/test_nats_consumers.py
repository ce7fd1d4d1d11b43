"""A relay, a cluster of three NATS servers, and consumers, as processes that are killed and frozen, with the stream's
leader killed underway: each key stays in order, each message has one effect, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from postroad import Outbox
from postroad.brokers.cloudevents import percent_decoded
from tests.destinations import jetstream_of
from tests.kafka_source import until
from tests.nats_source import stored
from tests.scenarios.services import OrderCreated
from tests.scenarios.test_consumers import WAIT_SECONDS, Service, fresh, rows, services
from tests.services.nats import NATS
from tests.services.postgresql import PostgreSQL

STEP = 400
KEYS = 40

outbox = Outbox(source="/shop")


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    """The ids of effects are in the order in which the transactions of a key were committed."""
    async with fresh(postgresql15, 'create table effects (id bigserial, "order" int, key text)') as url:
        yield url


@pytest.fixture
def stream() -> str:
    return f"scenario-{uuid4().hex[:8]}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with services(tmp_path) as start:
        yield start


async def add(database: str, first: int, count: int, poison: str = "") -> None:
    connection = await asyncpg.connect(database)
    for number in range(first, first + count):
        async with connection.transaction():
            event = OrderCreated(number, poison=poison)
            await outbox.add(connection, event, key=str(number * 7919 % KEYS), type="order.created")
    await connection.close()


async def until_effects(database: str, count: int) -> None:
    async def enough() -> bool:
        ((found,),) = await rows(database, "select count(*) from effects")
        return bool(found >= count)

    await until(enough, WAIT_SECONDS)


async def check(database: str, count: int) -> None:
    """One effect each, and those of a key in its order."""
    found = await rows(database, 'select "order", key from effects order by id')
    assert sorted(number for number, _ in found) == list(range(count))
    by_key: dict[str, list[int]] = defaultdict(list)
    for number, key in found:
        by_key[key].append(number)
    assert {key: numbers for key, numbers in by_key.items() if numbers != sorted(numbers)} == {}


async def test_each_key_stays_in_order_whatever_happens(
    start: Callable[..., Service], nats3: NATS, database: str, stream: str
) -> None:
    where = {
        "SERVICE_DATABASE": database,
        "SERVICE_NATS": nats3.url(),
        "SERVICE_STREAM": stream,
        "SERVICE_REPLICAS": "3",
    }
    to = ("--to", nats3.url(), "--nats-subject", f"{stream}.{{topic}}", "--outage-backoff", "200ms")

    def consume() -> Service:
        return start("consume", "--app", "tests.scenarios.nats_services:ledger", **where)

    def relay() -> Service:
        return start("relay", *to, POSTROAD_DATABASE=database)

    first, second = consume(), consume()
    relaying = relay()
    await add(database, 0, STEP)
    await until_effects(database, STEP // 2)
    first.kill()  # one of them is the active one
    await add(database, STEP, STEP)
    second.kill()
    relaying.kill()  # what it publishes again, the stream drops
    first.start()
    relaying.start()
    await until_effects(database, STEP + STEP // 2)
    async with jetstream_of(nats3) as jetstream:
        cluster = (await jetstream.stream_info(stream)).cluster
    assert cluster is not None
    await asyncio.to_thread(nats3.node(str(cluster.leader)).kill)
    second.start()
    await add(database, 2 * STEP, STEP)
    await until_effects(database, 2 * STEP + STEP // 2)
    await asyncio.to_thread(nats3.start)
    os.kill(first.process.pid, signal.SIGSTOP)  # longer than it may be silent: it does not know what it has lost
    await add(database, 3 * STEP, STEP)
    await asyncio.sleep(5)  # the time is what matters here: another process becomes the active one
    os.kill(first.process.pid, signal.SIGCONT)
    await until_effects(database, 4 * STEP)
    assert [service.stop()[0] for service in (first, second, relaying)] == [0, 0, 0]
    await check(database, 4 * STEP)
    assert await stored(nats3, f"{stream}-dead") == []
    ids = [headers["ce-id"] for _, headers in await stored(nats3, stream)]
    assert len(ids) == 4 * STEP, "each is stored once, though the relay was killed and the leader was lost"


async def test_a_handler_that_kills_its_process_every_time_ends_among_the_dead_letters(
    start: Callable[..., Service], nats: NATS, database: str, stream: str
) -> None:
    where = {"SERVICE_DATABASE": database, "SERVICE_NATS": nats.url(), "SERVICE_STREAM": stream}
    created = ("--nats-stream", stream, "--nats-declare", "create", "--nats-subject", f"{stream}.{{topic}}")
    await add(database, 0, 1, poison="kills")
    await add(database, 1, 20)
    relaying = start("relay", "--to", nats.url(), *created, "--until-empty", POSTROAD_DATABASE=database)
    assert relaying.process.wait(WAIT_SECONDS) == 0
    deaths = 0
    for _ in range(12):
        consuming = start("consume", "--app", "tests.scenarios.nats_services:ledger", "--until-empty", **where)
        if consuming.process.wait(WAIT_SECONDS) != -signal.SIGKILL:
            break
        deaths += 1
    assert deaths == 6, "once before anything is known, and five attempts"
    found = await rows(database, 'select "order" from effects order by 1')
    assert [number for (number,) in found] == list(range(1, 21)), "no other message is blamed"
    ((_, headers),) = await stored(nats, f"{stream}-dead")
    assert percent_decoded(headers)["postroad-reason"] == "the process ended while the handler ran, 5 times"
    assert int(headers["postroad-deliveries"]) > 5
