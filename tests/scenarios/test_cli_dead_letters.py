"""`postroad inbox dead` on a real RabbitMQ, as an operator would run it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroad import Outbox
from postroad.stores.sqlite import migrate_sqlite

APP = """
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta

from postroad import Backoff, Consumer, Received, event


@event("order.created")
@dataclass
class OrderCreated:
    order: int


@contextmanager
def begin():
    with closing(sqlite3.connect("shop.sqlite")) as connection, connection:
        yield connection


soon = Backoff(max_attempts=2, first=timedelta(milliseconds=1))
stock = Consumer(os.environ["BROKER"], name="stock", begin=begin, retry=soon)


@stock.on(OrderCreated)
def reserve(event: OrderCreated, tx: sqlite3.Connection, message: Received) -> None:
    if str(event.order) in os.environ.get("FAILS", ""):
        raise LookupError(f"no shelf for order {event.order}")
    tx.execute("insert into reserved values (?)", (event.order,))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "postroad.toml").write_text('database = "sqlite:///shop.sqlite"\napp = "shop:stock"\n')
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        connection.execute("create table reserved (number integer)")
        for number in range(4):
            Outbox(source="/shop").add(connection, {"order": number}, type="order.created", key=number)
    return tmp_path


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")} | more
    return subprocess.run(
        [sys.executable, "-P", "-m", "postroad", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def reserved(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        return sorted(row[0] for row in connection.execute("select number from reserved"))


def test_dead_letters_are_listed_shown_retried_and_dropped(folder: Path, vhost: str) -> None:
    def postroad(*arguments: str, code: int = 0, **more: str) -> str:
        done = run(folder, *arguments, BROKER=vhost, **more)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    postroad("consume", "--until-empty")  # declares its queue
    settings = (folder / "postroad.toml").rename(folder / "aside.toml")  # a relay would take `app` for its destination
    postroad("relay", "--until-empty", "--database", "sqlite:///shop.sqlite", "--to", vhost)
    settings.rename(folder / "postroad.toml")
    failed = run(folder, "consume", "--until-empty", BROKER=vhost, FAILS="1,2,3")
    assert failed.returncode == 1, "a message became a dead letter"
    assert reserved(folder) == [0]

    assert "no shelf for order 2" in postroad("inbox", "dead", "list")
    listed = json.loads(postroad("inbox", "dead", "list", "--error", "ORDER 1", "--json"))
    (letter,) = listed["dead_letters"]
    id = letter["message_id"]
    assert (letter["consumer"], letter["attempts"], listed["total"]["number"]) == ("stock", 2, 1)
    shown = postroad("inbox", "dead", "show", id[-8:], "--payload")
    assert "queue stock.dead" in shown
    assert "no shelf for order 1" in shown
    assert '"order": 1' in shown
    whole = json.loads(postroad("inbox", "dead", "show", id, "--json"))
    assert whole["letter"]["headers"]["postroad-queue"] == "stock"
    assert "payload" not in whole["letter"]

    assert "1 dead letter of consumer 'stock' would be moved" in postroad("inbox", "dead", "retry", id, "--dry-run")
    assert "1 dead letter will be handled again" in postroad("inbox", "dead", "retry", id, "--yes")
    postroad("consume", "--until-empty")
    assert reserved(folder) == [0, 1]

    assert "no dead letters are selected" in postroad("inbox", "dead", "drop", "--yes", "--reason", "x", code=2)
    assert "no dead letter of consumer 'stock'" in postroad("inbox", "dead", "retry", id, "--yes", code=1)
    dropped = postroad("inbox", "dead", "drop", "--type", "order.created", "--reason", "obsolete", "--yes")
    assert "dropped 2 dead letters" in dropped
    assert postroad("inbox", "dead", "list") == "No dead letter matches.\n"
    postroad("consume", "--until-empty")
    assert reserved(folder) == [0, 1]
    audit = json.loads(postroad("audit", "--json"))
    assert [(line["command"], line["changed"], line["reason"]) for line in audit] == [
        ("inbox dead drop", 2, "obsolete"),
        ("inbox dead retry", 1, None),
    ]
