"""A `begin` that does not commit, or not roll back, is refused before the first message, whatever it gives."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import django
import psycopg
import pytest
from django.conf import settings
from django.db.utils import ConnectionHandler
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from postroad import Consumer, InvalidSetting, Received
from postroad.brokers.memory import MemoryQueue
from postroad.relay import Relay
from postroad.stores.grants import grants_script
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.consumers import Numbered, consumed, consumer, put
from tests.logs import PostgreSQLLog
from tests.places import Place, asyncpg_transactions, django_settings
from tests.services.postgresql import PostgreSQL


async def handle(event: Numbered, tx: Any, message: Received) -> None:
    raise AssertionError("no message may be handled")


def handle_sync(event: Numbered, tx: Any, message: Received) -> None:
    raise AssertionError("no message may be handled")


async def refused(begin: Any, *, is_async: bool, match: str) -> None:
    queue = MemoryQueue()
    it: Consumer[Any] = Consumer(queue, name="stock", begin=begin)
    it.on(Numbered)(handle if is_async else handle_sync)
    put(queue, 1)
    with pytest.raises(InvalidSetting, match=match) as error:
        await consumed(it)
    assert "begin" in str(error.value)
    assert len(queue.queue) == 1, "nothing was taken from the queue"


# -- on PostgreSQL ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def url(postgresql15: PostgreSQL) -> str:
    return (await PostgreSQLLog.fresh(postgresql15)).url


def engine(url: str, driver: str, **options: Any) -> Any:
    make = create_async_engine if driver.startswith("async") else create_engine
    return make(
        url.replace("postgresql:", f"postgresql+{driver.removeprefix('async-')}:"), poolclass=NullPool, **options
    )


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "async-psycopg"])
async def test_a_sessionmaker_is_refused(url: str, driver: str) -> None:
    is_async = driver.startswith("async")
    maker: Any = (async_sessionmaker if is_async else sessionmaker)(engine(url, driver))
    kind = "an async_sessionmaker" if is_async else "a sessionmaker"
    await refused(maker, is_async=is_async, match=f"begin is {kind}, which does not commit.* begin=Session.begin")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "async-psycopg"])
async def test_engine_connect_is_refused(url: str, driver: str) -> None:
    is_async = driver.startswith("async")
    match = "Engine.connect, which does not commit.* begin=engine.begin"
    await refused(engine(url, driver).connect, is_async=is_async, match=match)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_engine_in_autocommit_is_refused(url: str, driver: str) -> None:
    is_async = driver.startswith("async")
    autocommit = engine(url, driver, isolation_level="AUTOCOMMIT").begin
    await refused(autocommit, is_async=is_async, match="begin is .*Engine.begin: .*AUTOCOMMIT|autocommit mode")


async def test_a_scoped_session_is_refused(url: str) -> None:
    session = scoped_session(sessionmaker(engine(url, "psycopg")))
    await refused(lambda: nullcontext(session), is_async=False, match=r"<lambda>, which does not commit.*Session.begin")
    session.remove()


async def test_a_connection_without_a_transaction_is_refused(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=1) as pool:
        await refused(
            pool.acquire, is_async=True, match=r"Pool.acquire: .* in no transaction.*connection.transaction\(\)"
        )
    connect = partial(psycopg.connect, url, autocommit=True)
    await refused(connect, is_async=False, match="a partial of .*connect: .*autocommit mode")


async def test_a_connection_that_is_closed_without_a_commit_is_refused(url: str) -> None:
    @contextmanager
    def begin() -> Iterator[Any]:
        with closing(psycopg.connect(url)) as connection:
            yield connection

    @asynccontextmanager
    async def begin_async() -> AsyncIterator[Any]:
        connection = await psycopg.AsyncConnection.connect(url)
        yield connection
        await connection.close()

    await refused(begin, is_async=False, match=r"begin, which does not commit.*begin=pool.connection")
    await refused(begin_async, is_async=True, match=r"begin_async, which does not commit.*AsyncConnectionPool")


async def test_one_connection_for_all_that_never_commits_is_refused(url: str, tmp_path: Path) -> None:
    """What is looked for is not what the same transaction sees."""
    with psycopg.connect(url) as connection:
        await refused(lambda: nullcontext(connection), is_async=False, match="which does not commit")
    migrate_sqlite(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite", check_same_thread=False)) as lite:
        await refused(lambda: nullcontext(lite), is_async=False, match="which does not commit")


async def test_a_begin_that_commits_after_an_error_is_refused(url: str, tmp_path: Path) -> None:
    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await psycopg.AsyncConnection.connect(url)
        try:
            yield connection
        finally:
            await connection.commit()
            await connection.close()

    migrate_sqlite(tmp_path / "shop.sqlite")

    @contextmanager
    def begin_sync() -> Iterator[Any]:
        with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
            try:
                yield connection
            finally:
                connection.commit()

    await refused(begin, is_async=True, match="which commits also when it is left by an error")
    await refused(begin_sync, is_async=False, match="which commits also when it is left by an error")


async def test_one_that_gives_none_as_django_s_atomic_does_is_refused() -> None:
    match = r"<lambda>, which gives None.*with transaction.atomic\(\): yield"
    await refused(lambda: nullcontext(None), is_async=False, match=match)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_connections_of_django_that_don_t_commit_are_refused(url: str, tmp_path: Path, kind: str) -> None:
    migrate_sqlite(tmp_path / "shop.sqlite")
    if not settings.configured:
        settings.configure()
    django.setup()
    there = django_settings(url if kind == "postgresql" else tmp_path / "shop.sqlite")

    @contextmanager
    def connected(*, autocommit: bool) -> Iterator[Any]:
        connection = ConnectionHandler({"default": there})["default"]
        connection.set_autocommit(autocommit)
        with closing(connection):
            yield connection

    rolled_back = partial(connected, autocommit=False)
    await refused(rolled_back, is_async=False, match=r"which does not commit.*transaction.atomic\(\)")
    alone = partial(connected, autocommit=True)
    await refused(alone, is_async=False, match="Django's connection is in autocommit mode")


async def test_pools_are_taken(url: str) -> None:
    queue = MemoryQueue()
    async with AsyncConnectionPool(url, min_size=1, open=False) as pool:
        it: Consumer[Any] = Consumer(queue, name="stock", begin=pool.connection)
        it.on(Numbered)(handle)
        assert (await consumed(it)).handled == 0
    with ConnectionPool(url, min_size=1, open=True) as sync_pool:
        it = Consumer(queue, name="stock", begin=sync_pool.connection)
        it.on(Numbered)(handle_sync)
        assert (await consumed(it)).handled == 0


async def test_the_probe_needs_no_more_than_the_rights_of_an_application(url: str, postgresql15: PostgreSQL) -> None:
    postgresql15.execute(url, "drop role if exists prober; create role prober login")
    postgresql15.execute(url, grants_script("prober"))
    as_prober = url.replace("postgres@", "prober@")
    begin, _, _ = asyncpg_transactions(as_prober)
    it: Consumer[Any] = Consumer(MemoryQueue(), name="stock", begin=begin)
    it.on(Numbered)(handle)
    assert (await consumed(it)).handled == 0
    maker: Any = async_sessionmaker(engine(as_prober, "asyncpg"))
    await refused(maker, is_async=True, match="an async_sessionmaker, which does not commit")
    postgresql15.execute(url, "drop owned by prober; drop role prober")


# -- on SQLite, and everywhere ---------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    return tmp_path / "shop.sqlite"


async def test_connections_to_sqlite_that_don_t_commit_are_refused(path: Path) -> None:
    await refused(lambda: aiosqlite.connect(path), is_async=True, match=r"does not commit.*await connection.commit\(\)")
    await refused(lambda: closing(sqlite3.connect(path)), is_async=False, match="does not commit.*closing")
    lite: Any = sessionmaker(create_engine(f"sqlite:///{path}", poolclass=NullPool))
    await refused(lite, is_async=False, match="a sessionmaker, which does not commit")
    alite: Any = async_sessionmaker(create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool))
    await refused(alite, is_async=True, match="an async_sessionmaker, which does not commit")
    alone = partial(sqlite3.connect, path, isolation_level=None)
    await refused(alone, is_async=False, match="autocommit mode")


async def test_every_right_one_is_taken_and_nothing_of_the_probe_stays(every_place: Place, queue: MemoryQueue) -> None:
    it = consumer(every_place, queue)
    it.on(Numbered)(every_place.handler())
    put(queue, 1)
    assert (await consumed(it)).handled == 1
    assert len(await every_place.noted()) == 1


async def test_a_relay_refuses_it_too(path: Path) -> None:
    it: Consumer[Any] = Consumer(name="stock", begin=lambda: aiosqlite.connect(path))
    it.on(Numbered)(handle)
    with pytest.raises(InvalidSetting, match="which does not commit"):
        await Relay(SQLiteStore(path), it.publisher(), sink=it.name).run_until_empty()


async def test_no_secret_is_shown(path: Path) -> None:
    def connect(password: str) -> Any:
        return closing(sqlite3.connect(path))

    it: Consumer[Any] = Consumer(MemoryQueue(), name="stock", begin=partial(connect, "secret-7"))
    it.on(Numbered)(handle_sync)
    with pytest.raises(InvalidSetting, match="a partial of .*connect, which does not commit") as error:
        await consumed(it)
    assert "secret-7" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: None, "begin is None; it must be a function"),
        (object, "begin is an object; it must be a function"),
        (lambda: _coroutine, "_coroutine, which is `async def`"),
        (lambda: _generator, "_generator, which has a yield and no @contextmanager"),
        (lambda: _async_generator, "_async_generator, which has a yield and no @asynccontextmanager"),
    ],
)
def test_a_begin_that_can_t_work_is_refused_at_once(make: Callable[[], Any], wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=wrong):
        Consumer(name="stock", begin=make())


async def _coroutine() -> Any: ...


def _generator() -> Iterator[Any]:
    yield


async def _async_generator() -> AsyncIterator[Any]:
    yield
