"""What an application may write into a shared log, and what becomes of rows that the owner of the tables wrote past
the limits.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from postroad import InvalidMessage, InvalidSetting, Message, Outbox
from postroad.config import RelaySettings
from postroad.message import encode, slot_of
from postroad.relay import Relay
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Filter
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.cursor import PageLimit
from postroad.stores.grants import grants_script
from postroad.stores.sqlite import migrate_sqlite
from tests.lanes import take_lanes
from tests.logs import PLENTY, Arrivals, Log, PostgreSQLLog, SQLiteLog, connected, log_fixture, numbered

OUTSIDE_EVERY_CALENDAR = ["infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "99999-01-01 00:00:00+00"]
LARGE = {"payload": 16_777_217, "headers": 65_537, "content_type": 256}


log = log_fixture("postgresql15", opened=True)


@pytest.fixture
async def application(log: PostgreSQLLog) -> Any:
    """A connection as a role that has what `--grants` prints, and nothing else."""
    await log.execute("do $$ begin create role shop_app login; exception when duplicate_object then null; end $$")
    await _script(log.url, grants_script("shop_app"))
    return await log.connect(user="shop_app")


with_checks = log_fixture("postgresql15")


@pytest.fixture
async def unlimited(with_checks: PostgreSQLLog) -> PostgreSQLLog:
    """A log whose owner has dropped the checks."""
    for table in ("outbox", "scheduled"):
        await with_checks.execute(f"drop trigger refuse_row on postroad.{table}")
    return with_checks


@pytest.fixture
def unlimited_file(tmp_path: Path) -> Path:
    path = tmp_path / "unlimited.sqlite"
    migrate_sqlite(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for trigger in ("outbox_limits", "scheduled_limits", "scheduled_due_at"):
            connection.execute(f"drop trigger postroad_{trigger}")
    return path


async def _script(url: str, *statements: str) -> None:
    async with connected(url) as connection:
        for statement in statements:
            await connection.execute(statement)


def row(number: int, **columns: Any) -> dict[str, Any]:
    """A row of the log, written without an Outbox."""
    key = columns.get("key", f"k{number}")
    usual = {"id": uuid4(), "topic": "t", "key": key, "slot": slot_of(key, uuid4()), "type": "t"}
    contents = {"payload": str(number).encode(), "content_type": "text/plain", "headers": '{"source":"/s"}'}
    return usual | contents | columns


def too_large(column: str) -> Any:
    """A value of one byte more than the column takes."""
    filled = "x" * LARGE[column]
    return {"payload": filled.encode(), "content_type": filled, "headers": f'{{"a":"{filled[8:]}"}}'}[column]


async def insert(connection: Any, table: str, row: dict[str, Any]) -> None:
    places = ", ".join(
        f"${n}::text::{'json' if name == 'headers' else 'timestamptz'}" if name in {"headers", "due_at"} else f"${n}"
        for n, name in enumerate(row, 1)
    )
    await connection.execute(f"insert into postroad.{table} ({', '.join(row)}) values ({places})", *row.values())


def insert_into_file(path: Path, table: str, *rows: dict[str, Any]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for each in rows:
            values = [str(value) if name == "id" else value for name, value in each.items()]
            places = ", ".join("?" * len(values))
            connection.execute(f"insert into postroad_{table} ({', '.join(each)}) values ({places})", values)


async def delivered(log: Log, **settings: Any) -> Arrivals:
    """What arrives when a relay has delivered all there is."""
    broker = Arrivals()
    await Relay(log.another_store(), broker, settings=RelaySettings(lanes=1, **settings)).run_until_empty()
    return broker


# -- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", OUTSIDE_EVERY_CALENDAR)
async def test_an_application_can_schedule_nothing_outside_every_calendar(application: Any, time: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="scheduled_due_at_check"):
        await insert(application, "scheduled", row(1, due_at=time))


@pytest.mark.parametrize("time", [9e999, "never", 2**62, -(2**62)])
def test_the_same_in_a_file(tmp_path: Path, time: object) -> None:
    log = SQLiteLog(tmp_path / "log.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="due_at"):
        insert_into_file(log.path, "scheduled", row(1, due_at=time))


async def test_the_mover_steps_over_an_infinite_time(log: PostgreSQLLog) -> None:
    """As the owner of the table could write it, who may drop what checks it."""
    connection = await log.connect()
    await connection.execute("alter table postroad.scheduled drop constraint scheduled_due_at_check")
    await insert(connection, "scheduled", row(1, due_at="infinity"))
    await connection.close()
    moved = await log.store.move_scheduled(10)
    assert (moved.moved, moved.due_in) == (0, float("inf"))
    await log.add(*numbered(2, deliver_in="0s"))
    moved = await log.store.move_scheduled(10)
    assert (moved.moved, moved.due_in) == (1, float("inf"))


async def test_times_outside_every_calendar_stop_no_relay(log: PostgreSQLLog) -> None:
    await log.execute("alter table postroad.scheduled drop constraint scheduled_due_at_check")
    connection = await log.connect()
    for number, time in enumerate([*OUTSIDE_EVERY_CALENDAR, "2000-01-01"]):
        await insert(connection, "scheduled", row(number, due_at=time))
    assert sorted((await delivered(log)).numbers) == [1, 2, 4]


async def test_nor_do_those_in_a_file(unlimited_file: Path) -> None:
    times = [9e999, "never", 2**62, 5]
    insert_into_file(unlimited_file, "scheduled", *(row(number, due_at=time) for number, time in enumerate(times)))
    assert (await delivered(SQLiteLog(unlimited_file))).numbers == [3]


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["outbox", "scheduled"])
@pytest.mark.parametrize("column", LARGE)
async def test_an_application_can_write_nothing_that_is_too_large(application: Any, table: str, column: str) -> None:
    due = {"due_at": "2100-01-01"} if table == "scheduled" else {}
    with pytest.raises(asyncpg.CheckViolationError, match=f"{column} has {LARGE[column]} bytes and the limit is"):
        await insert(application, table, row(1, **due, **{column: too_large(column)}))


@pytest.mark.parametrize("table", ["outbox", "scheduled"])
@pytest.mark.parametrize("column", LARGE)
def test_a_file_takes_nothing_that_is_too_large(tmp_path: Path, table: str, column: str) -> None:
    log = SQLiteLog(tmp_path / "log.sqlite")
    due = {"due_at": 5} if table == "scheduled" else {}
    with pytest.raises(sqlite3.IntegrityError, match="bytes"):
        insert_into_file(log.path, table, row(1, **due, **{column: too_large(column)}))


async def test_what_is_as_large_as_may_be_arrives(application: Any, log: PostgreSQLLog) -> None:
    outbox = Outbox(source="/s", largest_payload=16_777_216)
    headers = {"a": "x" * (65_536 - len('{"source":"/s","a":""}'))}
    async with application.transaction():
        await outbox.add(application, b"x" * 16_777_216, type="t", headers=headers)
    (arrived,) = (await delivered(log)).messages
    assert (len(arrived.payload), len(arrived.headers_json)) == (16_777_216, 65_536)


def test_an_outbox_says_so_before_the_database_does() -> None:
    with pytest.raises(InvalidSetting, match=r"largest_payload is 16777217; .* from 1 to 16,777,216"):
        Outbox(source="/s", largest_payload=16_777_217)
    with pytest.raises(InvalidMessage, match=r"headers has 70,0\d\d bytes as JSON and the limit is 65,536"):
        encode(Message("1", type="t", headers={"a": "x" * 70_000}), "/s")


async def _with_large_rows(unlimited: PostgreSQLLog) -> PostgreSQLLog:
    connection = await unlimited.connect()
    for number, column in enumerate(LARGE, 1):
        await insert(
            connection,
            "outbox",
            row(
                number, **{column: too_large(column) * 2 if column != "headers" else f'{{"a":"{uuid4().hex * 5000}"}}'}
            ),
        )
    await insert(connection, "outbox", row(4))
    await connection.close()
    return unlimited


async def test_a_relay_puts_large_rows_aside_without_reading_them(unlimited: PostgreSQLLog) -> None:
    log = await _with_large_rows(unlimited)
    await log.store.open()
    (lane,) = await take_lanes(log.store, "looks", uuid4(), lanes=1, start="oldest")
    page = await log.store.read(lane, lane.cursor, PLENTY)
    await log.store.close()
    assert [(each.is_unread, each.size) for each in page.messages] == [(True, 0)] * 3 + [(False, 16)]
    assert (await delivered(log)).numbers == [4]
    dead = [each for each in await log.deferred() if each.sink == "default"]
    assert [(each.position, each.state, each.attempts) for each in dead] == [(n, "dead", 1) for n in (1, 2, 3)]
    assert all("too large" in (each.error or "") for each in dead)


@pytest.mark.parametrize("column", LARGE)
async def test_a_large_row_is_not_read_though_a_page_has_room_for_it(unlimited: PostgreSQLLog, column: str) -> None:
    """By itself: another one on its page would make the relay look more closely."""
    connection = await unlimited.connect()
    await insert(connection, "outbox", row(1, **{column: too_large(column)}))
    await connection.close()
    await unlimited.store.open()
    (lane,) = await take_lanes(unlimited.store, "looks", uuid4(), lanes=1, start="oldest")
    page = await unlimited.store.read(lane, lane.cursor, PageLimit(1, 1 << 30))
    await unlimited.store.close()
    assert [each.is_unread for each in page.messages] == [True]


async def test_a_large_row_that_is_tried_again_is_not_read_either(unlimited: PostgreSQLLog) -> None:
    log = await _with_large_rows(unlimited)
    await delivered(log)
    async with Admin(PostgreSQLAdminDatabase(log.url)) as operating:
        assert (await operating.retry(Filter(all=True), By("anna", "because"))).changed == 3
    broker = await delivered(log, dead_letter_topic="dead")
    assert [each.state for each in await log.deferred()] == ["dead"] * 3
    assert [(letter.topic, letter.payload) for letter in broker.messages] == [("dead", b"")] * 3
    assert all("too large" in letter.headers["postroad-dead-reason"] for letter in broker.messages)


async def test_a_log_with_large_rows_can_be_restored(unlimited: PostgreSQLLog) -> None:
    log = await _with_large_rows(unlimited)
    await log.execute("update postroad.installation set system_identifier = 1")  # as if from another cluster
    assert (await delivered(log)).numbers == [4]


async def test_a_large_row_that_was_scheduled_dies_when_it_is_due(unlimited: PostgreSQLLog) -> None:
    connection = await unlimited.connect()
    await insert(connection, "scheduled", row(1, due_at="2000-01-01", headers=too_large("headers")))
    await insert(connection, "scheduled", row(2, due_at="2000-01-01"))
    assert (await delivered(unlimited)).numbers == [2]
    assert [each.state for each in await unlimited.deferred()] == ["dead"]


async def test_large_rows_in_a_file(unlimited_file: Path) -> None:
    insert_into_file(
        unlimited_file, "outbox", *(row(n, **{name: too_large(name)}) for n, name in enumerate(LARGE, 1)), row(4)
    )
    insert_into_file(unlimited_file, "scheduled", row(5, due_at=5), row(6, due_at=5, headers=too_large("headers")))
    log = SQLiteLog(unlimited_file)
    assert sorted((await delivered(log)).numbers) == [4, 5]
    assert [(each.state, "too large" in (each.error or "")) for each in await log.deferred()] == [("dead", True)] * 4


# -- slots -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["outbox", "scheduled"])
async def test_an_application_can_choose_no_slot_for_a_key(application: Any, table: str) -> None:
    """A lane asks only for the held keys of its own slots: such a row would not be held."""
    due = {"due_at": "2100-01-01"} if table == "scheduled" else {}
    for number in range(20):
        await insert(application, table, row(number, **due))
    wrong = (slot_of("k20", uuid4()) + 1) % 1024
    with pytest.raises(asyncpg.CheckViolationError, match=f"slot is {wrong}; for key 'k20' it must be"):
        await insert(application, table, row(20, slot=wrong, **due))
