"""No question and no command of operators scans the log: rows looked at, in a log of 200,000."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

from postroad.lifecycle import State
from postroad.stores.admin.admin import Admin
from postroad.stores.admin.contract import By, Count, Filter, Rewind
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase, as_parameters
from postroad.stores.admin.session import Query
from postroad.stores.admin.sqlite import Connection, SQLiteAdminDatabase
from postroad.stores.admin.trouble import MOST_GROUPED
from postroad.stores.sqlite import migrate_sqlite
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

ROWS = 200_000
BEHIND = ROWS // 2
"""So many were published, but for every hundredth, which is deferred."""
LOOK = 1000
WALK = 1000
AN_ID = "00000000-0000-7000-8000-000000000064"  # position 100, which is dead
ME = By("me", "test")

POSTGRESQL = f"""
    alter table postroad.outbox disable trigger refuse_row; -- keys are spread evenly here, whatever their slots are
    insert into postroad.outbox (id, topic, key, slot, type, payload, content_type, headers, created_at)
    select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 't', 'k' || i % 500,
           i * 7919 % 1024, 't' || i % 20, '', 'c',
           '{{"source": "/t"}}', now() - make_interval(secs => {ROWS} - i)
      from generate_series(1, {ROWS}) i;
    commit;
    insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot)
    select 's', n, n * 256, n * 256 + 255, {BEHIND}, pg_current_snapshot() from generate_series(0, 3) n;
    insert into postroad.deferred (sink, lane, position, attempts, blocks, state, key, error)
    select 's', slot / 256, position, 5, false, 'dead', key, 'no ' || position
      from postroad.outbox where position <= {BEHIND} and position % 100 = 0;
    insert into postroad.progress (sink, lane, position, at, snapshot, published, refused)
    select 's', n, i * 10, now() - make_interval(secs => {BEHIND} / 10 - i), pg_current_snapshot(), 10, 1
      from generate_series(1, {BEHIND} / 10) i, generate_series(0, 3) n;
    insert into postroad.inbox (consumer, id, type, processed_at)
    select 'c' || i % 3, '/t ' || i, 't', now() - make_interval(secs => i) from generate_series(1, {BEHIND}) i;
    insert into postroad.inbox_attempts (consumer, id, type, dead_at)
    select 'c' || i % 3, '/t ' || i, 't', now() - make_interval(secs => i) from generate_series(1, {BEHIND}) i;
"""

SQLITE_NOW = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)"
SQLITE = f"""
    with recursive n (i) as (select 1 union all select i + 1 from n where i < {ROWS})
    insert into postroad_outbox (id, topic, key, slot, type, payload, content_type, headers, created_at)
    select '00000000-0000-7000-8000-' || printf('%012x', i), 't', 'k' || i % 500, i * 7919 % 1024, 't' || i % 20,
           x'', 'c', '{{"source": "/t"}}', {SQLITE_NOW} - ({ROWS} - i) * 1000000 from n;
    insert into postroad_sinks (sink) values ('s');
    with recursive n (i) as (select 0 union all select i + 1 from n where i < 3)
    insert into postroad_lanes (sink, lane, first_slot, last_slot, position)
    select 's', i, i * 256, i * 256 + 255, {BEHIND} from n;
    insert into postroad_deferred (sink, lane, position, attempts, blocks, state, key, error)
    select 's', slot / 256, position, 5, 0, 'dead', key, 'no ' || position
      from postroad_outbox where position <= {BEHIND} and position % 100 = 0;
    with recursive n (i) as (select 1 union all select i + 1 from n where i < {BEHIND} / 10)
    insert into postroad_progress (sink, lane, position, at, published, refused)
    select 's', lane, i * 10, {SQLITE_NOW} - ({BEHIND} / 10 - i) * 1000000, 10, 1 from n, postroad_lanes;
    with recursive n (i) as (select 1 union all select i + 1 from n where i < {BEHIND})
    insert into postroad_inbox (consumer, id, type, processed_at)
    select 'c' || i % 3, '/t ' || i, 't', {SQLITE_NOW} - i * 1000000 from n;
    with recursive n (i) as (select 1 union all select i + 1 from n where i < {BEHIND})
    insert into postroad_inbox_attempts (consumer, id, type, dead_at)
    select 'c' || i % 3, '/t ' || i, 't', {SQLITE_NOW} - i * 1000000 from n;
    analyze;
