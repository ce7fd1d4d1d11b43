"""Relays and consumers that are started before their database: they wait for it, but not for what never comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroad import Consumer, Outbox, Received
from postroad.brokers.memory import MemoryQueue
from postroad.stores.postgresql import migrate_postgresql
from tests.conftest import serving
from tests.consumers import Numbered
from tests.destinations import consumed
from tests.logs import connected
from tests.places import EVERY_POSTGRESQL, transactions
from tests.scenarios.test_consumers import Service, has_effects, order, put, rows, services, until
from tests.services.postgresql import PostgreSQL

WAITING = "waiting for the database"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """One of its own, because it is stopped."""
    with serving(lambda: PostgreSQL(15, durable=False)) as server:
        yield server


@pytest.fixture
async def database(server: PostgreSQL) -> str:
    server.start()
    url = server.create_database()
    await migrate_postgresql(url)
    await rows(url, 'create table effects ("order" int, attempt int)')
    return url


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with services(tmp_path) as start:
        yield start


def relay(start: Callable[..., Service], database: str, to: str, *options: str, **environment: str) -> Service:
    return start("relay", "--database", database, "--to", to, *options, **environment)


def consumer(start: Callable[..., Service], database: str, broker: str, *options: str, driver: str) -> Service:
    app = ("consume", "--app", "tests.scenarios.silent_service:consumer", *options)
    return start(*app, SERVICE_DATABASE=database, SERVICE_BROKER=broker, SERVICE_DRIVER=driver)


def refusing(server: PostgreSQL) -> None:
    """Start the server as a standby that takes no connections: it says what one says that is starting."""
    server.stop()
    (server.data / "standby.signal").touch()
    settings = "-c hot_standby=off -c restore_command=false"
    server.run("pg_ctl", "start", "--no-wait", "-D", str(server.data), "-l", str(server.log), "-o", settings)


def accepting(server: PostgreSQL) -> None:
    server.stop("immediate")
    (server.data / "standby.signal").unlink(missing_ok=True)
    server.start()


@pytest.mark.parametrize("state", ["stopped", "starting up"])
async def test_a_relay_waits_until_the_database_is_there(
    server: PostgreSQL, database: str, vhost: str, start: Callable[..., Service], state: str
) -> None:
    await put(vhost, "orders")  # a queue that is bound
    await add_one(database)
    (server.stop if state == "stopped" else lambda: refusing(server))()
    services = [relay(start, database, vhost), relay(start, database, "null://", "--sink", "other", "--until-empty")]
    for service in services:
        await until(lambda service=service: says(service, WAITING))  # type: ignore[misc]
    assert [service.process.poll() for service in services] == [None, None]
    accepting(server)
    await until(lambda: arrived(vhost))
    assert services[1].process.wait(60) == 0, "it delivered all messages"
    code, _ = services[0].stop()
    assert code == 0
    for service in services:
        assert_said_at_growing_intervals(service)
        assert "started, to" in service.output()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "async-session"])
async def test_a_consumer_waits_until_the_database_is_there(
    server: PostgreSQL, database: str, vhost: str, start: Callable[..., Service], driver: str
) -> None:
    await put(vhost, "alone", order(1))
    server.stop()
    service = consumer(start, database, vhost, driver=driver)
    await until(lambda: says(service, WAITING))
    assert service.process.poll() is None
    server.start()
    await until(lambda: has_effects(database, [1]))
    code, _ = service.stop()
    assert code == 0
    assert_said_at_growing_intervals(service)


async def test_every_kind_of_consumer_waits_while_the_server_is_starting_up(
    server: PostgreSQL, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(server)
    await until(lambda: is_starting_up(database))
    try:
        for name in EVERY_POSTGRESQL:
            caplog.clear()
            begin, _, is_async = transactions(name, database)
            it: Consumer[Any] = Consumer(MemoryQueue(), name="stock", begin=begin)
            it.on(Numbered)(handle if is_async else handle_sync)
            running = asyncio.create_task(it.run())
            await until(lambda running=running: waits(running, caplog))  # type: ignore[misc]
            assert "the database system is" in caplog.text, name
            it.stop()
            async with asyncio.timeout(60):
                await running
    finally:
        accepting(server)


async def handle(event: Numbered, tx: Any, message: Received) -> None: ...
def handle_sync(event: Numbered, tx: Any, message: Received) -> None: ...


async def waits(running: asyncio.Task[Any], caplog: pytest.LogCaptureFixture) -> bool:
    assert not running.done(), running.exception()
    return WAITING in caplog.text


async def is_starting_up(url: str) -> bool:
    try:
        await (await asyncpg.connect(url)).close()
    except asyncpg.CannotConnectNowError:
        return True
    except OSError:
        return False
    raise AssertionError("it takes connections")


async def test_what_waits_can_be_stopped_and_gives_up_when_it_is_to_end(
    server: PostgreSQL, database: str, vhost: str, start: Callable[..., Service]
) -> None:
    server.stop()
    waiting = [relay(start, database, vhost), consumer(start, database, vhost, driver="asyncpg")]
    ending = relay(start, database, vhost, "--until-empty", POSTROAD_UNTIL_EMPTY_TIMEOUT="1s")
    assert ending.process.wait(60) == 1
    assert (
        "gave up after waiting 1 s (until_empty_timeout) for the database: PostgreSQL at 127.0.0.1:" in ending.output()
    )
    for service in waiting:
        await until(lambda service=service: says(service, WAITING))  # type: ignore[misc]
        code, _ = service.stop()
        assert code == 0


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        ("missing database", "does not exist"),
        ("unknown role", "does not exist"),
        ("wrong password", "password authentication failed"),
        ("no schema", "migrate"),
    ],
)
async def test_what_no_waiting_mends_ends_them_at_once(
    guarded: PostgreSQL, vhost: str, start: Callable[..., Service], mistake: str, answer: str
) -> None:
    url = {
        "missing database": guarded.url("no_such"),
        "unknown role": guarded.url(user="stranger"),
        "wrong password": guarded.url(user="shop:battery-staple"),
        "no schema": guarded.create_database(),
    }[mistake]
    drivers = ("asyncpg", "psycopg", "async-session")
    started = [relay(start, url, vhost), *(consumer(start, url, vhost, driver=driver) for driver in drivers)]
    for service in started:
        assert await asyncio.to_thread(service.process.wait, 60) == 1, service.output()
        assert answer in service.output()
        assert WAITING not in service.output()
        assert "Traceback" not in service.output()


def assert_said_at_growing_intervals(service: Service) -> None:
    """At once, after 10 seconds, after 30 and after 70; a test waits no longer than a minute."""
    assert 1 <= service.output().count(WAITING) <= 3


async def says(service: Service, text: str) -> bool:
    assert service.process.poll() is None, service.output()
    return text in service.output()


async def arrived(vhost: str) -> bool:
    return len(await consumed(vhost, "orders")) == 1


async def add_one(database: str) -> None:
    async with connected(database) as connection, connection.transaction():
        await Outbox(source="/x").add(connection, {"order": 1}, type="order.created")
