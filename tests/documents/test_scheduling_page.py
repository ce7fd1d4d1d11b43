"""docs/scheduling.md says what works: its blocks run, and the answers are the ones that there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroad import Cancellation, Outbox, retry_on_conflict
from postroad.conflicts import AlreadyDone
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from postroad.testing import outbox_messages

PAGE = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@dataclass
class PaymentOverdue:
    order: int


@dataclass
class SorryForTheReminder:
    order: int


@dataclass
class OrderClosed:
    order: int


class Stale(Exception):
    pass


class Shop:
    """A database, and the page's functions."""

    def __init__(self, path: Path) -> None:
        migrate_sqlite(path)
        self.path = path
        self.names: dict[str, Any] = {
            "outbox": Outbox(source="/shop"), "connect": self.connect, "Stale": Stale, "AlreadyDone": AlreadyDone,
            "retry_on_conflict": retry_on_conflict, "Cancellation": Cancellation, "PaymentOverdue": PaymentOverdue,
            "SorryForTheReminder": SorryForTheReminder, "OrderClosed": OrderClosed,
        }  # fmt: skip
        for block in BLOCKS:
            exec(compile(block, "scheduling.md", "exec", dont_inherit=True), self.names)
        with self.connect() as connection:
            connection.execute("create table orders (id integer primary key, state text, version integer default 0)")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            yield connection


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.sqlite")


def test_a_reminder_that_is_taken_back(shop: Shop) -> None:
    with shop.connect() as connection:
        reminder = shop.names["place"](connection, 1)
    with shop.connect() as connection:
        shop.names["pay"](connection, 1, reminder)
        assert outbox_messages(connection) == []
        assert connection.execute("select count(*) from postroad_scheduled").fetchone() == (0,)


async def test_a_reminder_that_has_gone_out(shop: Shop) -> None:
    with shop.connect() as connection:
        reminder = shop.names["place"](connection, 1)
        connection.execute("update postroad_scheduled set due_at = 0")
    store = SQLiteStore(shop.path)
    await store.open()
    await store.move_scheduled(10)
    await store.close()
    with shop.connect() as connection:
        shop.names["pay"](connection, 1, reminder)
        messages = outbox_messages(connection)
        messages.assert_added(PaymentOverdue(1))
        messages.assert_added(SorryForTheReminder(1))


def test_two_transactions_close_an_order(shop: Shop) -> None:
    with shop.connect() as connection:
        connection.execute("insert into orders (id, state) values (1, 'open')")
    shop.names["close"](1)
    shop.names["close"](1)
    with shop.connect() as connection:
        outbox_messages(connection).assert_added(OrderClosed(1), times=1)


def test_every_answer_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed == [answer.name for answer in Cancellation]
