"""`postroad relays`: who runs what."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postroad.ops.cli import app
from postroad.stores.sqlite import SQLiteStore, migrate_sqlite
from tests.lanes import HERE, identity


@pytest.fixture
def file(tmp_path: Path) -> Path:
    migrate_sqlite(tmp_path / "shop.sqlite")
    return tmp_path / "shop.sqlite"


def ask(file: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["relays", "--database", f"sqlite:///{file}", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_without_a_server_or_relay(file: Path) -> None:
    assert ask(file).startswith("No relay is running")
    assert json.loads(ask(file, "--json")) == {"relays": []}


def test_who_is_there(file: Path) -> None:
    active, standby, dead = (identity("audit") for _ in range(3))

    async def fill() -> None:
        store = SQLiteStore(file)
        await store.open()
        await store.leases.create("audit", HERE, lanes=3, start="oldest")
        for who, seconds in ((active, 60.0), (standby, 60.0), (dead, -1.0)):
            await store.leases.heartbeat(who, seconds)
        await store.leases.take(active, 2, 60.0)
        await store.close()

    asyncio.run(fill())
    found = json.loads(ask(file, "--json"))["relays"]
    assert {(each["owner"], each["state"], tuple(each["lanes"])) for each in found} == {
        (str(active.owner), "active", (0, 1)),
        (str(standby.owner), "standby", ()),
        (str(dead.owner), "dead", ()),
    }
    assert {(each["sink"], each["host"], each["pid"], each["version"]) for each in found} == {
        ("audit", "a.host", 4711, "1.2.3")
    }
    table = ask(file)
    for words in ("audit", "active", "standby", "dead", "0, 1", "a.host", "4711", "s ago", str(active.owner)):
        assert words in table
