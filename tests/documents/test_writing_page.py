"""docs/writing.md says what works: its blocks run on SQLite, one after the other, and add what the page says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette

from postroad import IdTaken, InvalidMessage, Outbox
from postroad.asgi import CorrelationMiddleware
from postroad.message import LARGEST_PAYLOAD, LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_KEY, LONGEST_NAME
from postroad.stores.sqlite import migrate_sqlite
from postroad.testing import outbox_messages
from tests.documents.reader import ROOT, blocks

PAGE = ROOT / "docs" / "writing.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())
PYTHON = [text for kind, text in blocks(PAGE) if kind == "python"]
FUNCTIONS = [text for text in PYTHON if "add_middleware" not in text and "Session" not in text and "Base" not in text]


class Base(DeclarativeBase):
    pass


class Shop:
    """The page's functions, and a database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.names: dict[str, Any] = {"__name__": "shop"}
        for text in FUNCTIONS:
            exec(compile(text, "writing.md", "exec", dont_inherit=True), self.names)

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    migrate_sqlite(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute("create table orders (id integer primary key, total integer)")
        connection.execute("begin")
        yield Shop(connection)


def test_types_topics_and_headers(shop: Shop) -> None:
    shop.place_order(shop.connection, 10)
    shop.cancel_order(shop.connection, 1)
    shop.refund(shop.connection, 1, "fr")
    shop.place_for_tenant(shop.connection, "acme", 20)
    messages = outbox_messages(shop.connection)
    messages.assert_added("order.cancelled.v1", key=1, times=1)
    messages.assert_added("order.archived", key=1)
    messages.assert_added("order.refunded", topic="order.refunded.fr")
    assert messages[-1].headers == {"tenant": "acme"}


def test_adding_twice(shop: Shop) -> None:
    shop.import_line(shop.connection, "a.csv", 1)
    shop.import_line(shop.connection, "a.csv", 1)
    outbox_messages(shop.connection).assert_added("line.imported", times=1)
    with pytest.raises(IdTaken):
        shop.outbox.add(shop.connection, {"line": 2}, type="line.imported", id=shop.uuid5(shop.NAMESPACE, "a.csv:1"))


def test_many_at_once_and_a_correlation_id(shop: Shop) -> None:
    shop.place_orders(shop.connection, [1, 2, 3])
    shop.nightly_job(shop.connection)
    messages = outbox_messages(shop.connection)
    assert [each.key for each in messages] == ["1", "2", "3", "4"]
    assert messages[-1].correlation_id == "nightly-2026-11-18"


@pytest.mark.parametrize("event", [{"a": float("nan")}, type("Dict", (dict,), {})()])
def test_what_the_page_says_is_refused(shop: Shop, event: Any) -> None:
    with pytest.raises(InvalidMessage):
        shop.outbox.add(shop.connection, event, type="a")


def test_the_limits_are_those_of_the_code() -> None:
    assert f"at most {LONGEST_KEY:,} bytes" in TEXT
    assert f"at most {LONGEST_NAME} bytes" in TEXT
    assert f"at most {LONGEST_HEADERS // 1024} KB as JSON" in TEXT
    assert f"more than {LARGEST_PAYLOAD // 1024**2} MiB" in TEXT
    assert f"up to {LARGEST_PAYLOAD_OF_ALL // 1024**2} MiB" in TEXT
    assert Outbox(source="/shop", largest_payload=4 * 1024 * 1024).largest_payload < LARGEST_PAYLOAD_OF_ALL


def test_the_entity_of_the_page(tmp_path: Path, shop: Shop) -> None:
    shop.connection.rollback()
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}", poolclass=NullPool)
    paid = shop.dataclass(type("OrderPaid", (), {"__annotations__": {"order": int}}))
    names: dict[str, Any] = shop.names | {
        "__name__": "shop", "Session": sessionmaker(engine), "Base": Base, "Mapped": Mapped,
        "mapped_column": mapped_column, "OrderPaid": paid,
    }  # fmt: skip
    for words in ("record_events(Session", "def take_events"):
        (text,) = [each for each in PYTHON if words in each]
        exec(compile(text, "writing.md", "exec", dont_inherit=True), names)
    shop.connection.execute("drop table orders")
    shop.connection.commit()
    Base.metadata.create_all(engine)
    with names["Session"].begin() as session:
        session.add(order := names["Order"]())
        order.pay()
        outbox_messages(session).assert_added("order.paid", key=order.id, times=1)


def test_the_middleware_of_the_page() -> None:
    app = Starlette()
    (text,) = [each for each in PYTHON if "add_middleware" in each]
    exec(compile(text, "writing.md", "exec"), {"app": app, "CorrelationMiddleware": CorrelationMiddleware})
    middleware: list[Any] = [each.cls for each in app.user_middleware]
    assert middleware == [CorrelationMiddleware]
