"""A database that goes silent under a consumer, as behind a router that has forgotten the connection.

A consumer that is told to stop ends nevertheless, and says what it leaves behind; that comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from postroad import Outbox
from tests.logs import connected
from tests.places import ON_POSTGRESQL
from tests.scenarios.test_consumers import (
    Service,
    effects,
    exists,
    fresh,
    left,
    order,
    put,
    services,
    until,
    until_given_back,
)
from tests.services.postgresql import PostgreSQL
from tests.services.proxy import Proxy

APP = ("consume", "--app", "tests.scenarios.silent_service:consumer")


@pytest.fixture
async def database(postgresql15: PostgreSQL) -> AsyncIterator[str]:
    async with fresh(postgresql15, 'create table effects ("order" int, attempt int)') as url:
        yield url


@pytest.mark.parametrize("driver", ON_POSTGRESQL)
async def test_a_consumer_ends_and_its_message_comes_again(
    database: str, vhost: str, tmp_path: Path, driver: str
) -> None:
    await put(vhost, "alone", order(1))
    environment = {"SERVICE_BROKER": vhost, "SERVICE_DRIVER": driver, "SERVICE_BUSY": str(tmp_path / "busy")}
    with services(tmp_path) as start:
        async with Proxy(urlsplit(database).port or 0) as proxy:
            service = start(*APP, SERVICE_DATABASE=proxy.url(database), SERVICE_ENDLESS="1", **environment)
            await until(lambda: exists(tmp_path / "busy"))
            proxy.go_silent()
            code, summary = await stopped(service)
        assert code == 0
        assert "0 handled" in summary
        answer = service.output()
        assert "1 handlers or statements did not end within grace (1 s) and a second" in answer
        assert "their messages are not acked, and will be delivered again" in answer
        assert "Traceback" not in answer
        await until_given_back(vhost, "alone")
        again = start(*APP, "--until-empty", SERVICE_DATABASE=database, **environment)
        assert again.process.wait(120) == 0
    assert await effects(database) == [1]
    assert await left(vhost, "alone") == 0


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_consumer_that_can_t_begin_can_be_stopped(
    database: str, vhost: str, tmp_path: Path, driver: str
) -> None:
    """The server takes the connection, and says nothing."""
    environment = {"SERVICE_BROKER": vhost, "SERVICE_DRIVER": driver}
    with services(tmp_path) as start:
        async with Silence() as silence:
            url = database.replace(f":{urlsplit(database).port}/", f":{silence.port}/")
            service = start(*APP, SERVICE_DATABASE=url, **environment)
            await silence.called()
            code, _ = await stopped(service)
    assert code == 0
    assert "Traceback" not in service.output()


@pytest.mark.parametrize("driver", ON_POSTGRESQL)
async def test_a_relay_with_its_handlers_ends_and_their_message_comes_again(
    database: str, tmp_path: Path, driver: str
) -> None:
    await add_one(database)
    relay = ("relay", "--database", database, *APP[1:])
    environment = {"SERVICE_DRIVER": driver, "SERVICE_BUSY": str(tmp_path / "busy")}
    with services(tmp_path) as start:
        async with Proxy(urlsplit(database).port or 0) as proxy:
            through = {"SERVICE_DATABASE": proxy.url(database), "SERVICE_ENDLESS": "1"}
            service = start(*relay, "--grace", "1s", **through, **environment)
            await until(lambda: exists(tmp_path / "busy"))
            proxy.go_silent()
            code, summary = await stopped(service)
        assert (code, summary[:11]) == (0, "0 published")
        assert "1 handlers or statements did not end within grace and a second" in service.output()
        assert "their messages are not confirmed, and will be handled again" in service.output()
        assert "Traceback" not in service.output()
        again = start(*relay, "--until-empty", SERVICE_DATABASE=database, **environment)
        assert again.process.wait(120) == 0
    assert await effects(database) == [1]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_relay_whose_handlers_can_t_begin_can_be_stopped(database: str, tmp_path: Path, driver: str) -> None:
    with services(tmp_path) as start:
        async with Silence() as silence:
            url = database.replace(f":{urlsplit(database).port}/", f":{silence.port}/")
            environment = {"SERVICE_DATABASE": url, "SERVICE_DRIVER": driver}
            service = start("relay", "--database", database, *APP[1:], **environment)
            await silence.called()
            code, _ = await stopped(service)
    assert code == 0
    assert "Traceback" not in service.output()


async def add_one(database: str) -> None:
    async with connected(database) as connection, connection.transaction():
        await Outbox(source="/tests").add(connection, {"order": 1}, type="order.created", key=1)


async def stopped(service: Service) -> tuple[int, str]:
    """In a thread, for the proxy's loop must go on."""
    return await asyncio.to_thread(service.stop)


class Silence:
    """A port that takes connections."""

    async def __aenter__(self) -> Self:
        self._called = asyncio.Event()
        self._writers: list[Any] = []
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def _take(self, _: Any, writer: Any) -> None:
        self._writers.append(writer)
        self._called.set()

    async def called(self) -> None:
        async with asyncio.timeout(60):
            await self._called.wait()