"""


@pytest.fixture(autouse=True)
def small_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.stores.admin.inspect.SCAN_LIMIT", LOOK)
    monkeypatch.setattr("postroad.stores.admin.inspect.SAMPLE", LOOK // 2)
    monkeypatch.setattr("postroad.stores.admin.why.SCAN_LIMIT", LOOK)
    monkeypatch.setattr("postroad.stores.admin.caused.SCAN_LIMIT", LOOK)
    monkeypatch.setattr("postroad.stores.admin.caused.RECENT", LOOK // 10)
    for module in ("cleanup", "rewind"):
        monkeypatch.setattr(f"postroad.stores.admin.{module}.SAMPLE", LOOK)
    monkeypatch.setattr("postroad.stores.admin.cleanup.SCAN_BATCH", LOOK)
    monkeypatch.setattr("postroad.stores.admin.rewind.BATCH", LOOK)
    monkeypatch.setattr("postroad.stores.admin.rewind.KNOWN_SAMPLE", LOOK // 10)
    monkeypatch.setattr("postroad.stores.admin.status.WALK", WALK)
    monkeypatch.setattr("postroad.stores.admin.numbers.WALK", WALK)


class ExplainingPostgreSQL(PostgreSQLAdminDatabase):
    """Notes of every query how many rows of the log it looked at, and of all tables."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.looked_at: list[tuple[str, int, int]] = []

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Query]:
        async with super().read() as query, self._connection_beside() as connection:

            async def explained(name: str, *values: Any) -> Sequence[Sequence[Any]]:
                await self._explain(connection, name, values)
                return await query(name, *values)

            yield explained

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Query]:
        async with self.read() as query:
            yield query

    @asynccontextmanager
    async def _connection_beside(self) -> AsyncIterator[Any]:
        log = PostgreSQLLog(self._pool._url)
        connection = await log.connect()
        await self._pool._prepare(connection)
        try:
            yield connection
        finally:
            await connection.close()

    async def _explain(self, connection: Any, query: str, values: Sequence[Any]) -> None:
        plan = await connection.fetchval(
            f"explain (analyze, format json) {self._pool.sql[query]}", *as_parameters(values)
        )
        root = json.loads(plan)[0]["Plan"]
        self.looked_at.append((query, rows_of(root, "outbox"), rows_of(root)))


def rows_of(node: dict[str, Any], table: str | None = None) -> int:
    mine = 0
    if "Relation Name" in node and table in {None, node["Relation Name"]}:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        mine = (node["Actual Rows"] + removed) * node["Actual Loops"]
    return int(mine) + sum(rows_of(child, table) for child in node.get("Plans", []))


