"""What entities record: added in the transaction that writes them, once, with the keys that the database made."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ForeignKey, create_engine, event, insert, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)  # fmt: skip
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    object_session,
    relationship,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.pool import NullPool

from postroad import InvalidMessage, InvalidSetting, Message, NotMigrated, Outbox, correlated
from postroad.sqlalchemy import record_events
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

OUTBOX = Outbox(source="/orders")
NO_KEY: Any = None


class Base(DeclarativeBase):
    pass


@dataclass
class OrderPlaced:
    order: int | None


@dataclass
class OrderChanged:
    state: str


@dataclass
class OrderDropped:
    order: int | None


class Recorder:
    """How an application may record: in a list that is made when it is needed, also by an entity that was loaded."""

    def record(self, make: Any) -> None:
        self.__dict__.setdefault("recorded", []).append(make)

    def take_events(self) -> Any:
        recorded, self.__dict__["recorded"] = self.__dict__.get("recorded", []), []
        return [make(self) for make in recorded]


class Order(Recorder, Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")
    lines: Mapped[list[Line]] = relationship(cascade="all, delete-orphan", back_populates="order")

    @classmethod
    def placed(cls, **fields: Any) -> Order:
        order = cls(**fields)
        order.record(lambda each: Message(OrderPlaced(each.id), key=each.id, topic="orders"))
        return order

    def change(self, state: str) -> None:
        self.state = state
        self.record(lambda each: Message(OrderChanged(state), key=each.id))


class Line(Recorder, Base):
    __tablename__ = "lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    order: Mapped[Order] = relationship(back_populates="lines")


class Note(Base):
    """An entity that records nothing."""

    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(params=["postgresql+psycopg", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        migrate_sqlite(tmp_path / "shop.sqlite")
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}", poolclass=NullPool)
    else:
        log = asyncio.run(PostgreSQLLog.fresh(request.getfixturevalue("postgresql15")))
        engine = create_engine(log.url.replace("postgresql", request.param, 1), poolclass=NullPool)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)  # the database is used by other tests too
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    maker = sessionmaker(engine)
    record_events(maker, OUTBOX)
    return maker


def table_of(engine: Engine | AsyncEngine) -> str:
    return "postroad.outbox" if engine.dialect.name == "postgresql" else "postroad_outbox"


def added(engine: Engine) -> list[tuple[str, str | None]]:
    """Type and key of what was committed, in the order of the log."""
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"select type, key from {table_of(engine)} order by position")
        return [(row[0], row[1]) for row in rows]


# -- the flow --------------------------------------------------------------------------------------------------------


def test_added_with_the_key_that_the_database_made(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(Order.placed(id=41))
        session.flush()
        session.add(Order.placed())
        session.add(Note())
    assert added(engine)[0] == ("order.placed", "41")
    assert added(engine)[1][0] == "order.placed"
    assert (added(engine)[1][1] or "").isdigit()


def test_events_without_a_message_around_them(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        order = Order()
        order.record(lambda each: OrderPlaced(each.id))
        session.add(order)
    assert added(engine) == [("order.placed", None)]


def test_every_flush_adds_what_was_recorded_since(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(order := Order.placed(id=1))
        session.flush()
        session.flush()
        order.change("paid")
        session.flush()
        order.change("sent")
        order.change("done")
    assert added(engine) == [("order.placed", "1"), *[("order.changed", "1")] * 3]
    with sessions.begin() as session:
        session.get_one(Order, 1).state = "quiet"
    assert len(added(engine)) == 4


def test_rollback_takes_row_and_message_along(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        session.add(Order.placed(id=1))
        session.flush()
        session.rollback()
        session.add(Order.placed(id=2))
        session.commit()
    assert added(engine) == [("order.placed", "2")]


def test_savepoint(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(first := Order.placed(id=1))
        with session.begin_nested():
            session.add(Order.placed(id=2))
        with pytest.raises(LookupError), session.begin_nested():
            session.add(Order.placed(id=3))
            first.change("lost")
            session.flush()
            raise LookupError
        session.add(Order.placed(id=4))
    assert added(engine) == [("order.placed", "1"), ("order.placed", "2"), ("order.placed", "4")]
    with sessions() as session:
        assert {each.id for each in session.query(Order)} == {1, 2, 4}


def test_an_entity_that_recorded_without_changing(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(Order.placed(id=1))
    with sessions.begin() as session:
        order = session.get_one(Order, 1)
        order.record(lambda each: Message(OrderChanged("seen"), key=each.id))
        session.flush()
    assert added(engine) == [("order.placed", "1"), ("order.changed", "1")]


def test_an_entity_is_asked_when_its_row_is_written(engine: Engine, sessions: sessionmaker[Session]) -> None:
    """So that its message comes after the lock on its row: positions follow the order of the changes."""

    def state_in_the_database(each: Order) -> Message:
        connection = object_session(each).connection()  # type: ignore[union-attr]
        written = connection.exec_driver_sql("select state from orders").scalar_one()
        return Message(OrderChanged(written), type=f"seen.{written}")

    with sessions.begin() as session:
        session.add(order := Order(id=1))
        order.record(state_in_the_database)
    with sessions.begin() as session:
        order = session.get_one(Order, 1)
        order.state = "paid"
        order.record(state_in_the_database)
    assert [type for type, _ in added(engine)] == ["seen.new", "seen.paid"]


def test_an_entity_that_another_listener_brings_into_the_flush(engine: Engine, sessions: sessionmaker[Session]) -> None:
    event.listen(sessions, "before_flush", lambda session, *_: session.add(Order.placed(id=2)))
    with sessions() as session:
        session.add(Order.placed(id=1))
        session.flush()
        with session.no_autoflush:
            assert session.connection().exec_driver_sql(f"select count(*) from {table_of(engine)}").scalar() == 2
        session.rollback()


def test_deleted_entities(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(Order(id=1, lines=[Line(id=1), Line(id=2)]))
    with sessions.begin() as session:
        order = session.get_one(Order, 1)
        orphan = order.lines[0]
        orphan.record(lambda each: Message(OrderDropped(each.id), type="line.orphaned"))
        order.lines.remove(orphan)
        session.flush()
        order.record(lambda each: Message(OrderDropped(each.id), key=each.id))
        order.lines[0].record(lambda each: Message(OrderDropped(each.id), type="line.dropped"))
        session.delete(order)
    assert added(engine)[0] == ("line.orphaned", None)
    assert set(added(engine)[1:]) == {("order.dropped", "1"), ("line.dropped", None)}


def test_bulk_operations_know_no_entities(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.execute(insert(Order), [{"id": 1, "state": "a"}, {"id": 2, "state": "b"}])
        session.bulk_save_objects([passed_by := Order.placed(id=3)])
        session.execute(update(Order).values(state="c"))
    assert added(engine) == []
    assert len(passed_by.take_events()) == 1, "what was recorded is not lost either"


def test_a_failing_flush_keeps_what_was_recorded(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(Order(id=1))
    with sessions() as session:
        session.add(order := Order.placed(id=1))
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()
        order.id = 2
        session.add(order)
        session.commit()
    assert added(engine) == [("order.placed", "2")]


# -- errors ----------------------------------------------------------------------------------------------------------


def broken(_: Any) -> Any:
    raise LookupError("this event can't be made")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (broken, LookupError),
        (lambda _: Message(OrderPlaced(1), key=NO_KEY), InvalidMessage),
        (lambda _: 7, InvalidMessage),
    ],
)
def test_an_error_fails_the_flush_and_the_transaction(
    engine: Engine, sessions: sessionmaker[Session], make: Any, error: type[Exception]
) -> None:
    with sessions() as session:
        order = Order.placed(id=1)
        order.record(make)
        session.add(order)
        with pytest.raises(error):
            session.flush()
        with pytest.raises(PendingRollbackError):
            session.commit()
        session.rollback()
        assert session.get(Order, 1) is None
    assert added(engine) == []


def test_an_error_at_commit_fails_the_commit(engine: Engine, sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        session.add(Order(id=1))
    with sessions() as session:
        order = session.get_one(Order, 1)
        session.add(Order.placed(id=2))
        order.record(broken)
        with pytest.raises(LookupError):
            session.commit()
        session.rollback()
        assert session.get(Order, 2) is None
    assert added(engine) == []


@pytest.mark.parametrize("given", [None, "order.placed", {"order": 1}, OrderPlaced(1)])
def test_take_events_must_give_a_list(engine: Engine, sessions: sessionmaker[Session], given: Any) -> None:
    with sessions() as session:
        order = Order(id=1)
        order.__dict__["take_events"] = lambda: given
        session.add(order)
        with pytest.raises(InvalidMessage, match="take_events of Order gave .*; it must give a list of events"):
            session.flush()


def test_without_tables_nothing_is_written(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'bare.sqlite'}", poolclass=NullPool)
    Base.metadata.create_all(engine)
    maker = sessionmaker(engine)
    record_events(maker, OUTBOX)
    with maker() as session:
        session.add(Order.placed(id=1))
        with pytest.raises(NotMigrated):
            session.commit()
        session.rollback()
        assert session.get(Order, 1) is None


# -- what it listens to ----------------------------------------------------------------------------------------------


def test_takes_a_class_an_instance_and_a_scoped_session(engine: Engine) -> None:
    class Recording(Session):
        pass

    record_events(Recording, OUTBOX)
    with Recording(engine) as session, session.begin():
        session.add(Order.placed(id=1))
    with Session(engine) as plain, plain.begin():
        record_events(plain, OUTBOX)
        plain.add(Order.placed(id=2))
    with Session(engine) as plain, plain.begin():
        plain.add(Order.placed(id=3))
    scoped = scoped_session(sessionmaker(engine))
    record_events(scoped, OUTBOX)
    scoped.add(Order.placed(id=4))
    scoped.commit()
    scoped.remove()
    assert [key for _, key in added(engine)] == ["1", "2", "4"], "a session without listeners is left alone"


@pytest.mark.parametrize("thing", [None, object(), Engine, "session"])
def test_anything_else_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidSetting, match="it takes a sessionmaker, a Session class or a Session"):
        record_events(thing, OUTBOX)


def test_sync_sessions_need_no_greenlet() -> None:
    """SQLAlchemy 2.1 installs it for asyncio only."""
    code = (
        "import sys; sys.modules['greenlet'] = None; from postroad import Outbox; "
        "from postroad.sqlalchemy import record_events; from sqlalchemy.orm import sessionmaker; "
        "record_events(sessionmaker(), Outbox(source='/orders'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_with_two_databases_adds_where_the_entity_is(tmp_path: Path) -> None:
    engines = []
    for name in ("shop", "archive"):
        migrate_sqlite(tmp_path / f"{name}.sqlite")
        engines.append(create_engine(f"sqlite:///{tmp_path / name}.sqlite", poolclass=NullPool))
        Base.metadata.create_all(engines[-1])
    shop, archive = engines
    maker = sessionmaker(binds={Order: shop, Line: archive})
    record_events(maker, OUTBOX)
    with maker.begin() as session:
        line = Line(id=7, order_id=1)
        line.record(lambda each: Message(OrderDropped(each.id), key=each.id))
        session.add_all([Order.placed(id=1), line])
    assert (added(shop), added(archive)) == ([("order.placed", "1")], [("order.dropped", "7")])


# -- async -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite"])
async def async_engine(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql15: PostgreSQL
) -> AsyncIterator[AsyncEngine]:
    if request.param.startswith("sqlite"):
        migrate_sqlite(tmp_path / "shop.sqlite")
        url = f"{request.param}:///{tmp_path / 'shop.sqlite'}"
    else:
        url = (await PostgreSQLLog.fresh(postgresql15)).url.replace("postgresql", request.param, 1)
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


async def added_async(engine: AsyncEngine) -> list[tuple[str, str | None, str]]:
    table = table_of(engine)
    async with engine.connect() as connection:
        rows: Any = await connection.exec_driver_sql(
            f"select type, key, cast(headers as text) from {table} order by position"
        )
        return [(row[0], row[1], row[2]) for row in rows]


async def test_async_sessions(async_engine: AsyncEngine) -> None:
    maker = async_sessionmaker(async_engine)
    record_events(maker, OUTBOX)
    with correlated("request-7"):
        async with maker.begin() as session:
            session.add(order := Order.placed(id=1))
            async with session.begin_nested():
                order.change("paid")
    async with maker() as session:
        session.add(Order.placed(id=2))
        await session.flush()
        await session.rollback()
    found = await added_async(async_engine)
    assert [each[:2] for each in found] == [("order.placed", "1"), ("order.changed", "1")]
    assert all('"correlation_id":"request-7"' in headers.replace(" ", "") for *_, headers in found)


async def test_async_targets(async_engine: AsyncEngine) -> None:
    class Recording(AsyncSession):
        pass

    record_events(Recording, OUTBOX)
    scoped = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
    record_events(scoped, OUTBOX)
    own = async_sessionmaker(async_engine, sync_session_class=sessionmaker())
    record_events(own, OUTBOX)
    async with Recording(async_engine) as session, session.begin():
        session.add(Order.placed(id=1))
    async with AsyncSession(async_engine) as plain, plain.begin():
        record_events(plain, OUTBOX)
        plain.add(Order.placed(id=2))
    async with AsyncSession(async_engine) as plain, plain.begin():
        plain.add(Order.placed(id=3))
    scoped.add(Order.placed(id=4))
    await scoped.commit()
    await scoped.remove()
    async with own.begin() as another:
        another.add(Order.placed(id=5))
    assert [key for _, key, _ in await added_async(async_engine)] == ["1", "2", "4", "5"]
