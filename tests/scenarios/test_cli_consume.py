"""`postroad consume --app` and `postroad relay --app`, as a user would run them."""

from __future__ import annotations

import json
import os
import signal
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

from postroad import Consumer, Received


@dataclass
class OrderCreated:
    order: int


@contextmanager
def begin():
    with closing(sqlite3.connect("shop.sqlite")) as connection, connection:
        yield connection


stock = Consumer(os.environ.get("BROKER"), name="stock", begin=begin, bindings=["order.#"])


@stock.on(OrderCreated)
def reserve(event: OrderCreated, tx: sqlite3.Connection, message: Received) -> None:
    tx.execute("insert into reserved values (?)", (event.order,))


no_consumer = 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        connection.execute("create table reserved (number integer)")
        for number in range(5):
            Outbox(source="/shop").add(connection, {"order": number}, type="order.created", key=number)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")} | more


def postroad(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "postroad", *arguments],
        cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def reserved(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        return sorted(row[0] for row in connection.execute("select number from reserved"))


def test_a_relay_with_handlers_of_ones_own(folder: Path) -> None:
    command = ("relay", "--until-empty", "--database", "sqlite:///shop.sqlite", "--app", "shop:stock")
    done = postroad(folder, *command)
    assert done.returncode == 0, done.stderr
    assert "relay stock: started, to handler stock" in done.stderr, "the sink is called as the consumer"
    assert reserved(folder) == list(range(5))
    assert "0 published" in postroad(folder, *command).stdout
    assert "relay again: started" in postroad(folder, *command, "--sink", "again").stderr
    assert reserved(folder) == list(range(5)), "the inbox knows them, whatever the sink"


def test_a_queue_is_consumed(folder: Path, vhost: str) -> None:
    done = postroad(folder, "consume", "--app", "shop:stock", "--until-empty", BROKER=vhost)
    assert (done.returncode, done.stdout[:9]) == (0, "0 handled"), done.stderr
    to = ("--database", "sqlite:///shop.sqlite", "--to", vhost)
    assert postroad(folder, "relay", "--until-empty", *to).returncode == 0
    done = postroad(folder, "consume", "--until-empty", BROKER=vhost, POSTROAD_APP="shop:stock")
    assert (done.returncode, done.stdout[:9]) == (0, "5 handled"), done.stderr
    assert reserved(folder) == list(range(5))


def test_a_signal_stops_it(folder: Path, vhost: str) -> None:
    consuming = subprocess.Popen(
        [sys.executable, "-m", "postroad", "consume", "--app", "shop:stock", "--log-format", "json"],
        cwd=folder, env=environment(BROKER=vhost), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert consuming.stderr is not None
    assert [json.loads(consuming.stderr.readline())["event"] for _ in range(2)] == ["consumer_started", "receiving"]
    consuming.send_signal(signal.SIGTERM)
    stdout, stderr = consuming.communicate(timeout=60)
    assert (consuming.returncode, stdout[:9]) == (0, "0 handled")
    assert [json.loads(line)["event"] for line in stderr.splitlines()] == ["stopping", "consumer_ended"]


@pytest.mark.parametrize(
    ("app", "wrong"),
    [
        ("stock", "it must be a module and a name in it"),
        ("nowhere:stock", "there is no module 'nowhere'"),
        ("broken:stock", "importing 'broken' failed: No module named 'nowhere_to_be_found'"),
        ("shop:other", "'shop' has no 'other'; it has the consumers stock"),
        ("shop:no_consumer", "which is of type int; it must be a postroad.Consumer"),
        ("shop:stock", "consumer 'stock' has no broker"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(folder: Path, app: str, wrong: str) -> None:
    done = postroad(folder, "consume", "--app", app)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert wrong in done.stderr


def test_one_destination_only(folder: Path) -> None:
    to = ("--database", "sqlite:///shop.sqlite", "--to", "null://")
    done = postroad(folder, "relay", "--until-empty", *to, "--app", "shop:stock")
    assert (done.returncode, "to and app are both given" in done.stderr) == (2, True)
    done = postroad(folder, "relay", "--until-empty", *to, POSTROAD_APP="shop:stock")
    assert "to null://" in done.stderr, "the command line wins"
    assert reserved(folder) == []
