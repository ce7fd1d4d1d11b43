"""What is particular to a kind of connection, and the error when it is none."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import aiosqlite
import asyncpg
import psycopg
import psycopg_pool
import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroad import Cancellation, ConnectionClosed, Message, NoTransaction, Outbox, UnsupportedConnection
from postroad.stores.sqlite import migrate_sqlite
from postroad.stores.statements import with_placeholders
from tests.adapters.base import OnPostgreSQL, OnSQLite
from tests.adapters.django import ALIAS, Django
from tests.adapters.sqlalchemy import Order, address
from tests.logs import PostgreSQLLog, connected
from tests.services.postgresql import PostgreSQL

OUTBOX = Outbox(source="/orders")


@dataclass
class OrderCreated:
    order: int


@pytest.fixture
async def pg(postgresql15: PostgreSQL) -> OnPostgreSQL:
    return await OnPostgreSQL(await PostgreSQLLog.fresh(postgresql15)).prepare()


@pytest.fixture
def lite(tmp_path: Path) -> OnSQLite:
    migrate_sqlite(tmp_path / "shop.sqlite")
    return OnSQLite(tmp_path / "shop.sqlite")


async def count(database: OnPostgreSQL | OnSQLite) -> int:
    [[number]] = await database.rows(f"select count(*) from {database.outbox}")
    return int(number)


# -- psycopg ---------------------------------------------------------------------------------------------------------


async def test_psycopg_in_autocommit_inside_a_transaction_block(pg: OnPostgreSQL) -> None:
    with psycopg.connect(pg.url, autocommit=True) as connection:
        with connection.transaction():
            OUTBOX.add(connection, OrderCreated(1))
            assert await count(pg) == 0
        connection.execute("begin")
        OUTBOX.add(connection, OrderCreated(2))
        connection.execute("rollback")
    assert await count(pg) == 1


async def test_psycopg_in_a_pipeline(pg: OnPostgreSQL) -> None:
    """Its BEGIN may not have been answered yet."""
    with psycopg.connect(pg.url, autocommit=True) as connection, connection.pipeline():
        with connection.transaction():
            OUTBOX.add(connection, OrderCreated(1))
            OUTBOX.add(connection, OrderCreated(2))
            assert OUTBOX.cancel(connection, OUTBOX.add(connection, "x", type="x", deliver_in="1h"))
        with pytest.raises(NoTransaction):
            OUTBOX.add(connection, OrderCreated(3))
        connection.execute("select 1")
        with pytest.raises(NoTransaction):
            OUTBOX.add(connection, OrderCreated(4))
    assert await count(pg) == 2


@pytest.mark.parametrize("cursor", [psycopg.RawCursor, psycopg.ClientCursor, psycopg.Cursor])
async def test_psycopg_with_any_cursors(pg: OnPostgreSQL, cursor: Any) -> None:
    with psycopg.connect(pg.url, cursor_factory=cursor, row_factory=psycopg.rows.dict_row) as connection:
        OUTBOX.add(connection, OrderCreated(1), key="100%")
        OUTBOX.add_many(connection, [])
        waiting = OUTBOX.add(connection, OrderCreated(1), deliver_in="1h")
        assert OUTBOX.cancel(connection, waiting) is Cancellation.CANCELED
    assert await pg.rows("select key, headers::text from postroad.outbox") == [("100%", '{"source":"/orders"}')]


async def test_psycopg_async_with_rows_of_its_own(pg: OnPostgreSQL) -> None:
    rows = psycopg.rows.namedtuple_row
    async with await psycopg.AsyncConnection.connect(pg.url, row_factory=rows) as connection:
        waiting = await OUTBOX.add(connection, OrderCreated(1), deliver_in="1h")
        assert await OUTBOX.cancel(connection, waiting) is Cancellation.CANCELED


async def test_psycopgs_own_errors_stay_its_own(pg: OnPostgreSQL) -> None:
    with psycopg.connect(pg.url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            OUTBOX.add(connection, OrderCreated(1))


async def test_psycopg_from_a_pool(pg: OnPostgreSQL) -> None:
    with psycopg_pool.ConnectionPool(pg.url, min_size=1, max_size=1, open=True) as pool:
        with pytest.raises(UnsupportedConnection, match="with pool.connection"):
            OUTBOX.add(pool, OrderCreated(1))  # type: ignore[call-overload]
        with pool.connection() as connection:
            OUTBOX.add(connection, OrderCreated(1))
    assert await count(pg) == 1


# -- asyncpg ---------------------------------------------------------------------------------------------------------


async def test_an_applications_json_codec_leaves_the_headers_alone(pg: OnPostgreSQL) -> None:
    async with connected(pg.url) as connection:
        for type in ("json", "jsonb"):
            await connection.set_type_codec(type, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        async with connection.transaction():
            await OUTBOX.add(connection, OrderCreated(1))
            await OUTBOX.add_many(connection, numbered_orders(2))
    assert await pg.rows("select distinct headers->>'source' from postroad.outbox") == [("/orders",)]


async def test_asyncpg_with_records_of_its_own(pg: OnPostgreSQL) -> None:
    class Row(asyncpg.Record):
        def __getattr__(self, name: str) -> Any:
            return self[name]

    async with connected(pg.url, record_class=Row) as connection, connection.transaction():
        waiting = await OUTBOX.add(connection, OrderCreated(1), deliver_in="1h")
        assert await OUTBOX.cancel(connection, waiting) is Cancellation.CANCELED


async def test_a_cancel_that_is_awaited_after_its_transaction_changes_nothing(pg: OnPostgreSQL) -> None:
    async with connected(pg.url) as connection:
        async with connection.transaction():
            waiting = await OUTBOX.add(connection, OrderCreated(1), deliver_in="1h")
        async with connection.transaction():
            pending = OUTBOX.cancel(connection, waiting)
        with pytest.raises(NoTransaction):
            await pending
        assert len(await pg.rows("select id from postroad.scheduled")) == 1


async def test_a_cancel_is_no_truth_value_until_it_is_awaited(pg: OnPostgreSQL) -> None:
    async with connected(pg.url) as connection, connection.transaction():
        pending: Any = OUTBOX.cancel(connection, UUID(int=1))
        with pytest.raises(TypeError, match="await outbox.cancel"):
            if pending:
                pass
        assert not await pending
        with pytest.raises(RuntimeError, match="call outbox.cancel again"):
            await pending


def numbered_orders(number: int) -> list[Message]:
    return [Message(OrderCreated(n)) for n in range(number)]


# -- sqlite3 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [sqlite3.Row, lambda _, row: {"not": "a tuple"}, None])
def test_sqlite_with_any_rows_and_texts(lite: OnSQLite, factory: Any) -> None:
    with closing(sqlite3.connect(lite.path)) as connection, connection:
        connection.row_factory = factory
        connection.text_factory = bytes
        waiting = OUTBOX.add(connection, OrderCreated(1), deliver_in="1h")
        sent = OUTBOX.add(connection, OrderCreated(2))
        assert OUTBOX.cancel(connection, waiting) is Cancellation.CANCELED
        assert OUTBOX.cancel(connection, sent) is Cancellation.TOO_LATE
        assert OUTBOX.cancel(connection, waiting) is Cancellation.UNKNOWN


def test_sqlite_cancels_as_the_only_writer(lite: OnSQLite) -> None:
    """Whatever it finds, a cancel begins a transaction and has the write lock from then on."""
    with (
        closing(sqlite3.connect(lite.path)) as connection,
        closing(sqlite3.connect(lite.path, timeout=0)) as other,
    ):
        assert OUTBOX.cancel(connection, UUID(int=1)) is Cancellation.UNKNOWN
        assert connection.in_transaction
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("delete from postroad_scheduled")
        connection.rollback()


# -- aiosqlite -------------------------------------------------------------------------------------------------------


async def test_aiosqlite_without_isolation_level_inside_begin(lite: OnSQLite) -> None:
    async with aiosqlite.connect(lite.path, isolation_level=None) as connection:
        await connection.execute("begin")
        await OUTBOX.add(connection, OrderCreated(1))
        assert await count(lite) == 0
        await connection.commit()
    assert await count(lite) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3's autocommit attribute came with Python 3.12")
@pytest.mark.parametrize("engine", [True, False])
async def test_aiosqlite_with_the_autocommit_attribute(lite: OnSQLite, engine: bool) -> None:
    """Only its own thread may ask for it."""
    options: dict[str, Any] = {"autocommit": True}
    if engine:
        made = create_async_engine(address(lite, "aiosqlite"), connect_args=options)
        async with made.connect() as through:
            with pytest.raises(NoTransaction):
                await OUTBOX.add(through, OrderCreated(1))
        await made.dispose()
    else:
        async with aiosqlite.connect(lite.path, **options) as connection:
            with pytest.raises(NoTransaction):
                await OUTBOX.add(connection, OrderCreated(1))
    assert await count(lite) == 0


# -- SQLAlchemy ------------------------------------------------------------------------------------------------------


def statements_of(engine: Any) -> list[str]:
    """The first three words of what the engine executes from now on."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(" ".join(statement.lower().split()[:3]))

    event.listen(engine, "before_cursor_execute", note)
    return seen


