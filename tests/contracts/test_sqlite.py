"""What only SQLite's log has to get right: what a commit waits for, and finding rows without going through all."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from postroad import StoreUnavailable
from postroad.lifecycle import State
from postroad.stores.base import Deferred, Lease
from postroad.stores.cursor import Cursor
from postroad.stores.dialects import SQLITE
from postroad.stores.sqlite import SQLiteStore
from tests.lanes import take_lanes
from tests.logs import SQLiteLog, log_fixture, numbered

log = log_fixture("sqlite", opened=True)


async def take(log: SQLiteLog) -> Lease:
    (lane,) = await take_lanes(log.store, "s", uuid4(), lanes=1, start="oldest")
    return lane


async def statements_of(log: SQLiteLog, what: str) -> list[str]:
    """The statements that SQLite gets about what a commit waits for."""
    lane = await take(log)
    logged: list[str] = []
    assert isinstance(log.store, SQLiteStore)
    assert log.store._connection is not None
    log.store._connection.set_trace_callback(logged.append)
    match what:
        case "settle":
            await log.store.settle(lane, Cursor(0))
        case "load":
            await log.store.load(lane)
        case "record":
            await log.store.record(lane, Cursor(0))
        case "claim":
            await log.store.claim(lane, 10)
    return [line.lower() for line in logged if re.match("pragma|begin|commit", line, re.IGNORECASE)]


@pytest.mark.parametrize("what", ["load", "record", "claim"])
async def test_what_is_written_of_trouble_is_on_disk_when_it_returns(log: SQLiteLog, what: str) -> None:
    assert await statements_of(log, what) == [
        "pragma synchronous = full", "begin immediate", "commit", "pragma synchronous = normal",
    ]  # fmt: skip


async def test_a_cursor_move_waits_for_no_disk(log: SQLiteLog) -> None:
    assert all(line == "commit" or line.startswith("begin") for line in await statements_of(log, "settle"))


async def test_a_record_that_fails_half_way_has_written_nothing(log: SQLiteLog) -> None:
    await log.add(*numbered(1, 2))
    lane = await take(log)
    no_time = Deferred(2, "k", State.RETRYING, 1)
    with pytest.raises(StoreUnavailable, match="deferred_due"):
        await log.store.record(lane, Cursor(2), deferred=[Deferred(1, "k", State.HELD), no_time])
    assert await log.deferred() == []
    assert (await log.store.load(lane)).lease.cursor == lane.cursor


@pytest.mark.parametrize(
    "query",
    [
        "put_back", "heads", "heads_of", "routes", "make_due", "due_in", "forget_published", "find_due", "find_routed",
        "find_followers", "claim", "read_one", "delete_passed", "delete_finished", "delete_history",
    ],
)  # fmt: skip
def test_trouble_is_looked_up_and_never_searched_for(tmp_path: Path, query: str) -> None:
    log = SQLiteLog(tmp_path / "log.sqlite")
    sql = SQLITE.queries("postroad")[query]
    values = [1] * max(int(number) for number in re.findall(r"\?(\d+)", sql))
    with closing(sqlite3.connect(log.path)) as connection:
        steps = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    # Lanes, and what a sink's filter and one topic consist of.
    small = re.compile(r"SCAN (postroad_lanes|l|CONSTANT ROW|rests|(json_each|wanted) VIRTUAL TABLE INDEX .*)")
    assert not [step for step in steps if step.startswith("SCAN") and not small.fullmatch(step)], steps
