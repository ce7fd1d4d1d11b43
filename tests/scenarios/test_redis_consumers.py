"""A relay, Redis, and consumers that share the partitions of a stream, as processes that are killed and frozen, with
Redis killed underway: each key stays in order, each message has one effect, and nothing is lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import serving
from tests.scenarios.redis_services import PARTITIONS
from tests.scenarios.test_consumers import WAIT_SECONDS, Service, fresh, rows, services
from tests.scenarios.test_nats_consumers import STEP, add, check, until_effects
from tests.services.postgresql import PostgreSQL
from tests.services.redis import Redis, Sentinel


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    async with fresh(postgresql15, 'create table effects (id bigserial, "order" int, key text)') as url:
        yield url


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with services(tmp_path) as start:
        yield start


async def test_each_key_stays_in_order_whatever_happens(
    start: Callable[..., Service], redis: Redis, database: str
) -> None:
    where = {"SERVICE_DATABASE": database, "SERVICE_REDIS": redis.url}
    to = ("--to", redis.url, "--redis-stream", "orders", "--redis-partitions", str(PARTITIONS))

    def consume() -> Service:
        return start("consume", "--app", "tests.scenarios.redis_services:ledger", **where)

    first, second = consume(), consume()
    relaying = start("relay", *to, "--outage-backoff", "200ms", POSTROAD_DATABASE=database)
    await add(database, 0, STEP)
    await until_effects(database, STEP // 2)
    first.kill()  # what it had not acked, the other one claims
    await add(database, STEP, STEP)
    relaying.kill()
    first.start()
    relaying.start()
    await until_effects(database, STEP + STEP // 2)
    await asyncio.to_thread(redis.kill)
    await add(database, 2 * STEP, STEP)
    await asyncio.to_thread(redis.start)
    await until_effects(database, 2 * STEP + STEP // 2)
    os.kill(first.process.pid, signal.SIGSTOP)  # longer than its lease: it does not know what it has lost
    await add(database, 3 * STEP, STEP)
    await asyncio.sleep(5)  # the time is what matters here: the other process takes over its partitions
    os.kill(first.process.pid, signal.SIGCONT)
    await until_effects(database, 4 * STEP)
    assert [service.stop()[0] for service in (first, second, relaying)] == [0, 0, 0]
    await check(database, 4 * STEP)
    assert redis.call("XLEN", "ledger.dead") == 0


async def test_consumers_and_a_relay_follow_a_failover_of_the_sentinels(
    start: Callable[..., Service], database: str
) -> None:
    """A confirm means here that the replica has the message, so nothing that was confirmed is lost with the master."""
    with ExitStack() as stack:
        master = stack.enter_context(serving(Redis))
        replica = stack.enter_context(serving(lambda: Redis(master=master)))
        sentinels = [stack.enter_context(serving(lambda: Sentinel(master, quorum=2))) for _ in range(3)]
        for each in sentinels:
            await asyncio.to_thread(each.until_ready, others=2)
        url = f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in sentinels)}/main"
        where = {"SERVICE_DATABASE": database, "SERVICE_REDIS": url}
        to = ("--to", url, "--redis-stream", "orders", "--redis-partitions", str(PARTITIONS), "--redis-replicas", "1")
        consuming = [start("consume", "--app", "tests.scenarios.redis_services:ledger", **where) for _ in range(2)]
        relaying = start("relay", *to, "--outage-backoff", "200ms", POSTROAD_DATABASE=database)
        await add(database, 0, STEP)
        await until_effects(database, STEP // 2)
        await asyncio.to_thread(master.kill)
        await asyncio.to_thread(sentinels[0].stop)  # the other two are a majority
        await add(database, STEP, STEP)
        await asyncio.to_thread(sentinels[1].until_master, replica)
        await asyncio.to_thread(master.start)  # the sentinels make a replica of it, and the relay can confirm again
        await until_effects(database, 2 * STEP)
        assert [service.stop()[0] for service in (*consuming, relaying)] == [0, 0, 0]
        await check(database, 2 * STEP)
        assert replica.call("XLEN", "ledger.dead") == 0


async def test_a_handler_that_kills_its_process_every_time_ends_among_the_dead_letters(
    start: Callable[..., Service], redis: Redis, database: str
) -> None:
    where = {"SERVICE_DATABASE": database, "SERVICE_REDIS": redis.url}
    to = ("--to", redis.url, "--redis-stream", "orders", "--redis-partitions", str(PARTITIONS))
    await add(database, 0, 1, poison="kills")
    await add(database, 1, 20)
    relaying = start("relay", *to, "--until-empty", POSTROAD_DATABASE=database)
    assert relaying.process.wait(WAIT_SECONDS) == 0
    for _ in range(12):
        consuming = start("consume", "--app", "tests.scenarios.redis_services:ledger", "--until-empty", **where)
        if consuming.process.wait(WAIT_SECONDS) != -signal.SIGKILL:
            break
    found = await rows(database, 'select "order" from effects order by 1')
    assert [number for (number,) in found] == list(range(1, 21)), "no other message is blamed"
    ((_, fields),) = redis.entries("ledger.dead")
    assert fields["postroad-reason"] == b"the process ended while the handler ran, 5 times"
