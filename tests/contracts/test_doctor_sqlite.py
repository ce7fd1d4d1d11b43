"""`postroad doctor` on an SQLite file: the checks that a file has, made ill and mended; nothing is changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroad.admin import By, Finding, Level, Limits, examine, open_admin
from postroad.brokers.null import NullPublisher
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore
from tests.logs import SQLiteLog, numbered

BY = By("anna", "a test")
NOW = timedelta(0)
HOUR_US = 3_600_000_000


@pytest.fixture
async def log(tmp_path: Path) -> SQLiteLog:
    """A log whose one sink has had its message."""
    log = SQLiteLog(tmp_path / "shop.sqlite")
    await log.add(*numbered(1))
    await Relay(SQLiteStore(log.path), NullPublisher(), settings=RelaySettings(lanes=2)).run_until_empty()
    return log


async def the_one(log: SQLiteLog, check: str, **options: Any) -> Finding:
    findings = await examine(f"sqlite:///{log.path}", watch_seconds=0, **options)
    (finding,) = [each for each in findings if each.check == check]
    return finding


def execute(log: SQLiteLog, sql: str) -> None:
    with closing(sqlite3.connect(log.path)) as connection, connection:
        connection.execute(sql.replace("{now}", "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"))


class Illness(NamedTuple):
    check: str
    level: Level
    sql: str
    mended: str
    limits: Limits = Limits()
    before: str = "select 1"


def relay(number: int, alive_us: int, version: str = "1") -> str:
    return (
        "insert into postroad_relays (owner, pid, alive_until, sink, host, version) "
        f"select value, 1, {{now}} + {alive_us}, 'default', 'h', '{version}' from json_each('{list(range(number))}')"
    )


WAITING = """insert into postroad_deferred (sink, position, lane, blocks, state, route)
             values ('default', 1, 0, 1, 'held', 'r')"""
RUNNING = "insert into postroad_inbox_attempts (consumer, id, type, running) values ('stock', 'a', 't', 1)"
CONSUMER = """insert into postroad_consumers (
                  instance, pid, alive_until, handled, duplicates, failed, dead, consumer, source, host, version)
              values ('i', 7, {now} - 1, 0, 0, 0, 0, 'stock', 'q', 'h', '1')"""
NO_RELAYS = "delete from postroad_relays"

ILLNESSES = [
    Illness(
        "schema",
        Level.ERROR,
        "update postroad_installation set min_client = 99",
        "update postroad_installation set min_client = 1",
    ),
    Illness(
        "forgotten-sink",
        Level.ERROR,
        f"update postroad_sinks set served_at = {{now}} - {48 * HOUR_US}",
        "update postroad_sinks set served_at = {now}",
    ),
    Illness(
        "log-age",
        Level.WARNING,
        f"update postroad_outbox set created_at = {{now}} - {24 * 30 * HOUR_US}",
        "delete from postroad_outbox",
    ),
    Illness(
        "versions",
        Level.WARNING,
        "update postroad_relays set version = '0.2' where owner = 1",
        NO_RELAYS,
        before=relay(2, HOUR_US),
    ),
    Illness("spare-relays", Level.WARNING, relay(3, HOUR_US), NO_RELAYS),
    Illness("flapping-leases", Level.WARNING, relay(3, -1), NO_RELAYS),
    Illness("unbound-topics", Level.ERROR, WAITING, "delete from postroad_deferred"),
    Illness(
        "running-attempts",
        Level.WARNING,
        RUNNING,
        "update postroad_inbox_attempts set running = 0",
        Limits(running_attempt=NOW),
    ),
    Illness(
        "consumers",
        Level.ERROR,
        CONSUMER,
        f"update postroad_consumers set alive_until = {{now}} + {HOUR_US}",
    ),
]


@pytest.mark.parametrize("illness", ILLNESSES, ids=lambda each: each.check)
async def test_what_is_made_ill_is_found_and_mended(log: SQLiteLog, illness: Illness) -> None:
    execute(log, illness.before)
    assert (await the_one(log, illness.check, limits=illness.limits)).level in {Level.OK, Level.SKIPPED}
    execute(log, illness.sql)
    assert (await the_one(log, illness.check, limits=illness.limits)).level is illness.level
    execute(log, illness.mended)
    assert (await the_one(log, illness.check, limits=illness.limits)).level is Level.OK


async def test_what_is_paused_or_held(log: SQLiteLog) -> None:
    limits = Limits(paused=NOW, held=NOW)
    async with open_admin(f"sqlite:///{log.path}") as admin:
        await admin.pause("default", BY)
        await admin.hold("default", "k", BY)
        for check in ("paused", "held-keys"):
            assert (await the_one(log, check, limits=limits)).level is Level.WARNING
        await admin.resume("default", BY)
        await admin.release("default", "k", BY)
    for check in ("paused", "held-keys"):
        assert (await the_one(log, check, limits=limits)).level is Level.OK


async def test_it_makes_no_checks_of_servers_and_changes_nothing(log: SQLiteLog, tmp_path: Path) -> None:
    def content() -> list[str]:
        with closing(sqlite3.connect(log.path)) as connection:
            return list(connection.iterdump())

    before = content()
    findings = await examine(f"sqlite:///{log.path}", watch_seconds=0)
    assert content() == before
    assert not {each.family for each in findings} & {"PostgreSQL", "RabbitMQ"}
    assert not [each for each in findings if each.level in {Level.WARNING, Level.ERROR}]
    missing = await examine(f"sqlite:///{tmp_path / 'nothing.sqlite'}")
    (wrong,) = [each for each in missing if each.level is Level.ERROR]
    assert (wrong.check, wrong.fix) == (
        "database",
        "check the URL (`database`); of a server also the network and its log",
    )
    assert "nothing.sqlite; `postroad migrate` creates it" in wrong.text
    assert not (tmp_path / "nothing.sqlite").exists()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 1000)
    findings = await examine(f"sqlite:///{tmp_path / 'text'}")
    assert [(each.check, "not a database" in each.text) for each in findings if each.level is Level.ERROR] == [
        ("database", True)
    ]
