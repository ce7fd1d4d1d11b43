"""`postroad consumers`: which are alive, where, and what they have done."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postroad.message import new_id
from postroad.ops.cli import app
from postroad.stores.sqlite import migrate_sqlite

NOW = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
ROW = f"""
    insert into postroad_consumers (consumer, instance, host, pid, version, source, alive_until, handled, duplicates,
                                    failed, dead)
    values (?, ?, 'a.host', 4711, '1.2.3', 'amqp://h queue stock', {NOW} + ? * 1000000, 1200, 3, 2, 1)"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    return tmp_path / "shop.sqlite"


def ask(file: Path, command: str, *options: str) -> str:
    result = CliRunner().invoke(app, [command, "--database", f"sqlite:///{file}", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def fill(file: Path, **alive_seconds: int) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for name, seconds in alive_seconds.items():
            connection.execute(ROW, (name, str(new_id()), seconds))


def test_none(file: Path) -> None:
    assert ask(file, "consumers").startswith("No consumer is running")
    assert json.loads(ask(file, "consumers", "--json")) == {"consumers": []}


def test_who_is_there(file: Path) -> None:
    fill(file, stock=60, mail=-5, gone=-8 * 86400)
    found = json.loads(ask(file, "consumers", "--json"))["consumers"]
    assert {each["consumer"]: each["state"] for each in found} == {"stock": "alive", "mail": "dead"}
    assert {(each["host"], each["pid"], each["handled"], each["dead"]) for each in found} == {("a.host", 4711, 1200, 1)}
    table = ask(file, "consumers")
    for words in ("stock", "alive", "mail", "dead", "a.host", "4711", "1,200", "from amqp://h queue stock, started "):
        assert words in table


def test_status_says_that_none_is_alive(file: Path) -> None:
    fill(file, mail=-5)
    report = json.loads(ask(file, "status", "--json"))
    assert [each["consumer"] for each in report["consumers"]] == ["mail"]
    (notice,) = report["notices"]
    assert (notice["kind"], notice["consumer"], notice["command"]) == ("consumer dead", "mail", "postroad consumers")
