"""Consumers as processes, killed at the worst moments: each message has one effect, and what can't be handled ends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from postroad import Outbox
from postroad.brokers.rabbitmq.publisher import RabbitMQPublisher
from postroad.message import StoredMessage
from postroad.stores.postgresql import migrate_postgresql
from tests.destinations import consumed, rabbitmq_channel, stored
from tests.logs import connected
from tests.services.postgresql import PostgreSQL

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 120


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    async with fresh(postgresql15, 'create table effects ("order" int, attempt int)') as url:
        yield url


@asynccontextmanager
async def fresh(server: PostgreSQL, *statements: str) -> AsyncIterator[str]:
    server.start()
    url = server.create_database()
    await migrate_postgresql(url)
    for statement in statements:
        await rows(url, statement)
    yield url
    server.drop_database(url)


async def rows(url: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *values)]
    finally:
        await connection.close()


class Service:
    """A process of `postroad`, and what it says."""

    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        self._log = log
        self.killed = 0
        self._command = [sys.executable, "-m", "postroad", *arguments]
        self._environment = os.environ | environment
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def kill(self) -> None:
        self.end()
        self.killed += 1

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> tuple[int, str]:
        """Ask it to end; its exit code and summary."""
        self.process.send_signal(signal.SIGTERM)
        stdout, _ = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, stdout

    def output(self) -> str:
        return self._log.read_text()


@pytest.fixture
def consume(tmp_path: Path, database: str, vhost: str) -> Iterator[Callable[..., Service]]:
    """Starts `postroad consume` for a consumer in services.py."""
    with services(tmp_path) as start:

        def consume(app: str, *arguments: str, **environment: str) -> Service:
            where = {"SERVICE_DATABASE": database, "SERVICE_BROKER": vhost, "SERVICE_HALTED": str(tmp_path / "halted")}
            arguments = ("consume", "--app", f"tests.scenarios.services:{app}", "--log-level", "debug", *arguments)
            return start(*arguments, **where, **environment)

        yield consume


@contextmanager
def services(folder: Path) -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(*arguments: str, **environment: str) -> Service:
        started.append(Service(folder / f"log-{len(started)}", *arguments, **environment))
        return started[-1]

    try:
        yield start
    finally:
        for service in started:
            service.end()


async def until(done: Callable[[], Awaitable[bool]], seconds: float = WAIT_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not await done():  # noqa: ASYNC110 - it is another process that gets it done
            await asyncio.sleep(0.02)


async def put(vhost: str, queue: str, *messages: StoredMessage) -> None:
    """Into the queue, once for each time that a message is given."""
    async with rabbitmq_channel(vhost) as channel:
        ordered: Any = {"x-single-active-consumer": True} if queue != "shared" else {}
        there = await channel.declare_queue(queue, durable=True, arguments=ordered)
        exchange = await channel.declare_exchange("postroad", "topic", durable=True)
        await there.bind(exchange, "order.created")
    publisher = RabbitMQPublisher(vhost)
    assert not await publisher.publish(messages)
    await publisher.close()


def order(number: int, poison: str = "", **fields: Any) -> StoredMessage:
    payload = b'{"order":%d,"poison":"%s"}' % (number, poison.encode())
    return stored(number, **({"payload": payload, "key": str(number)} | fields))


async def effects(database: str) -> list[int]:
    return [row[0] for row in await rows(database, 'select "order" from effects order by 1')]


async def left(vhost: str, queue: str) -> int:
    async with rabbitmq_channel(vhost) as channel:
        return (await channel.declare_queue(queue, passive=True)).declaration_result.message_count or 0


# -- one effect ------------------------------------------------------------------------------------------------------


async def test_one_message_delivered_a_thousand_times_to_four_processes(
    consume: Callable[..., Service], database: str, vhost: str
) -> None:
    running = [consume("shared") for _ in range(4)]
    await until(lambda: ready(vhost, "shared", consumers=4))
    await put(vhost, "shared", *[order(1)] * 1000)
    await until(lambda: logged(running, 1000))
    ended = [service.stop() for service in running]
    assert [code for code, _ in ended] == [0] * 4
    assert await effects(database) == [1]
    assert await rows(database, "select count(*) from postroad.inbox") == [(1,)]
    handled = [service.output().count(HANDLED) for service in running]
    duplicates = [service.output().count(DUPLICATE) for service in running]
    assert (sum(handled), sum(duplicates)) == (1, 999)
    assert all(duplicates), "each of them had its share"
    assert await left(vhost, "shared") == 0


HANDLED, DUPLICATE = " handled order.created ", " was processed before"


async def logged(running: list[Service], count: int) -> bool:
    return sum(service.output().count(HANDLED) + service.output().count(DUPLICATE) for service in running) == count


async def ready(vhost: str, queue: str, *, consumers: int) -> bool:
    async with rabbitmq_channel(vhost) as channel:
        try:
            declared = (await channel.declare_queue(queue, passive=True)).declaration_result
        except Exception:  # it is not there yet
            return False
        return declared.consumer_count == consumers


async def until_given_back(vhost: str, queue: str) -> None:
    """Until the broker has noticed that a process was killed: only then are its messages in the queue again."""
    await until(lambda: ready(vhost, queue, consumers=0))


async def empty(vhost: str, queue: str) -> bool:
    return await left(vhost, queue) == 0


@pytest.mark.parametrize("together", ["1", "50"])
@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
async def test_a_kill_around_the_commit_leaves_one_effect(
    consume: Callable[..., Service], database: str, vhost: str, tmp_path: Path, *, moment: str, together: str
) -> None:
    await put(vhost, "alone", order(1), order(2))
    victim = consume("alone", SERVICE_STOPS=moment, SERVICE_TOGETHER=together)
    await until(lambda: exists(tmp_path / "halted"))
    victim.kill()
    await until_given_back(vhost, "alone")
    assert bool(await effects(database)) == (moment == "after_commit")
    assert consume("alone", "--until-empty", SERVICE_TOGETHER=together).process.wait(WAIT_SECONDS) == 0
    assert await effects(database) == [1, 2]
    assert await left(vhost, "alone") == 0


async def exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - of a file system in memory


async def has_effects(database: str, wanted: list[int]) -> bool:
    return await effects(database) == wanted


async def test_a_handler_that_fails_three_times(consume: Callable[..., Service], database: str, vhost: str) -> None:
    await put(vhost, "alone", order(1, "fails three times"), order(2))
    service = consume("alone", "--until-empty")
    assert service.process.wait(WAIT_SECONDS) == 0
    assert await rows(database, 'select "order", attempt from effects order by 1') == [(1, 4), (2, 1)]
    visible = "select attempts, crashes, running, dead_at, error from postroad.inbox_attempts"
    assert await rows(database, visible) == [(3, 0, False, None, "LookupError: attempt 3")]


async def test_attempts_survive_a_kill(
    consume: Callable[..., Service], database: str, vhost: str, tmp_path: Path
) -> None:
    await put(vhost, "alone", order(1, "fails three times"))
    first = consume("alone", SERVICE_STOPS="second_attempt")
    await until(lambda: exists(tmp_path / "halted"))
    first.kill()
    await until_given_back(vhost, "alone")
    second = consume("alone", "--until-empty")
    assert second.process.wait(WAIT_SECONDS) == 0
    assert await rows(database, 'select "order", attempt from effects') == [(1, 4)]
    assert [service.output().count(" failed, attempt ") for service in (first, second)] == [1, 2]


@pytest.mark.parametrize("together", ["1", "50"])
async def test_a_handler_that_kills_its_process_every_time_ends_among_the_dead_letters(
    consume: Callable[..., Service], database: str, vhost: str, together: str
) -> None:
    innocent = [order(number) for number in range(2, 30)]
    await put(vhost, "alone", order(1, "kills"), *innocent)
    deaths = 0
    for _ in range(12):
        service = consume("alone", "--until-empty", SERVICE_TOGETHER=together)
        if service.process.wait(WAIT_SECONDS) != -signal.SIGKILL:
            break
        await until_given_back(vhost, "alone")
        deaths += 1
    assert deaths == 6, "once before anything is known, and five attempts"
    assert await effects(database) == list(range(2, 30)), "no other message is blamed"
    (dead,) = await consumed(vhost, "alone.dead")
    assert dead.headers["postroad-reason"] == "the process ended while the handler ran, 5 times"
    assert UUID(dead.message_id) == UUID(str(dead.headers["ce-id"]))
    found = "select attempts, crashes from postroad.inbox_attempts where dead_at is not null"
    assert await rows(database, found) == [(5, 5)]
    assert await left(vhost, "alone") == 0


async def test_a_stop_gives_back_what_was_not_begun(
    consume: Callable[..., Service], database: str, vhost: str, tmp_path: Path
) -> None:
    await put(vhost, "shared", *map(order, range(1, 21)))
    service = consume("shared", SERVICE_STOPS="before_commit")
    await until(lambda: exists(tmp_path / "halted"))
    await until(lambda: has_left(vhost, "shared", 0))  # all of them are with the consumer
    service.process.send_signal(signal.SIGTERM)
    await until(lambda: has_left(vhost, "shared", 10))  # the other ten are being handled
    service.kill()
    await until_given_back(vhost, "shared")
    assert consume("shared", "--until-empty").process.wait(WAIT_SECONDS) == 0
    assert await effects(database) == list(range(1, 21))


async def test_after_a_stop_no_handler_begins(
    consume: Callable[..., Service], database: str, vhost: str, tmp_path: Path
) -> None:
    """Where order is to be kept, one who stands by has nothing until the messages that are under way have ended."""
    await put(vhost, "alone", *(order(number, key="one") for number in range(1, 21)))
    service = consume("alone", SERVICE_STOPS="before_commit", SERVICE_GRACE="1s")
    await until(lambda: exists(tmp_path / "halted"))
    consume("alone")
    await until(lambda: ready(vhost, "alone", consumers=2))
    assert service.stop()[0] == 0
    await until(lambda: has_effects(database, list(range(1, 21))))
    seen = await rows(database, 'select "order" from effects order by ctid')
    assert [row[0] for row in seen] == list(range(1, 21))


async def has_left(vhost: str, queue: str, count: int) -> bool:
    return await left(vhost, queue) == count


# -- a chain ---------------------------------------------------------------------------------------------------------

ORDERS = 150
KILLS = 16


async def test_three_services_in_a_chain_under_random_kills(
    postgresql15: PostgreSQL, vhost: str, tmp_path: Path
) -> None:
    """Every order is reserved and notified once, and the data tell which message led to which."""
    chance = random.Random(7)
    async with (
        fresh(postgresql15, "create table orders (id serial primary key)") as shop,
        fresh(postgresql15, 'create table reservations ("order" int, message text)') as stock,
        fresh(
            postgresql15, 'create table notifications ("order" int, message text, causation text, correlation text)'
        ) as mail,
    ):
        with services(tmp_path) as start:
            consumer = ("consume", "--app")
            relay = ("relay", "--sink", "rabbitmq", "--log-format", "json")
            where = {"SERVICE_BROKER": vhost, "POSTROAD_TO": vhost}
            app = "tests.scenarios.services"
            running = [
                start(*consumer, f"{app}:inventory", **where, SERVICE_DATABASE=stock),
                start(*consumer, f"{app}:notify", **where, SERVICE_DATABASE=mail),
            ]
            await until(lambda: ready(vhost, "inventory", consumers=1))
            await until(lambda: ready(vhost, "notify", consumers=1))
            running += [start(*relay, **where, POSTROAD_DATABASE=database) for database in (shop, stock)]
            placing = asyncio.create_task(place_orders(shop, ORDERS))
            for _ in range(KILLS):
                victim = chance.choice(running)
                await asyncio.sleep(chance.uniform(0, 0.4))  # the moments are what varies here
                victim.kill()
                victim.start()
            await placing
            await until(lambda: notified(mail, ORDERS), 2 * WAIT_SECONDS)
            await until(lambda: empty(vhost, "inventory"))
            await until(lambda: empty(vhost, "notify"))
            assert sum(service.killed for service in running) == KILLS
        await check_chain(shop, stock, mail)
        assert await left(vhost, "inventory.dead") == await left(vhost, "notify.dead") == 0


async def place_orders(shop: str, count: int) -> None:
    outbox = Outbox(source="/shop")
    async with connected(shop) as connection:
        for _ in range(count):
            async with connection.transaction():
                order = await connection.fetchval("insert into orders default values returning id")
                await outbox.add(
                    connection, {"order": order}, type="order.created", key=order, correlation_id=f"request-{order}"
                )
            await asyncio.sleep(0.02)


async def notified(mail: str, count: int) -> bool:
    return await rows(mail, 'select count(distinct "order") from notifications') == [(count,)]


async def check_chain(shop: str, stock: str, mail: str) -> None:
    key_and_id = "select key::int, id::text from postroad.outbox"
    created = dict(await rows(shop, key_and_id))
    reserved = dict(await rows(stock, key_and_id))
    caused = await rows(stock, "select id::text, headers->>'causation_id' from postroad.outbox")
    assert created.keys() == reserved.keys() == set(range(1, ORDERS + 1))
    reservations = await rows(stock, 'select "order", message from reservations')
    notifications = await rows(mail, 'select "order", message, causation, correlation from notifications')
    assert Counter(order for order, _ in reservations) == Counter(created.keys())
    assert Counter(order for order, *_ in notifications) == Counter(created.keys())
    assert dict(reservations) == created, "what was reserved is what was ordered"
    assert dict(caused) == {reserved[number]: created[number] for number in created}
    for number, message, causation, correlation in notifications:
        assert (message, causation, correlation) == (reserved[number], created[number], f"request-{number}")
