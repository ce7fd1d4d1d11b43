"""What postroad offers to tests, on real connections of every kind, and a pytest run that must fail."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from postroad import Inbox, InvalidSetting, Message, NoTransaction, Outbox, Tombstone, UnsupportedConnection
from postroad.stores.connections import NeverAwaited
from postroad.stores.sqlite import migrate_sqlite
from postroad.testing import (
    MemorySink,
    Messages,
    assert_same_transaction,
    outbox_messages,
    reset_outbox,
    run_relay_until_empty,
)
from tests.logs import PostgreSQLLog, connected
from tests.services.postgresql import PostgreSQL

pytest_plugins = ["pytester"]

OUTBOX = Outbox(source="/orders")


@dataclass
class OrderCreated:
    order: int


@pytest.fixture
def path(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    return tmp_path / "shop.sqlite"


@pytest.fixture
def pg_url(postgresql15: PostgreSQL) -> str:
    url = asyncio.run(PostgreSQLLog.fresh(postgresql15)).url
    postgresql15.execute(url, "drop table if exists orders cascade; create table orders (id integer, note text)")
    return url


# -- reading, whatever the connection --------------------------------------------------------------------------------


@pytest.fixture(
    params=["sqlite3", "psycopg", "psycopg dicts", "session sqlite", "scoped session", "connection postgresql"]
)
def connection(request: pytest.FixtureRequest, path: Path) -> Iterator[Any]:
    kind: str = request.param
    if kind == "sqlite3":
        with closing(sqlite3.connect(path)) as sqlite:
            yield sqlite
    elif kind == "session sqlite":
        with Session(create_engine(f"sqlite:///{path}", poolclass=NullPool)) as session:
            yield session
    elif kind == "scoped session":
        scoped = scoped_session(sessionmaker(create_engine(f"sqlite:///{path}", poolclass=NullPool)))
        yield scoped
        scoped.remove()
    else:
        url: str = request.getfixturevalue("pg_url")
        if kind == "connection postgresql":
            with create_engine(url.replace("postgresql", "postgresql+psycopg", 1), poolclass=NullPool).connect() as one:
                yield one
        else:
            dicts: Any = {"row_factory": dict_row} if "dicts" in kind else {}
            with psycopg.connect(url, **dicts) as pg:
                yield pg


def test_sync_connections(connection: Any) -> None:
    assert outbox_messages(connection) == []
    id = OUTBOX.add(connection, OrderCreated(7), key=7, headers={"tenant": "a"}, topic="orders")
    OUTBOX.add(connection, b"\x00%s", type="raw")
    first, second = outbox_messages(connection)
    assert (first.id, first.type, first.key, first.topic, first.headers) == (
        id, "order.created", "7", "orders", {"tenant": "a"},
    )  # fmt: skip
    assert json.loads(first.payload) == {"order": 7}
    assert (second.payload, second.key) == (b"\x00%s", None)
    assert abs(first.created_at.timestamp() - second.created_at.timestamp()) < 60
    connection.rollback()
    assert outbox_messages(connection) == []


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg", "session asyncpg", "connection aiosqlite"])
async def async_connection(request: pytest.FixtureRequest, path: Path, postgresql15: PostgreSQL) -> AsyncIterator[Any]:
    kind: str = request.param
    url = "" if "sqlite" in kind else (await PostgreSQLLog.fresh(postgresql15)).url
    if kind == "aiosqlite":
        async with aiosqlite.connect(path) as sqlite:
            yield sqlite
    elif kind == "asyncpg":
        async with connected(url) as pg, pg.transaction():
            yield pg
    elif kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url) as other:
            yield other
    elif kind == "session asyncpg":
        engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg", 1), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield session
    else:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        async with engine.connect() as one:
            assert isinstance(one, AsyncConnection)
            yield one


async def test_async_connections(async_connection: Any) -> None:
    id = await OUTBOX.add(async_connection, OrderCreated(7), key=7)
    messages = await outbox_messages(async_connection)
    assert [each.id for each in messages] == [id]
    assert messages.assert_added(OrderCreated(7), key=7).id == id


def test_autocommit(path: Path, pg_url: str) -> None:
    """What is added needs a transaction; what a test looks at does not."""
    with closing(sqlite3.connect(path, isolation_level=None)) as sqlite, psycopg.connect(pg_url, autocommit=True) as pg:
        for connection in (sqlite, pg):
            connection.execute("begin")
            OUTBOX.add(connection, OrderCreated(1))
            connection.execute("commit")
            assert len(outbox_messages(connection)) == 1
            reset_outbox(connection)
            assert outbox_messages(connection) == []


async def test_autocommit_of_async_connections(postgresql15: PostgreSQL) -> None:
    async with (await PostgreSQLLog.fresh(postgresql15)).connected() as connection:
        async with connection.transaction():
            await OUTBOX.add(connection, OrderCreated(1))
        assert len(await outbox_messages(connection)) == 1
        await reset_outbox(connection)
        assert await outbox_messages(connection) == []


async def test_autocommit_of_aiosqlite(path: Path) -> None:
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("begin")
        await OUTBOX.add(connection, OrderCreated(1))
        await connection.execute("commit")
        assert len(await outbox_messages(connection)) == 1
        await reset_outbox(connection)
        assert await outbox_messages(connection) == []


def test_autocommit_of_sqlalchemy(path: Path) -> None:
    add_one(path)
    engine = create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection, Session(engine) as session:
        scoped = scoped_session(sessionmaker(engine))
        for each in (connection, session, scoped):
            assert len(outbox_messages(each)) == 1
        scoped.remove()
        reset_outbox(session)
        assert outbox_messages(session) == []
    with Session(engine, autobegin=False) as session, pytest.raises(NoTransaction, match="begins none by itself"):
        outbox_messages(session)


async def test_autocommit_of_async_sqlalchemy(path: Path) -> None:
    add_one(path)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection, AsyncSession(engine) as session:
        for each in (connection, session):
            assert len(await outbox_messages(each)) == 1
        await reset_outbox(session)
        assert await outbox_messages(session) == []


def add_one(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        OUTBOX.add(connection, OrderCreated(1))


def test_another_schema(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "a.sqlite", "shop")
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        Outbox(source="/x", schema="shop").add(connection, OrderCreated(1))
        assert len(outbox_messages(connection, schema="shop")) == 1


def test_an_unknown_connection() -> None:
    with pytest.raises(UnsupportedConnection, match="not a connection that postroad supports"):
        outbox_messages(object())  # type: ignore[call-overload]


# -- assert_added ----------------------------------------------------------------------------------------------------


@pytest.fixture
def messages(path: Path) -> Messages:
    with closing(sqlite3.connect(path)) as connection:
        OUTBOX.add_many(connection, [Message(OrderCreated(1), key=1), Message(OrderCreated(2), key=2, topic="orders")])
        OUTBOX.add(connection, "hello", type="note")
        return outbox_messages(connection)


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        (OrderCreated, {}),
        (OrderCreated, {"times": 2}),
        (OrderCreated, {"key": 2, "topic": "orders", "times": 1}),
        (OrderCreated(2), {"key": "2"}),
        ("note", {"key": None}),
    ],
)
def test_what_was_added_is_found(messages: Messages, what: Any, asked: Any) -> None:
    assert messages.assert_added(what, **asked) in messages


@pytest.mark.parametrize(("what", "asked"), [(OrderCreated, {"key": 3}), (int, {}), (OrderCreated(3), {})])
def test_what_must_not_be_there_is_not(messages: Messages, what: Any, asked: Any) -> None:
    assert messages.assert_added(what, **asked, times=0) is None
    assert Messages().assert_added(what, times=0) is None


def test_what_must_not_be_there_and_is(messages: Messages) -> None:
    with pytest.raises(AssertionError, match="expected none, found 2: order.created"):
        messages.assert_added(OrderCreated, times=0)
    with pytest.raises(AssertionError, match="expected at least one, found none: order.paid"):
        messages.assert_added("order.paid")


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        (int, {}),
        (OrderCreated, {"key": 3}),
        (OrderCreated, {"key": None}),
        (OrderCreated, {"times": 1}),
        (OrderCreated, {"key": 1, "topic": "orders"}),
        (OrderCreated(3), {}),
        ("order.created.v2", {}),
    ],
)
def test_what_was_not_added_is_not_found(messages: Messages, what: Any, asked: Any) -> None:
    with pytest.raises(AssertionError, match=r"expected (?s:.)*messages:\n  order.created key='1'"):
        messages.assert_added(what, **asked)


# -- the same transaction --------------------------------------------------------------------------------------------


def test_row_and_message_of_one_transaction(pg_url: str) -> None:
    with psycopg.connect(pg_url) as connection:
        connection.execute("insert into orders values (1, '100%')")
        OUTBOX.add(connection, OrderCreated(1), key=1)
        connection.commit()
        connection.execute("insert into orders values (2)")
        connection.commit()
        with connection.transaction(), connection.transaction():
            connection.execute("insert into orders values (3)")
            OUTBOX.add(connection, OrderCreated(3), key=3)
        with connection.transaction():
            connection.execute("insert into orders values (4)")
            with connection.transaction():
                OUTBOX.add(connection, OrderCreated(4), key=4)
        first, third, fourth = outbox_messages(connection)
        assert_same_transaction(connection, first, table="orders", where="id = 1 and note like '100%'")
        assert_same_transaction(connection, third, table="orders", where="id = 3")
        assert_same_transaction(connection, fourth, table="orders", where="id = 4")
        with pytest.raises(AssertionError, match="written by transaction"):
            assert_same_transaction(connection, first, table="orders", where="id = 2")
        with pytest.raises(AssertionError, match="has 0 rows where id = 9"):
            assert_same_transaction(connection, first, table="orders", where="id = 9")
        with pytest.raises(AssertionError, match="has 4 rows"):
            assert_same_transaction(connection, first, table="orders", where="true")
        connection.execute("delete from postroad.outbox where key = '1'")
        with pytest.raises(AssertionError, match="is not in the log"):
            assert_same_transaction(connection, first, table="orders", where="id = 1")


async def test_the_same_on_an_async_connection(postgresql15: PostgreSQL) -> None:
    url = (await PostgreSQLLog.fresh(postgresql15)).url
    async with connected(url) as connection:
        await connection.execute("drop table if exists orders cascade; create table orders (id integer)")
        await connection.execute("insert into orders values (2)")
        async with connection.transaction():
            await connection.execute("insert into orders values (1)")
            await OUTBOX.add(connection, OrderCreated(1), key=1)
            message = (await outbox_messages(connection))[0]
        await assert_same_transaction(connection, message, table="orders", where="id = 1")
        with pytest.raises(AssertionError, match="written by transaction"):
            await assert_same_transaction(connection, message, table="orders", where="id = 2")
        with pytest.warns(NeverAwaited, match="nothing was checked"):
            assert_same_transaction(connection, message, table="orders", where="id = 2")


def test_sqlite_does_not_know_who_wrote_a_row(path: Path, messages: Messages) -> None:
    with closing(sqlite3.connect(path)) as connection, pytest.raises(InvalidSetting, match="only PostgreSQL"):
        assert_same_transaction(connection, messages[0], table="orders", where="true")


# -- the relay -------------------------------------------------------------------------------------------------------


async def test_what_is_committed_arrives(path: Path) -> None:
    sink = MemorySink()
    with closing(sqlite3.connect(path)) as connection:
        with connection:
            OUTBOX.add(connection, OrderCreated(1), key=1)
        assert (await run_relay_until_empty(f"sqlite:///{path}", sink)).published == 1
        with connection:
            OUTBOX.add(connection, OrderCreated(2), key=2)
        OUTBOX.add(connection, OrderCreated(3), key=3)
        connection.rollback()
    assert (await run_relay_until_empty(f"sqlite:///{path}", sink)).published == 1
    assert sink.messages.assert_added(OrderCreated, times=2).key == "1"
    with pytest.raises(AssertionError):
        sink.messages.assert_added(OrderCreated, key=3)


# -- between tests ---------------------------------------------------------------------------------------------------


def test_a_reset_leaves_the_tables_as_they_were_made(connection: Any) -> None:
    OUTBOX.add(connection, OrderCreated(1), key=1)
    OUTBOX.add(connection, OrderCreated(1), key=1, deliver_in="1h")
    assert Inbox().first_time(connection, "m", consumer="stock")
    connection.commit()
    reset_outbox(connection)
    connection.commit()
    assert outbox_messages(connection) == []
    assert Inbox().first_time(connection, "m", consumer="stock"), "the inbox is empty, too"
    connection.rollback()


async def test_a_reset_on_async_connections(async_connection: Any) -> None:
    await OUTBOX.add(async_connection, OrderCreated(7), key=7)
    await reset_outbox(async_connection)
    assert await outbox_messages(async_connection) == []
    with pytest.warns(NeverAwaited):
        reset_outbox(async_connection)


async def test_a_sink_begins_anew_after_a_reset(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for number in range(2):
            with connection:
                OUTBOX.add(connection, OrderCreated(number), key=number)
            sink = MemorySink()
            await run_relay_until_empty(f"sqlite:///{path}", sink)
            sink.messages.assert_added(OrderCreated(number), times=1)
            with connection:
                reset_outbox(connection)
            assert tables(connection) == {"postroad_migrations", "postroad_installation"}


def tables(connection: sqlite3.Connection) -> set[str]:
    """Those that hold rows."""
    names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    return {
        name
        for name in names
        if name.startswith("postroad") and connection.execute(f"select count(*) from {name}").fetchone()[0]
    }


# -- the plugin ------------------------------------------------------------------------------------------------------

USERS_TESTS = """
import warnings
import pytest
from postroad.stores.connections import NeverAwaited
from postroad.stores.connections.pending import Call, Pending

