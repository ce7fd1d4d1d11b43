"""`deliveries` and `perform` in the tests that users write: SQLAlchemy's savepoints, a Django TestCase, codecs; and
what they say when they are used wrongly.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from postroad import Backoff, Consumer, InvalidSetting, Message, Outbox, Received
from postroad.codecs import ClaimCheck, Encrypt, KeyRing, Zlib
from postroad.errors import NotMigrated
from postroad.received import Unreadable
from postroad.stores.connections import NeverAwaited
from postroad.stores.sqlite import migrate_sqlite
from postroad.testing import Messages, deliveries, outbox_messages, perform
from tests.integrations.test_django import Site, site
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

__all__ = ["site"]

OUTBOX = Outbox(source="/orders")


@dataclass
class OrderCreated:
    order: int


@dataclass
class StockReserved:
    order: int


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    left: Mapped[int]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute("create table stock (id integer primary key, left integer)")
    return tmp_path / "shop.sqlite"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as opened:
        yield opened


def never() -> Any:
    raise AssertionError("deliveries begins no transaction of the consumer's own")


def consumer_of(name: str = "stock", **settings: Any) -> Consumer[Any]:
    return Consumer(name=name, begin=never, **settings)


# -- SQLAlchemy: a session inside an outer transaction, as its documentation recommends for tests ---------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def session(request: pytest.FixtureRequest, path: Path) -> Iterator[Session]:
    url = f"sqlite:///{path}"
    if request.param == "postgresql":
        server: PostgreSQL = request.getfixturevalue("postgresql15")
        url = asyncio.run(PostgreSQLLog.fresh(server)).url.replace("postgresql", "postgresql+psycopg", 1)
        server.execute(
            url.replace("+psycopg", ""), 'drop table if exists stock; create table stock (id int, "left" int)'
        )
    engine = create_engine(url, poolclass=NullPool)
    if request.param == "sqlite":  # as SQLAlchemy's documentation says: Python begins no transaction before a SAVEPOINT
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("begin"))
    with engine.connect() as outer, outer.begin() as transaction:
        with Session(outer, join_transaction_mode="create_savepoint") as opened:
            opened.add(Stock(id=1, left=3))
            opened.commit()  # of the application under test: a savepoint
            yield opened
        transaction.rollback()
    with engine.connect() as after:
        assert list(after.execute(text("select * from stock"))) == [], "nothing was committed"


def test_a_session_forgets_what_a_failed_attempt_has_changed(session: Session) -> None:
    stock = consumer_of(retry=Backoff(max_attempts=3))

    @stock.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Session, message: Received) -> None:
        row = tx.get_one(Stock, 1)
        row.left -= event.order
        tx.add(Stock(id=100 + message.attempt, left=0))
        tx.flush()
        if message.attempt < 3:
            raise ValueError("not yet")

    OUTBOX.add(session, OrderCreated(1))
    found = deliveries(session, stock)
    assert found.events == [OrderCreated(1)]
    assert session.get_one(Stock, 1).left == 2, "the effect of one attempt, in the session too"
    assert session.scalars(select(Stock.id).order_by(Stock.id)).all() == [1, 103]


def test_a_handler_that_commits_is_told(session: Session) -> None:
    stock = consumer_of()

    @stock.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Session, message: Received) -> None:
        tx.commit()

    OUTBOX.add(session, OrderCreated(1))
    with pytest.raises(AssertionError, match=r"consumer 'stock' for 'order.created' has ended the test's transaction"):
        deliveries(session, stock)


@pytest.fixture
async def async_session(postgresql15: PostgreSQL) -> AsyncIterator[AsyncSession]:
    url = (await PostgreSQLLog.fresh(postgresql15)).url.replace("postgresql", "postgresql+asyncpg", 1)
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as outer, outer.begin() as transaction:
        await outer.execute(text("drop table if exists stock"))
        await outer.execute(text('create table stock (id int, "left" int)'))
        async with AsyncSession(outer, join_transaction_mode="create_savepoint", expire_on_commit=False) as opened:
            yield opened
        await transaction.rollback()


async def test_an_async_session_in_an_outer_transaction(async_session: AsyncSession) -> None:
    stock = consumer_of(retry=Backoff(max_attempts=2))

    @stock.on(OrderCreated)
    async def reserve(event: OrderCreated, tx: AsyncSession, message: Received) -> None:
        tx.add(Stock(id=message.attempt, left=event.order))
        await tx.flush()
        await OUTBOX.add(tx, StockReserved(event.order))
        if message.attempt == 1:
            await tx.execute(text("select 1 from missing"))

    await OUTBOX.add(async_session, OrderCreated(7))
    found = await deliveries(async_session, stock)
    assert (found.events, found.failed) == ([OrderCreated(7)], 1)
    found.added.assert_only(StockReserved(7))
    assert (await async_session.scalars(select(Stock.id))).all() == [2]
    with pytest.warns(NeverAwaited, match="nothing was delivered to"):
        deliveries(async_session, stock)


# -- Django ------------------------------------------------------------------------------------------------------------

SHOP = """
from dataclasses import dataclass
from django.contrib.auth.models import Group
from postroad import Backoff, Consumer, Outbox

