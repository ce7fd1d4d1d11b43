"""A broker that refuses the login: it ends what is being started, and is an outage for what has run."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from yarl import URL

from tests.logs import PostgreSQLLog
from tests.queues import arrivals, with_queue
from tests.relays import relay
from tests.scenarios.test_consumers import Service, fresh, has_effects, order, put, services, until
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.traffic import Traffic

SECRET, OTHER = "correct-horse", "battery-staple"
REFUSED = "the login was refused; check username and password"


class User:
    """A user of a virtual host, whose password can be changed."""

    def __init__(self, rabbitmq: RabbitMQ, vhost: str) -> None:
        self._ctl = rabbitmq.ctl
        self._name = f"user-{uuid.uuid4().hex[:8]}"
        self._vhost = URL(vhost).path[1:]
        self.url = str(URL(vhost).with_user(self._name).with_password(SECRET))
        self._ctl("add_user", self._name, SECRET)
        self._ctl("set_permissions", "-p", self._vhost, self._name, ".*", ".*", ".*")

    def lose_login(self) -> None:
        """Give it another password, and end its connections."""
        self._ctl("change_password", self._name, OTHER)
        self._ctl("close_all_connections", "-p", self._vhost, "the password was changed")

    def regain_login(self) -> None:
        self._ctl("change_password", self._name, SECRET)

    def delete(self) -> None:
        self._ctl("delete_user", self._name)


@pytest.fixture
def user(rabbitmq: RabbitMQ, vhost: str) -> Iterator[User]:
    user = User(rabbitmq, vhost)
    yield user
    user.delete()


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    async with fresh(postgresql15, 'create table effects ("order" int, attempt int)') as url:
        yield url


@pytest.fixture
def start(tmp_path: Path, database: str) -> Iterator[Callable[..., Service]]:
    """Starts a relay or a consumer of a broker."""
    with services(tmp_path) as start:
        app = ("--app", "tests.scenarios.services:alone")

        def started(command: str, broker: str, *options: str) -> Service:
            options = ("--to", broker, *options) if command == "relay" else (*app, *options)
            return start(
                command, *options, SERVICE_DATABASE=database, SERVICE_BROKER=broker, POSTROAD_DATABASE=database
            )

        yield started


@pytest.mark.parametrize("options", [(), ("--until-empty",)])
@pytest.mark.parametrize("command", ["relay", "consume"])
def test_what_is_being_started_ends(
    start: Callable[..., Service], vhost: str, command: str, options: tuple[str, ...]
) -> None:
    service = start(command, vhost.replace("guest:guest", f"guest:{OTHER}"), *options)
    assert service.process.wait(60) == 1
    last = service.output().splitlines()[-1]
    assert last.startswith("postroad: ")
    assert REFUSED in last
    assert OTHER not in service.output()
    assert "Traceback" not in service.output()


async def test_a_relay_that_has_run_waits(postgresql15: PostgreSQL, vhost: str, user: User, tmp_path: Path) -> None:
    log = await PostgreSQLLog.fresh(postgresql15)
    await with_queue(vhost)
    traffic = Traffic(100, 10)
    await traffic.add_to(log)
    with relay(log, user.url, tmp_path / "log", "--outage-backoff", "200ms") as running:
        await running.until(published=100)
        async with traffic.growing(log):
            user.lose_login()
            await running.until_logged("broker_unavailable", REFUSED)  # when the outage is reported again
            user.regain_login()
            await running.until_logged("broker_recovered")
        await running.until(published=traffic.count)
        assert await running.ended_by(signal.SIGTERM) == 0
    assert await log.attempts() == []
    traffic.check(await arrivals(vhost))


async def test_a_consumer_that_has_run_waits(
    start: Callable[..., Service], database: str, vhost: str, user: User
) -> None:
    await put(vhost, "alone", order(1))
    service = start("consume", user.url)
    await until(lambda: has_effects(database, [1]))
    user.lose_login()
    await put(vhost, "alone", order(2))
    await until(lambda: says(service, REFUSED))  # when the outage is reported again
    user.regain_login()
    await until(lambda: has_effects(database, [1, 2]))
    assert service.stop()[0] == 0


async def says(service: Service, text: str) -> bool:
    assert service.process.poll() is None, service.output()
    return text in service.output()