async def work():
    return "x"

def add():
    return Pending(work, Call("outbox.add", "nothing was added for"), "x")  # what `add` gives on an async connection

def test_forgets():
    add()

def test_forgets_at_the_end():
    kept = add()

async def test_forgets_in_a_loop():
    add()

async def test_awaits():
    assert await add() == "x"

def test_expects_it():
    with pytest.warns(NeverAwaited):
        add()

@pytest.fixture
def forgetful():
    add()

def test_whose_fixture_forgets(forgetful):
    pass

def test_sink(memory_sink):
    assert memory_sink.messages == []

class Loud:
    def __del__(self):
        raise LookupError("someone else's")

@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_others_are_left_to_pytest():
    Loud()
"""


def test_what_was_never_awaited_fails_its_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # By name and not by entry point, so that it is loaded once, installed or not.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(USERS_TESTS)
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "postroad.testing.plugin"]
    run = pytester.runpytest_subprocess(*plugins, "-o", "asyncio_mode=auto", "-q", "-rA")
    outcomes = {line.split("::")[1].split(" ")[0]: line.split(" ")[0] for line in run.outlines if "::test_" in line}
    assert outcomes == {
        "test_forgets": "FAILED",
        "test_forgets_at_the_end": "FAILED",
        "test_forgets_in_a_loop": "FAILED",
        "test_awaits": "PASSED",
        "test_expects_it": "PASSED",
        "test_whose_fixture_forgets": "ERROR",
        "test_sink": "PASSED",
        "test_others_are_left_to_pytest": "FAILED",
    }
    output = "nothing was added for x: outbox.add on an async connection was never awaited"
    assert run.outlines.count(output) == 4, "each of the four fails for this and nothing else"


def test_a_tombstone_is_found_by_its_class_type_and_key(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        OUTBOX.add(connection, Tombstone(), type="customer", key=7)
        OUTBOX.add(connection, {"name": "Ada"}, type="customer", key=8)
        OUTBOX.add(connection, b"", type="note")
        messages = outbox_messages(connection)
    assert messages.assert_added(Tombstone, type="customer", times=1).key == "7"
    messages.assert_added(Tombstone(), key=7, times=1)
    messages.assert_added(Tombstone, type="customer", key=8, times=0)
    messages.assert_added({"name": "Ada"}, type="customer", key=8)
    with pytest.raises(AssertionError) as wrong:
        messages.assert_added(Tombstone, type="order")
    assert str(wrong.value) == (
        "expected at least one, found none: order tombstone\n"
        "messages:\n"
        "  customer tombstone key='7'\n"
        '  customer key=\'8\' {"name":"Ada"}\n'
        "  note key=None "
    )