outbox = Outbox(source="/shop")

@dataclass
class Joined:
    name: str

@dataclass
class Welcomed:
    name: str

def begin():
    raise AssertionError("a test has its own transaction")

members = Consumer(name="members", begin=begin, retry=Backoff(max_attempts=2))

@members.on(Joined)
def welcome(event, tx, message):
    Group.objects.create(name=event.name)  # fails if there is one already
    outbox.add(tx, Welcomed(event.name), key=event.name)
"""

TESTS = """
from django.contrib.auth.models import Group
from django.db import connection
from django.test import TestCase
from postroad.testing import deliveries, outbox_messages, perform
from shop import Joined, Welcomed, members, outbox

class Welcoming(TestCase):
    def test_members_are_welcomed(self):
        outbox.add(connection, Joined("ann"), key="ann")
        found = deliveries(connection, members)
        assert found.events == [Joined("ann")], found
        found.added.assert_only(Welcomed("ann"))
        assert Group.objects.filter(name="ann").count() == 1
        assert [each.type for each in deliveries(connection, members).again] == ["joined"]

    def test_and_nobody_twice(self):
        Group.objects.create(name="ann")
        outbox.add(connection, Joined("ann"), key="ann")
        outbox.add(connection, Joined("bob"), key="bob")
        found = deliveries(connection, members)
        assert [each.name for each in found.events] == ["bob"], found
        assert found.dead[0].reason.startswith("IntegrityError"), found.dead
        assert sorted(Group.objects.values_list("name", flat=True)) == ["ann", "bob"]

    def test_a_member_who_joins_later(self):
        outbox.add(connection, Joined("kim"), key="kim", deliver_in="3d")
        found = deliveries(connection, members, until="1d")
        found.waiting.assert_only(Joined("kim"))
        found.added.refute_added(Welcomed)
        assert not Group.objects.exists()
        deliveries(connection, members).added.assert_only(Welcomed("kim"))

    def test_a_handler_alone(self):
        perform(members, Joined("eve"), tx=connection)
        outbox_messages(connection).assert_only(Welcomed("eve"))

    def test_nothing_is_left_of_the_others(self):
        assert outbox_messages(connection) == []
        assert not Group.objects.exists()
