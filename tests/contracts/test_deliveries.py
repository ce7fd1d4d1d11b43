"""`deliveries` runs producers and consumers in a transaction that is never committed, on every kind of connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroad import Backoff, Consumer, Message, NotMigrated, NoTransaction, Outbox, Received
from postroad.stores.connections.kinds import adapter_for
from postroad.stores.sqlite import migrate_sqlite
from postroad.testing import deliveries, outbox_messages, scheduled_messages
from tests.adapters.base import Adapter, Database, OnPostgreSQL, OnSQLite, done
from tests.adapters.kinds import KINDS, Kind
from tests.logs import PostgreSQLLog

OUTBOX = Outbox(source="/orders")


@dataclass
class OrderCreated:
    order: int


@dataclass
class StockReserved:
    order: int


@dataclass
class Reminder:
    number: int


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
async def database(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if kind.dialect == "postgresql":
        log = await PostgreSQLLog.fresh(request.getfixturevalue("postgresql15"))
        return await OnPostgreSQL(log).prepare()
    migrate_sqlite(tmp_path / "shop.sqlite")
    return OnSQLite(tmp_path / "shop.sqlite")


@pytest.fixture
async def adapter(kind: Kind, database: Database) -> Adapter:
    return kind.make(database)


def never() -> Any:
    raise AssertionError("deliveries begins no transaction of the consumer's own")


Work = Callable[[Any, Any, Received], Coroutine[Any, Any, None]]


def consuming(connection: Any, name: str, handlers: dict[type, Work], **settings: Any) -> Consumer[Any]:
    """A consumer whose handlers are plain functions where the connection is sync: those never suspend."""
    consumer = Consumer[Any](name=name, begin=never, **settings)
    cls: type = type(connection)
    is_async = adapter_for(cls).is_async

    def plain(work: Work) -> Any:
        def handle(event: Any, tx: Any, message: Received) -> None:
            with suppress(StopIteration):
                work(event, tx, message).send(None)
                raise AssertionError("it suspends")

        return handle

    for cls, work in handlers.items():
        consumer.on(cls)(work if is_async else plain(work))
    return consumer


async def everything(database: Database) -> list[Any]:
    """What is committed."""
    tables = ("orders", database.outbox, database.scheduled, database.outbox.replace("outbox", "inbox"))
    return [row for table in tables for row in await database.rows(f"select 1 from {table}")]


async def test_messages_go_from_handler_to_handler_and_nothing_is_committed(
    adapter: Adapter, database: Database
) -> None:
    async def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
        await adapter.order(tx, event.order)
        await done(OUTBOX.add(tx, StockReserved(event.order), key=event.order))

    shipped: list[tuple[int, str | None]] = []

    async def ship(event: StockReserved, tx: Any, message: Received) -> None:
        shipped.append((event.order, message.correlation_id))

    with suppress(LookupError):
        async with adapter.transaction() as connection:
            stock = consuming(connection, "stock", {OrderCreated: reserve})
            shipping = consuming(connection, "shipping", {StockReserved: ship})
            await done(OUTBOX.add(connection, OrderCreated(1), key=1, correlation_id="a"))
            await done(OUTBOX.add(connection, b"?", type="other"))
            first = await done(deliveries(connection, stock, shipping))
            assert first.events == [OrderCreated(1), StockReserved(1)]
            assert [each.consumer for each in first.handled] == ["stock", "shipping"]
            assert (first.dead, first.again, first.failed, first.waiting) == ([], [], 0, [])
            assert shipped == [(1, "a")]
            first.added.assert_only(Message(StockReserved(1), key=1))
            first.unhandled.assert_only("other")
            assert await everything(database) == [], "nothing was committed"
            await done(OUTBOX.add(connection, OrderCreated(2)))
            second = await done(deliveries(connection, stock, shipping))
            assert second.events == [OrderCreated(2), StockReserved(2)]
            assert [each.type for each in second.again] == ["order.created", "stock.reserved"], "no second effect"
            assert shipped == [(1, "a"), (2, str(second.handled[0].message.id))]
            assert await everything(database) == []
            raise LookupError
    assert await everything(database) == [], "and a rollback takes everything back"


async def test_a_failed_attempt_leaves_nothing_and_time_jumps_to_the_retry(
    adapter: Adapter, database: Database
) -> None:
    calls: list[tuple[int, int]] = []

    async def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
        calls.append((event.order, message.attempt))
        await adapter.order(tx, event.order)
        await done(OUTBOX.add(tx, StockReserved(event.order)))
        if event.order == 1 or message.attempt < 3:
            raise ValueError(f"order {event.order}")

    with suppress(LookupError):
        async with adapter.transaction() as connection:
            stock = consuming(connection, "stock", {OrderCreated: reserve}, retry=Backoff(max_attempts=3, jitter=0))
            orders = [Message(OrderCreated(1), key="a"), Message(OrderCreated(2), key="a"), Message(OrderCreated(3))]
            await done(OUTBOX.add_many(connection, orders))
            began = datetime.now(UTC)
            found = await done(deliveries(connection, stock))
            # Order 2 waits behind order 1, which has its key, and order 3 does not.
            assert calls == [(1, 1), (3, 1), (1, 2), (3, 2), (1, 3), (2, 1), (3, 3), (2, 2), (2, 3)]
            assert [each.event.order for each in found.handled] == [3, 2]
            assert found.failed == 7
            [dead] = found.dead
            assert (dead.reason, dead.consumer, dead.message.attempt) == ("ValueError: order 1", "stock", 3)
            assert isinstance(dead.error, ValueError)
            waited = [each.at - began for each in found.handled]
            assert all(timedelta(seconds=5) < each < timedelta(minutes=5) for each in waited), "2 s and 4 s, and more"
            found.added.assert_only(StockReserved(2), StockReserved(3))
            raise LookupError
    assert await everything(database) == []


async def test_time_jumps_to_scheduled_messages(adapter: Adapter, database: Database) -> None:
    canceled: list[Any] = []

    async def remind(event: Any, tx: Any, message: Received) -> None:
        if event.number < 3:
            await done(OUTBOX.add(tx, Reminder(event.number + 1), deliver_in="2d"))
        canceled.append(bool(await done(OUTBOX.cancel(tx, forgotten))))

    with suppress(LookupError):
        async with adapter.transaction() as connection:
            consumer = consuming(connection, "reminders", {Reminder: remind, OrderCreated: remind})
            forgotten: UUID = await done(OUTBOX.add(connection, OrderCreated(9), deliver_in="30d"))
            now = datetime.now(UTC)
            await done(OUTBOX.add(connection, Reminder(1), deliver_at=now + timedelta(days=1)))
            early = await done(deliveries(connection, consumer, until="20h"))
            assert (early.handled, [each.type for each in early.waiting]) == ([], ["reminder", "order.created"])
            assert [each.type for each in await done(scheduled_messages(connection))] == ["reminder", "order.created"]
            some = await done(deliveries(connection, consumer, until=timedelta(days=4)))
            assert some.events == [Reminder(1), Reminder(2)]
            [left] = some.waiting
            second = (await done(outbox_messages(connection)))[1]
            assert some.added.assert_only(Reminder(2), Reminder(3)) == [second, left]
            days = [round((each.at - now) / timedelta(days=1), 2) for each in some.handled]
            assert days == [1.0, 3.0], "a delay counts from the time at which its handler runs"
            rest = await done(deliveries(connection, consumer))
            assert rest.events == [Reminder(3)]
            assert canceled == [True, False, False], "what a handler cancels does not come"
            assert await done(scheduled_messages(connection)) == []
            raise LookupError
    assert await everything(database) == []


async def test_what_needs_a_transaction_says_so(adapter: Adapter, database: Database) -> None:
    async def handle(event: OrderCreated, tx: Any, message: Received) -> None: ...

    async with adapter.outside() as connection:
        consumer = consuming(connection, "stock", {OrderCreated: handle})
        with pytest.raises(NoTransaction):
            await done(deliveries(connection, consumer))
    await database.unmigrate()
    with suppress(NotMigrated):
        async with adapter.transaction() as connection:
            await done(deliveries(connection, consumer))
            raise AssertionError("there are no tables")
