"""What watching costs: no viewer, no query; fifty viewers, as many queries as one. On a real server, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from postroad.admin import Admin, By
from postroad.console import Console, Role, User
from tests.consoles import url_of
from tests.contracts.test_admin import admin_of, run_relay
from tests.logs import Arrivals, Log, PostgreSQLLog, log_fixture, numbered

log = log_fixture("sqlite", "postgresql15", "postgresql18")


@pytest.fixture
async def admin(log: Log) -> AsyncIterator[Admin]:
    async with admin_of(log) as admin:
        yield admin


@asynccontextmanager
async def serving(log: Log) -> AsyncIterator[tuple[Console, httpx.AsyncClient]]:
    console = Console({"log": url_of(log)}, auth=lambda _: User("anna", Role.VIEWER))
    config = uvicorn.Config(console, port=0, log_config=None, ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serve = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=60) as client:
            yield console, client
    finally:
        server.should_exit = True
        await asyncio.wait_for(serve, 60)


def poller_of(console: Console) -> Any:
    return console._shared.databases["log"].poller


def counted(console: Console) -> list[int]:
    """Counts the looks at the database."""
    poller, looks = poller_of(console), [0]
    look = poller._look

    async def counting(last: Any) -> Any:
        looks[0] += 1
        return await look(last)

    poller._look = counting
    return looks


async def next_event(lines: AsyncIterator[str]) -> str:
    """The data of the next event that has some."""
    data: list[str] = []
    async with asyncio.timeout(60):
        async for line in lines:
            if line.startswith("data: "):
                data.append(line.removeprefix("data: "))
            elif not line and data:
                return "\n".join(data)
    raise AssertionError("the stream has ended")


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a poller has no event for tests
            await asyncio.sleep(0.01)


async def test_a_change_arrives_in_pages_that_are_open(log: Log, admin: Admin) -> None:
    await log.add(*numbered(1))
    await run_relay(log, Arrivals())
    async with serving(log) as (_, client), client.stream("GET", "/log/live/now") as stream:
        lines = stream.aiter_lines()
        assert "no relay is running" in (await next_event(lines)).lower()
        await admin.pause("default", By("ben", "an upgrade"))
        while "Paused, by ben" not in (text := await next_event(lines)):
            pass
        assert "<html" not in text


async def test_fifty_viewers_cost_what_one_does(log: Log) -> None:
    async with serving(log) as (console, client):
        looks, poller = counted(console), poller_of(console)
        assert (poller.viewers, poller._task) == (0, None)
        async with AsyncExitStack() as viewers:
            streams = [await viewers.enter_async_context(client.stream("GET", "/log/live/now")) for _ in range(50)]
            lines = [stream.aiter_lines() for stream in streams]  # a stream ends with its lines
            texts = [await next_event(each) for each in lines]
            assert len(set(texts)) <= 2  # a stream may begin with a later look
            assert poller.viewers == 50
            before = looks[0]
            start = asyncio.get_running_loop().time()
            await until(lambda: looks[0] >= before + 2)
            assert looks[0] <= before + 2 + (asyncio.get_running_loop().time() - start)
        await until(lambda: poller.viewers == 0)
        assert poller._task is None
        silent = looks[0]
        await asyncio.sleep(poller._seconds * 2)  # the time in which a poller that runs would have looked twice
        assert looks[0] == silent


async def test_pages_that_are_loaded_together_share_a_look(log: Log) -> None:
    async with serving(log) as (console, client):
        looks = counted(console)
        poller_of(console)._seconds = 60
        pages = await asyncio.gather(*(client.get("/log/") for _ in range(20)))
        assert {page.status_code for page in pages} == {200}
        assert looks == [1]


async def test_a_look_is_the_same_statements_for_any_number_of_viewers(postgresql15: Any) -> None:
    """Without a viewer there is none, and with fifty there are as many as with one."""
    log = await PostgreSQLLog.fresh(postgresql15)
    try:
        async with serving(log) as (console, client):
            database = console._shared.databases["log"]
            admin = await database.admin()
            asked = [0]
            read = admin._database.read

            def counting() -> Any:
                asked[0] += 1
                return read()

            admin._database.read = counting  # type: ignore[method-assign]
            looks = counted(console)
            async with AsyncExitStack() as viewers:
                for _ in range(50):
                    await viewers.enter_async_context(client.stream("GET", "/log/live/lanes"))
                await until(lambda: looks[0] >= 3)
            per_look = asked[0] / looks[0]
            assert per_look <= 3  # status, relays and audit, each on one connection
            await until(lambda: database.poller.viewers == 0)
            asked[0] = 0
            await asyncio.sleep(database.poller._seconds * 2)  # as above
            assert asked == [0]
    finally:
        await log.close()


async def test_a_stream_ends_with_the_console(log: Log) -> None:
    async with serving(log) as (console, client), client.stream("GET", "/log/live/now") as stream:
        lines = stream.aiter_lines()
        await next_event(lines)
        await console.close()
        async with asyncio.timeout(60):
            async for _ in lines:
                pass