async def look_at_everything(ops: Admin) -> None:
    now = datetime.now(UTC)
    id = UUID(AN_ID)
    await ops.sinks()
    (sink,) = (await ops.status()).sinks
    assert not any(lane.pending.exact for lane in sink.lanes)
    assert all(abs(lane.pending.number - BEHIND / 4) < BEHIND / 40 for lane in sink.lanes), sink.lanes
    filters = [
        Filter(all=True), Filter(state=State.WAITING), Filter(state=State.PUBLISHED), Filter(state=State.DEAD),
        Filter(key="k7"), Filter(key="nobody"), Filter(type="t3"), Filter(topic="none"), Filter(error="NO 99"),
        Filter(state=State.DEAD, type="none"), Filter(state=State.DEAD, since=now), Filter(state=State.HELD),
        Filter(ids=[id]), Filter(since=now - timedelta(hours=1)), Filter(before=now - timedelta(hours=1)),
        Filter(sink="s", state=State.DEAD, key="k100"), Filter(error_pattern="no <n>"),
    ]  # fmt: skip
    for which in filters:
        await ops.messages(which, 10)
        await ops.messages(which, 10, below=BEHIND // 2)
        await ops.count(which)
    (trouble,) = await ops.trouble()
    assert BEHIND // 100 > MOST_GROUPED
    assert (trouble.pattern, trouble.count) == ("no <n>", Count(MOST_GROUPED, exact=False))
    await ops.message(id)
    for identity in (f"/t {id}", None):
        await ops.causation(id, identity=identity)
        await ops.causation(UUID(int=id.int + ROWS), identity=identity)
    for each in (id, UUID(int=id.int + 1), UUID(int=id.int + BEHIND), UUID(int=id.int + ROWS)):
        await ops.why(each)  # dead, published, waiting, unknown
    for key in ("k7", "k100", "nobody"):
        await ops.why_key(key)
        await ops.key_window("s", key, 10)
    await ops.consumers()
    await ops.held_keys()
    numbers = await ops.numbers()
    assert numbers.sinks[0].deferred[State.DEAD] == BEHIND // 100
    assert abs(sum(lane.pending for lane in numbers.sinks[0].lanes) - BEHIND) < BEHIND / 10
    await ops.audit()
    await ops.preview_cleanup(timedelta(hours=1))
    await ops.preview_rewind(Rewind(sink="s", to=now - timedelta(hours=1)))
    await ops.preview_rewind(Rewind(sink="s", to=1, key="k5", type="t5"))
    assert not (await ops.preview_rewind_details(Rewind(sink="s", to=1))).exact


async def test_looking_in_postgresql(postgresql: PostgreSQL) -> None:
    log = await PostgreSQLLog.fresh(postgresql)
    async with log.connected() as connection:
        await connection.execute(POSTGRESQL)
        await connection.execute("analyze")
    database = ExplainingPostgreSQL(log.url)
    async with Admin(database) as ops:
        await look_at_everything(ops)
    assert {query for query, _, _ in database.looked_at} >= {
        "lane_reports", "list_log", "count_deferred", "caused", "log_numbers", "deferred_numbers", "table_bytes",
    }  # fmt: skip
    assert {query for query, _, _ in database.looked_at} >= {"why_lanes", "why_deferred", "why_unknown"}
    for query, of_log, of_all in database.looked_at:
        most = 3 * WALK * 4 + 10 if query == "lane_reports" else 2 * LOOK
        assert of_log <= most, (query, of_log)
        assert of_all <= 25_000, (query, of_all)  # the progress of the last hour has 14,400
        if query.startswith("why_") and "_key_" not in query:
            assert of_all <= 50, (query, of_all)  # the explainer asks by index


async def test_changing_in_postgresql(postgresql15: PostgreSQL) -> None:
    """Each command's own queries, explained with the values that matter, and undone."""
    log = await PostgreSQLLog.fresh(postgresql15)
    async with log.connected() as connection:
        await connection.execute(POSTGRESQL)
        await connection.execute("analyze")
        database = PostgreSQLAdminDatabase(log.url)
        await database._pool._prepare(connection)
        some = (["s", "s"], [100, 200])
        ahead = (["s", "s"], [BEHIND + 1, BEHIND + 2])
        deferred: tuple[Any, ...] = ("s", ["dead"], None, None, False, None, None, None, None)
        questions: list[tuple[str, tuple[Any, ...]]] = [
            ("find_deferred", (*deferred, 0, "", 100)), ("lock_for_change", ("s",)), ("retry", some), ("drop", some),
            ("skip", some), ("poison", (*some, "no", False)), ("decide_ahead", (*ahead, "skipped", None, False)),
            ("add_poison_attempt", (*some, "no")), ("hold_deferred", ("s", 0, "k7")), ("raise_version", (["s"], [1])),
            ("find_rewind", ("s", 1, ROWS, "k5", None, LOOK, None)), ("rewind", ("s", [0], [1], ["k1"])),
            ("add_rewound", ("s", "x", [1], [None])), ("ahead", ("s", 0)), ("holds", ("s", 0, 255)),
            ("delete_passed", (0, LOOK, timedelta(0), None)), ("count_of_key", (0, LOOK, "k5")),
            ("forget_progress", (timedelta(hours=1), 100)),
        ]  # fmt: skip
        for query, values in questions:
            transaction = connection.transaction()
            await transaction.start()
            plan = await connection.fetchval(f"explain (analyze, format json) {database._pool.sql[query]}", *values)
            await transaction.rollback()
            assert rows_of(json.loads(plan)[0]["Plan"]) <= 9 * LOOK, query


class CountingConnection(Connection):
    """Notes of every query how many thousands of steps SQLite's machine took."""

    steps: ClassVar[list[tuple[str, int]]] = []

    async def _fetch(self, query: str, *values: object) -> list[Any]:
        def fetch() -> list[Any]:
            steps = 0

            def step() -> int:
                nonlocal steps
                steps += 1
                return 0

            connection = self._open()
            connection.set_progress_handler(step, 1000)
            rows = connection.execute(self._sql[query], values).fetchall()
            connection.set_progress_handler(None, 0)
            self.steps.append((query, steps))
            return rows

        return await self._run(fetch)


async def test_looking_and_changing_in_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.sqlite"
    migrate_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SQLITE)
    monkeypatch.setattr("postroad.stores.admin.sqlite.Connection", CountingConnection)
    steps = CountingConnection.steps
    steps.clear()
    async with Admin(SQLiteAdminDatabase(path)) as ops:
        await look_at_everything(ops)
        await ops.retry(Filter(ids=[UUID(AN_ID)]), ME)
        await ops.poison(Filter(ids=[UUID(AN_ID)]), ME)
        await ops.skip(Filter(ids=[UUID(int=UUID("00000000-0000-7000-8000-000000000000").int + BEHIND + 5)]), ME)
        await ops.hold("s", "k7", ME)
        await ops.release("s", "k7", ME)
        await ops.drop(Filter(type="t0", state=State.DEAD), ME)
        await ops.rewind(Rewind(sink="s", to=BEHIND - 10), ME)
    slow = [(query, number) for query, number in steps if number > 560]  # the last hour's progress has 14,400 rows
    assert slow == []
    assert {query for query, _ in steps} >= {"lane_reports", "list_log", "count_deferred", "caused", "rewind"}
    steps.clear()
    counting = CountingConnection(path)
    await counting.open()
    counting._sql = dict(counting._sql, scan="select count(*) from postroad_outbox where topic = 'x'")
    await counting.query("scan")
    await counting.close()
    assert steps[0][1] > 560, "a scan of the log would be noticed"