@pytest.mark.parametrize("autoflush", [True, False])
def test_a_session_is_flushed_first(lite: OnSQLite, autoflush: bool) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    seen = statements_of(engine)
    with Session(engine, autoflush=autoflush) as session, session.begin():
        session.add(Order(id=1))
        with session.no_autoflush:
            OUTBOX.add(session, OrderCreated(1), key=1)
    assert seen == ["insert into orders", "insert into postroad_outbox"]
    engine.dispose()


async def test_an_async_session_is_flushed_first(pg: OnPostgreSQL) -> None:
    engine = create_async_engine(address(pg, "asyncpg"))
    seen = statements_of(engine.sync_engine)
    async with AsyncSession(engine, autoflush=False) as session, session.begin():
        session.add(Order(id=1))
        await OUTBOX.add(session, OrderCreated(1), key=1)
    assert seen == ["insert into orders", "with new as"], "the second one adds, and looks at an id that is taken"
    await engine.dispose()


async def test_what_a_flush_refuses_stays_the_users_to_see(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
    with Session(engine) as session, pytest.raises(IntegrityError):
        session.add(Order(id=1))
        OUTBOX.add(session, OrderCreated(1))
    await lite.rows("drop table orders")
    with Session(engine) as session, pytest.raises(OperationalError, match="no such table: orders"):
        session.add(Order(id=2))
        OUTBOX.add(session, OrderCreated(2))
    assert await count(lite) == 0
    engine.dispose()


async def test_a_table_of_the_users_that_is_missing_is_not_ours(lite: OnSQLite) -> None:
    """An async session flushes and adds in one go."""
    engine = create_async_engine(address(lite, "aiosqlite"))
    await lite.rows("drop table orders")
    async with AsyncSession(engine) as session:
        session.add(Order(id=1))
        with pytest.raises(OperationalError, match="no such table: orders"):
            await OUTBOX.add(session, OrderCreated(1))
    await engine.dispose()


async def test_a_message_may_be_added_during_a_flush(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    with Session(engine) as session, session.begin():
        event.listen(session, "after_flush", lambda session, _: OUTBOX.add(session, OrderCreated(1)))
        session.add(Order(id=1))
    assert await count(lite) == 1
    engine.dispose()


async def test_a_session_that_was_not_begun_begins_by_itself(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    with Session(engine) as session:
        OUTBOX.add(session, OrderCreated(1))
    with engine.connect() as connection:
        OUTBOX.add(connection, OrderCreated(1))
    assert await count(lite) == 0, "nothing was committed"
    with Session(engine) as session:
        OUTBOX.add(session, OrderCreated(1))
        session.commit()
    with engine.connect() as connection:
        OUTBOX.add(connection, OrderCreated(1))
        connection.commit()
    assert await count(lite) == 2
    engine.dispose()


def test_a_session_without_autobegin(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    with Session(engine, autobegin=False) as session:
        with pytest.raises(NoTransaction, match="with session.begin"):
            OUTBOX.add(session, OrderCreated(1))
        with session.begin():
            OUTBOX.add(session, OrderCreated(1))
    engine.dispose()


async def test_autocommit_commits_by_itself_even_after_begin(pg: OnPostgreSQL) -> None:
    """SQLAlchemy's begin sends nothing then."""
    engine = create_engine(address(pg, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.begin() as connection, pytest.raises(NoTransaction):
        OUTBOX.add(connection, OrderCreated(1))
    with engine.connect() as connection:
        with pytest.raises(NoTransaction):
            OUTBOX.add(connection, OrderCreated(1))
        assert not connection.in_transaction(), "it is left as it was"
    engine.dispose()
    assert await count(pg) == 0


async def test_sqlite_that_begins_in_a_listener(lite: OnSQLite) -> None:
    """SQLAlchemy's own advice for SQLite: no isolation level for the driver, and BEGIN where SQLAlchemy begins."""
    engine = create_engine(address(lite, "pysqlite"), connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        OUTBOX.add(connection, OrderCreated(1))
        assert await count(lite) == 0
        connection.commit()
    with Session(engine) as session:
        OUTBOX.add(session, OrderCreated(2))
        assert await count(lite) == 1
        session.rollback()
    assert await count(lite) == 1
    engine.dispose()


async def test_scoped_sessions_stand_for_their_session(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    session = scoped_session(sessionmaker(engine))
    OUTBOX.add(session, OrderCreated(1))
    session.commit()
    session.remove()
    engine.dispose()
    async_engine = create_async_engine(address(lite, "aiosqlite"))
    async_session = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    await OUTBOX.add(async_session, OrderCreated(2))
    await async_session.commit()
    await async_session.remove()
    await async_engine.dispose()
    assert await count(lite) == 2


def test_a_session_without_an_engine_of_its_own(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    with Session(binds={Order: engine}) as session:
        with pytest.raises(UnsupportedConnection, match="bind_arguments"):
            OUTBOX.add(session, OrderCreated(1))
        OUTBOX.add(session.connection(bind_arguments={"mapper": Order}), OrderCreated(1))
    engine.dispose()


async def test_an_async_connection_that_was_not_started(lite: OnSQLite) -> None:
    engine = create_async_engine(address(lite, "aiosqlite"))
    with pytest.raises(ConnectionClosed, match="async with engine.connect"):
        await OUTBOX.add(engine.connect(), OrderCreated(1))
    await engine.dispose()


def test_a_session_whose_connection_is_closed(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    with engine.connect() as connection, Session(connection) as session:
        connection.close()
        with pytest.raises(ConnectionClosed):
            OUTBOX.add(session, OrderCreated(1))
    engine.dispose()


async def test_the_error_about_an_engine_or_maker_names_what_to_use(lite: OnSQLite) -> None:
    engine: Any = create_engine(address(lite, "pysqlite"))
    async_engine: Any = create_async_engine(address(lite, "aiosqlite"))
    makers: list[tuple[Any, str]] = [
        (engine, "with engine.begin"),
        (async_engine, "async with engine.begin"),
        (sessionmaker(engine), "with Session.begin"),
        (async_sessionmaker(async_engine), "async with Session.begin"),
    ]
    for thing, hint in makers:
        with pytest.raises(UnsupportedConnection, match=hint):
            OUTBOX.add(thing, OrderCreated(1))
    with closing(sqlite3.connect(lite.path)) as connection:
        cursor: Any = connection.cursor()
        with pytest.raises(UnsupportedConnection, match="cursor.connection"):
            OUTBOX.add(cursor, OrderCreated(1))
    engine.dispose()
    await async_engine.dispose()


def test_sqlalchemy_with_another_database(lite: OnSQLite) -> None:
    engine = create_engine(address(lite, "pysqlite"))
    engine.dialect.driver = "pysqlcipher"
    known = r"sqlite\+pysqlcipher here; postroad supports postgresql\+psycopg, postgresql\+asyncpg, sqlite"
    with engine.connect() as connection, pytest.raises(UnsupportedConnection, match=known):
        OUTBOX.add(connection, OrderCreated(1))
    with Session(engine) as session, pytest.raises(UnsupportedConnection, match=known):
        OUTBOX.add(session, OrderCreated(1))
    engine.dispose()


async def test_sqlalchemys_failed_transaction_stays_its_own_to_see(pg: OnPostgreSQL) -> None:
    engine = create_engine(address(pg, "psycopg"))
    with engine.connect() as connection:
        with pytest.raises(Exception, match="division by zero"):
            connection.execute(text("select 1 / 0"))
        with pytest.raises(Exception, match="current transaction is aborted") as raised:
            OUTBOX.add(connection, OrderCreated(1))
        assert type(raised.value).__module__.startswith("sqlalchemy")
    engine.dispose()


# -- Django ----------------------------------------------------------------------------------------------------------


async def test_django_without_autocommit(pg: OnPostgreSQL) -> None:
    async with Django(pg).outside() as connection:
        connection.set_autocommit(False)
        OUTBOX.add(connection, OrderCreated(1))
        assert await count(pg) == 0
        connection.commit()
    assert await count(pg) == 1


async def test_django_after_the_last_atomic_block(lite: OnSQLite) -> None:
    async with Django(lite).outside() as connection:
        with transaction.atomic(using=ALIAS):
            OUTBOX.add(connection, OrderCreated(1))
        with pytest.raises(NoTransaction, match=r"transaction.atomic\(\)"):
            OUTBOX.add(connection, OrderCreated(2))
    assert await count(lite) == 1


async def test_djangos_broken_transaction_stays_its_own_to_see(lite: OnSQLite) -> None:
    async with Django(lite).outside() as connection:
        with transaction.atomic(using=ALIAS):
            connection.set_rollback(True)
            with pytest.raises(TransactionManagementError):
                OUTBOX.add(connection, OrderCreated(1))
    assert await count(lite) == 0


async def test_django_with_another_database(lite: OnSQLite, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Django(lite).transaction() as connection:
        monkeypatch.setattr(type(connection), "vendor", "mysql")
        with pytest.raises(UnsupportedConnection, match="mysql here; postroad supports postgresql and sqlite"):
            OUTBOX.add(connection, OrderCreated(1))
        monkeypatch.undo()


# -- no connection at all --------------------------------------------------------------------------------------------


def test_the_error_about_an_unknown_connection_lists_every_kind() -> None:
    thing: Any = SimpleNamespace()
    with pytest.raises(UnsupportedConnection) as raised:
        OUTBOX.add(thing, OrderCreated(1))
    for words in (
        "sqlite3.Connection",
        "asyncpg",
        "psycopg",
        "aiosqlite",
        "AsyncSession",
        "Django",
        "postroad[django]",
    ):
        assert words in str(raised.value)


def test_no_driver_is_imported_that_is_not_used() -> None:
    program = """
import sqlite3, sys
from postroad import Outbox, NotMigrated
try:
    Outbox(source="/x").add(sqlite3.connect(":memory:"), "x", type="x")
except NotMigrated:
    print(sorted({"aiosqlite", "asyncpg", "django", "psycopg", "sqlalchemy", "greenlet"} & set(sys.modules)))
"""
    logged = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert logged.stdout.strip() == "[]"


# -- placeholders ----------------------------------------------------------------------------------------------------


def test_placeholders_are_converted() -> None:
    assert with_placeholders("values ($1, $2::text[]) -- 5%", "%s") == "values (%s, %s::text[]) -- 5%%"
    assert with_placeholders("values (?, ?)", "%s") == "values (%s, %s)"
    many = ", ".join(f"${n}" for n in range(1, 13))
    assert with_placeholders(many, "%s") == ", ".join(["%s"] * 12)
    assert with_placeholders("values ($1)", "$1") == "values ($1)"
    assert with_placeholders("values (?)", "?") == "values (?)"


@pytest.mark.parametrize("sql", ["$2, $1", "$1, $1", "$1, $3"])
def test_placeholders_that_have_no_numbers_must_be_in_order(sql: str) -> None:
    with pytest.raises(ValueError, match="in order"):
        with_placeholders(sql, "%s")
