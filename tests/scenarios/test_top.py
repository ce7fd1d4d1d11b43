"""`postroad top` and `status --watch` in a real terminal: keys, sizes, signals, and a database that goes away."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from postroad import LocalPublisher, Outbox, Relay
from postroad.config import RelaySettings
from postroad.message import StoredMessage
from postroad.stores.postgresql import migrate_postgresql
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.services.postgresql import PostgreSQL
from tests.terminals import Terminal


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A file with 30 lanes, which have delivered ten messages."""
    file = tmp_path / "shop.sqlite"
    migrate_sqlite(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        for number in range(10):
            Outbox(source="/shop").add(connection, {"n": number}, type="order.placed", key=number)

    async def take(message: StoredMessage) -> None:
        """All is well."""

    relay = Relay(SQLiteStore(file), LocalPublisher(take), settings=RelaySettings(lanes=30))
    asyncio.run(relay.run_until_empty())
    return file


def top(file: Path, *options: str, columns: int = 80, rows: int = 24) -> Terminal:
    database = ("--database", f"sqlite:///{file}")
    return Terminal("top", *database, "--interval", "0.2", *options, folder=file.parent, columns=columns, rows=rows)


def postroad(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "postroad", *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_keys_switch_views_and_end_it(shop: Path) -> None:
    with top(shop) as terminal:
        terminal.until("nothing needs attention")
        assert "default" in terminal.picture
        for key, shown in (("2", "owner"), ("4", "audit, newest first"), ("3", "nothing needs"), ("1", "pending")):
            terminal.press(key)
            terminal.until(shown)
        terminal.press("\x1b[A?x")  # an arrow, and keys without a meaning
        terminal.press("p")
        terminal.until("PAUSED")
        terminal.press("p")
        terminal.until(lambda picture: "PAUSED" not in picture and "quit" in picture)
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.is_as_before
        assert "Traceback" not in terminal.output


@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_a_signal_ends_it_and_the_terminal_is_as_before(shop: Path, how: str) -> None:
    with top(shop) as terminal:
        terminal.until("quit")
        if how == "ctrl-c":
            terminal.press("\x03")
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == 0
        assert terminal.is_as_before
        assert "Traceback" not in terminal.output
        assert "Aborted" not in terminal.output


def test_it_follows_the_size_of_the_terminal(shop: Path) -> None:
    with top(shop, "--view", "lanes") as terminal:
        terminal.until("more lines; enlarge the terminal")
        terminal.resize(120, 40)
        terminal.until(lambda picture: "quit" in picture and "more lines" not in picture)
        terminal.resize(30, 5)
        terminal.until("more lines; enlarge")
        assert len(terminal.picture.splitlines()) <= 5


def test_nothing_is_erased_between_two_pictures(shop: Path) -> None:
    """What is erased and drawn again flickers."""
    with top(shop) as terminal:
        terminal.until("quit")
        drawn = terminal.output.count("\x1b[H")
        terminal.until(lambda _: terminal.output.count("\x1b[H") > drawn + 3)
        later = "".join(terminal.output.split("\x1b[H")[drawn:])
        assert not re.search(r"\x1b\[[0-3]?J", later)


def test_a_database_that_goes_away_and_comes_back(postgresql15: PostgreSQL, tmp_path: Path) -> None:
    postgresql15.start()
    url = postgresql15.create_database()
    asyncio.run(migrate_postgresql(url))
    try:
        with Terminal("top", "--database", url, "--interval", "0.2", folder=tmp_path) as terminal:
            terminal.until("There is no sink yet")
            postgresql15.stop("immediate")
            terminal.until("! PostgreSQL")
            terminal.press("2")
            terminal.until(lambda picture: "owner" in picture and "! PostgreSQL" in picture)
            postgresql15.start()
            terminal.until(lambda picture: "quit" in picture and "! " not in picture)
            terminal.press("q")
            assert terminal.ended() == 0
            assert "Traceback" not in terminal.output
    finally:
        postgresql15.start()
        postgresql15.drop_database(url)


def test_one_picture_for_a_script(shop: Path) -> None:
    done = postroad("top", "--once", "--database", f"sqlite:///{shop}")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("postroad top  20")
    assert lines[2].split()[:2] == ["default", "0"]
    assert (
        len(postroad("top", "--once", "--view", "lanes", "--database", f"sqlite:///{shop}").stdout.splitlines()) == 32
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "stdout is no terminal"),
        (("--once", "--view", "sink"), "--view is 'sink'; it must be sinks, lanes, notices, audit"),
        (("--interval", "0"), "--interval is '0'; it must be seconds from 0.1 to 3600"),
        (("--interval", "often"), "--interval is 'often'; it must be seconds"),
        (("--interval", "1.2.3"), "--interval is '1.2.3'"),
    ],
)
def test_wrong_use_is_one_line(shop: Path, arguments: tuple[str, ...], says: str) -> None:
    done = postroad("top", "--database", f"sqlite:///{shop}", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_url_ends_it(tmp_path: Path) -> None:
    with Terminal("top", "--database", "postgresql://host:no/x", folder=tmp_path) as terminal:
        assert terminal.ended() == 2
        assert terminal.is_as_before
        assert "Traceback" not in terminal.output


# -- status --watch --------------------------------------------------------------------------------------------------


def test_status_is_shown_again_and_again(shop: Path) -> None:
    with Terminal("status", "--watch", "0.2", "--database", f"sqlite:///{shop}", folder=shop.parent) as terminal:
        terminal.until(lambda _: terminal.output.count("oldest unsent") >= 3)
        terminal.press("\x03")
        assert terminal.ended() == 0
        assert "Traceback" not in terminal.output


def test_status_in_a_pipe_is_a_line_of_json_each_time(shop: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "postroad", "status", "--json", "--watch", "100ms", "--database", f"sqlite:///{shop}"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["totals"]["pending"] == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_status_watch_may_have_no_seconds(shop: Path) -> None:
    with Terminal("status", "--watch", "--database", f"sqlite:///{shop}", folder=shop.parent) as terminal:
        terminal.until("oldest unsent")
        terminal.press("\x03")
        assert terminal.ended() == 0
    done = postroad("status", "--watch", "never", "--database", f"sqlite:///{shop}")
    assert (done.returncode, "--watch is 'never'" in done.stderr) == (2, True)


def test_status_watch_waits_for_a_database_that_is_away(postgresql15: PostgreSQL, tmp_path: Path) -> None:
    postgresql15.start()
    url = postgresql15.create_database()
    asyncio.run(migrate_postgresql(url))
    try:
        with Terminal("status", "--watch", "0.2", "--database", url, folder=tmp_path) as terminal:
            terminal.until("There is no sink yet")
            postgresql15.stop("immediate")
            terminal.until("postroad: PostgreSQL")
            postgresql15.start()
            terminal.until("There is no sink yet")
    finally:
        postgresql15.start()
        postgresql15.drop_database(url)