"""


def test_in_a_django_testcase(site: Site) -> None:
    (site.folder / "shop.py").write_text(SHOP)
    (site.folder / "tests.py").write_text(TESTS)
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "postroad.django"]
    (site.folder / "manage.py").write_text(
        (site.folder / "manage.py").read_text().replace('["postroad.django"]', repr(apps))
    )
    output = site.manage("test", "tests", "--noinput")
    assert "Ran 5 tests" in output
    assert "OK" in output


# -- handlers of many messages ---------------------------------------------------------------------------------------


def test_a_batch_is_one_call_and_after_a_failure_one_for_each(connection: sqlite3.Connection) -> None:
    stock = consumer_of(retry=Backoff(max_attempts=2))
    calls: list[list[int]] = []

    @stock.on_batch(OrderCreated, size=3)
    def reserve(batch: Sequence[tuple[OrderCreated, Received]], tx: Any) -> None:
        calls.append([event.order for event, _ in batch])
        if 2 in calls[-1]:
            raise ValueError("order 2")

    OUTBOX.add_many(connection, [Message(OrderCreated(number)) for number in range(1, 6)])
    found = deliveries(connection, stock)
    assert calls == [[1, 2, 3], [1], [2], [3], [4, 5], [2]]
    assert sorted(event.order for event in found.events) == [1, 3, 4, 5]
    assert [each.reason for each in found.dead] == ["ValueError: order 2"]


def test_messages_that_share_a_transaction(connection: sqlite3.Connection) -> None:
    stock = consumer_of(messages_per_transaction=10)
    calls: list[int] = []

    @stock.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
        calls.append(event.order)
        tx.execute("insert into stock values (?, 0)", (event.order,))
        if event.order == 2 and calls.count(2) == 1:
            raise ValueError

    OUTBOX.add_many(connection, [Message(OrderCreated(number)) for number in (1, 2, 3)])
    found = deliveries(connection, stock)
    assert [event.order for event in found.events] == [1, 2, 3]
    assert calls == [1, 2, 1, 2, 3]
    assert connection.execute("select count(*) from stock").fetchone() == (3,)


def test_an_order_that_is_not_kept(connection: sqlite3.Connection) -> None:
    stock = consumer_of(ordering="none", retry=Backoff(max_attempts=2))

    @stock.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
        if event.order == 1 and message.attempt == 1:
            raise ValueError

    OUTBOX.add_many(connection, [Message(OrderCreated(number), key="same") for number in (1, 2)])
    assert deliveries(connection, stock).events == [OrderCreated(2), OrderCreated(1)]


# -- codecs ------------------------------------------------------------------------------------------------------------

KEYS = KeyRing({"1": bytes(range(32))}, current="1")


def codecs(folder: Path) -> list[Any]:
    return [Zlib(above=0), Encrypt(KEYS), ClaimCheck(folder.as_uri(), above=0)]


def test_payloads_that_codecs_have_changed_are_compared_as_they_were_meant(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    text = "the same " * 100
    for given in ([Zlib(above=0)], [Encrypt(KEYS)], codecs(tmp_path / "payloads")):
        Outbox(source="/x", codecs=given).add(connection, {"note": text}, type="note")
    seen = outbox_messages(connection, codecs=codecs(tmp_path / "payloads"))
    seen.assert_added({"note": text}, type="note", times=3)
    seen.refute_added({"note": "another"}, type="note")
    plain = outbox_messages(connection)
    plain.assert_added({"note": text}, type="note", times=1)  # compression needs no settings
    plain.assert_added("note", times=3)
    with pytest.raises(AssertionError) as failure:
        plain.assert_added({"note": "another"}, type="note")
    words = str(failure.value)
    assert "2 of them could not be compared, because codecs have changed the payload" in words
    assert "outbox_messages(connection, codecs=[...])" in words
    assert "(its payload is encrypted)" in words
    assert "the same the same" in words, "what can be read is shown as it was meant"


def test_handlers_get_payloads_as_they_were_meant(connection: sqlite3.Connection, tmp_path: Path) -> None:
    outbox = Outbox(source="/orders", codecs=codecs(tmp_path / "payloads"))
    stock = consumer_of(codecs=codecs(tmp_path / "payloads"))

    @stock.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
        outbox.add(tx, StockReserved(event.order))

    outbox.add(connection, OrderCreated(5))
    found = deliveries(connection, stock)
    assert found.events == [OrderCreated(5)]
    found.added.assert_only(StockReserved(5))  # with the consumer's codecs
    without = consumer_of("other")
    without.on(OrderCreated)(lambda event, tx, message: None)
    assert "this consumer has no codec for it" in deliveries(connection, without).dead[0].reason


# -- assert_only and refute_added --------------------------------------------------------------------------------------


@pytest.fixture
def messages(connection: sqlite3.Connection) -> Messages:
    added = [Message(OrderCreated(1), key=1), Message(OrderCreated(2), key=2), Message(StockReserved(1), topic="stock")]
    OUTBOX.add_many(connection, added)
    return outbox_messages(connection)


def test_these_and_no_others(messages: Messages) -> None:
    first, second, third = messages
    assert messages.assert_only(OrderCreated, "stock.reserved", OrderCreated(1)) == [second, third, first]
    assert messages.assert_only(Message(OrderCreated, key=2), Message("order.created", key=1), StockReserved(1))
    Messages().assert_only()
    with pytest.raises(
        AssertionError, match=r"missing: order.paid\nnot expected: stock.reserved key=None topic='stock'"
    ):
        messages.assert_only(OrderCreated, OrderCreated, "order.paid")
    with pytest.raises(AssertionError, match=r"not expected: order.created key='2' .*\n?messages:\n  order.created"):
        messages.assert_only(OrderCreated(1), StockReserved)
    with pytest.raises(AssertionError, match=r"missing: order.created key='3'"):
        messages.assert_only(Message(OrderCreated, key=3), OrderCreated, OrderCreated, StockReserved)
    with pytest.raises(AssertionError, match="not expected"):
        messages.assert_only()


def test_what_was_not_added(messages: Messages) -> None:
    messages.refute_added("order.paid")
    messages.refute_added(OrderCreated(3))
    messages.refute_added(OrderCreated, key=3)
    messages.refute_added(Message(StockReserved(1), topic="other"))
    with pytest.raises(AssertionError, match="expected none, found 1: order.created key='2'"):
        messages.refute_added(OrderCreated, key=2)


# -- perform -----------------------------------------------------------------------------------------------------------


def test_one_handler_with_anything_for_its_transaction() -> None:
    stock = consumer_of()
    calls: list[Any] = []

    @stock.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
        calls.append((event, tx, message.key, message.headers))
        if event.order < 0:
            raise LookupError("there is no such order")

    perform(stock, Message(OrderCreated(1), key=1, headers={"tenant": "a"}), tx="a fake")
    assert calls == [(OrderCreated(1), "a fake", "1", {"tenant": "a"})]
    with pytest.raises(LookupError, match="no such order"):
        perform(stock, OrderCreated(-1), tx=None)
    with pytest.raises(Unreadable, match="no handler of consumer 'stock' takes the type 'stock.reserved'"):
        perform(stock, StockReserved(1), tx=None)
    with pytest.raises(InvalidSetting, match="has no handler"):
        perform(consumer_of(), OrderCreated(1), tx=None)


async def test_an_async_handler(path: Path) -> None:
    stock = consumer_of()
    seen: list[Any] = []

    @stock.on_batch(OrderCreated)
    async def reserve(batch: Sequence[tuple[OrderCreated, Received]], tx: Any) -> None:
        seen.extend(event for event, _ in batch)

    await perform(stock, OrderCreated(1), tx=None)
    assert seen == [OrderCreated(1)]
    with pytest.warns(NeverAwaited, match="no handler was called by consumer stock"):
        perform(stock, OrderCreated(1), tx=None)


# -- wrong uses --------------------------------------------------------------------------------------------------------


def test_what_never_ends_is_stopped(connection: sqlite3.Connection) -> None:
    stock = consumer_of()

    @stock.on(OrderCreated)
    def again(event: OrderCreated, tx: Any, message: Received) -> None:
        OUTBOX.add(tx, OrderCreated(event.order + 1), deliver_in="1d")

    OUTBOX.add(connection, OrderCreated(1))
    with pytest.raises(AssertionError, match=r"handlers were called 20 times.*until='1d'"):
        deliveries(connection, stock, most=20)
    connection.rollback()
    OUTBOX.add(connection, OrderCreated(1))
    assert len(deliveries(connection, stock, until="80h", most=20).handled) == 4


def test_a_payload_that_does_not_fit_is_dead_at_once(connection: sqlite3.Connection) -> None:
    stock = consumer_of()
    stock.on(OrderCreated)(lambda event, tx, message: None)
    OUTBOX.add(connection, {"order": "many"}, type="order.created")
    found = deliveries(connection, stock)
    assert (found.failed, found.handled) == (0, [])
    assert found.dead[0].reason.startswith("its payload is no OrderCreated")


def test_wrong_arguments(connection: sqlite3.Connection) -> None:
    stock, other = consumer_of(), consumer_of()
    for each in (stock, other):
        each.on(OrderCreated)(lambda event, tx, message: None)
    asynchronous = consumer_of("async")

    @asynchronous.on(OrderCreated)
    async def handle(event: OrderCreated, tx: Any, message: Received) -> None: ...

    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        ([], {}, "has no consumer"),
        ([stock, other], {}, "two consumers named 'stock'"),
        ([asynchronous], {}, "'async' has async handlers, and Connection is a sync connection"),
        ([OUTBOX], {}, "for a consumer; it takes Consumers"),
        ([consumer_of("none")], {}, "has no handler"),
        ([stock], {"most": 0}, "most is 0"),
        ([stock], {"until": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ([stock], {"until": "soon"}, "until is 'soon'"),
    ]
    for consumers, options, words in wrong:
        with pytest.raises(InvalidSetting, match=words):
            deliveries(connection, *consumers, **options)


def test_the_tables_are_missing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as connection, pytest.raises(NotMigrated):
        outbox_messages(connection)
