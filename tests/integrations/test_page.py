"""docs/integrations.md says what works: its blocks run, and what it names is there."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import Integer, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette

from postroad import Consumer, Message, Outbox, Received
from postroad.asgi import CorrelationMiddleware
from postroad.stores.sqlite import migrate_sqlite
from postroad.testing import MemorySink, outbox_messages

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def block(words: str) -> CodeType:
    [found] = [each for each in BLOCKS if words in each]
    return compile(found, "integrations.md", "exec", dont_inherit=True)


class Base(DeclarativeBase):
    pass


@dataclass
class OrderPaid:
    order: int


@dataclass
class OrderCreated:
    order: int


def test_the_entity_and_the_tests_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    migrate_sqlite(path)
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    names: dict[str, Any] = {
        "Session": sessionmaker(engine), "Base": Base, "OrderPaid": OrderPaid, "OrderCreated": OrderCreated,
        "Mapped": Mapped, "mapped_column": mapped_column,
    }  # fmt: skip
    exec(block("record_events(Session"), names)
    exec(block("def take_events"), names)
    Base.metadata.create_all(engine)
    with names["Session"].begin() as session:
        session.add(order := names["Order"]())
        order.pay()
        outbox_messages(session).assert_added(OrderPaid(order.id), key=order.id, times=1)
        names["outbox"].add(session, OrderCreated(order.id), key=order.id)
    exec(block("def test_an_order_and_its_event"), names)
    sink = MemorySink()
    asyncio.run(names["test_it_arrives"](f"sqlite:///{path}", sink))
    assert {each.type for each in sink.messages} == {"order.paid", "order.created"}


@dataclass
class StockReserved:
    order: int


def test_the_deliveries_of_the_page(tmp_path: Path, deliver: Any) -> None:
    path = tmp_path / "shop.sqlite"
    migrate_sqlite(path)
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    consumer = Consumer("amqp://nowhere.invalid", name="stock", begin=sessionmaker(engine).begin)

    @consumer.on(OrderCreated)
    def reserve(event: OrderCreated, tx: Session, message: Received) -> None:
        if event.order < 0:
            raise ValueError(f"there is no order {event.order}")
        Outbox(source="/stock").add(tx, StockReserved(event.order), key=event.order)

    names: dict[str, Any] = {
        "consumer": consumer, "Message": Message, "OrderCreated": OrderCreated, "StockReserved": StockReserved,
    }  # fmt: skip
    exec(block("def test_stock_is_reserved"), names)
    names["test_stock_is_reserved"](deliver)
    names["test_what_can_t_be_reserved_is_a_dead_letter"](deliver)


async def test_the_endpoint_of_the_page_answers_after_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    migrate_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table customers (id integer primary key)")
        connection.execute(
            "create table orders (id integer primary key, customer integer not null default 1 "
            "references customers deferrable initially deferred)"
        )
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
    event.listen(engine.sync_engine, "connect", lambda connection, _: connection.execute("pragma foreign_keys = on"))
    base: Any = type("Shop", (DeclarativeBase,), {})
    order = type("Order", (base,), {"__tablename__": "orders", "id": mapped_column(Integer, primary_key=True)})
    app = FastAPI()
    names: dict[str, Any] = {
        "Session": async_sessionmaker(engine), "Annotated": Annotated, "AsyncSession": AsyncSession, "Depends": Depends,
        "app": app, "Order": order, "OrderCreated": OrderCreated, "outbox": Outbox(source="/orders"),
    }  # fmt: skip
    exec(block("Depends(begin"), names)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.post("/orders")).status_code == 500, "there is no such customer, as the commit finds out"
        with closing(sqlite3.connect(path)) as connection:
            assert not outbox_messages(connection)
            with connection:
                connection.execute("insert into customers values (1)")
        assert (await client.post("/orders")).status_code == 201
    with closing(sqlite3.connect(path)) as connection:
        outbox_messages(connection).assert_added(OrderCreated, times=1)


def test_the_other_blocks() -> None:
    configured: dict[str, Any] = {}
    context = SimpleNamespace(configure=lambda *_, **given: configured.update(given))
    exec(block("context.configure("), {"context": context})
    assert not configured["include_name"]("outbox", "table", {"schema_name": "postroad"})
    assert configured["include_name"]("orders", "table", {"schema_name": None})
    app = Starlette()
    exec(block("app.add_middleware"), {"app": app, "CorrelationMiddleware": CorrelationMiddleware})
    middleware: list[Any] = [each.cls for each in app.user_middleware]
    assert middleware == [CorrelationMiddleware]


@pytest.mark.parametrize("text", BLOCKS)
def test_every_block_is_python(text: str) -> None:
    compile(text, "integrations.md", "exec")
