"""Retention deletes exactly the rows that every lane has passed, whatever the lanes, their snapshots and the rows are.

The statement compares rows only with lanes that are not past the whole batch. The plain rule, each row against each
lane, is what it is compared with here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from postroad.stores.postgresql import PostgreSQLStore
from tests.logs import PostgreSQLLog
from tests.services.postgresql import PostgreSQL

EVERY_ROW_AGAINST_EVERY_LANE = """
    select position from (select * from postroad.outbox where position > $1 order by position limit $2) batch
     where exists (select from postroad.lanes)
       and not exists (select from postroad.lanes l
                        where batch.slot between l.first_slot and l.last_slot
                          and not postroad.passed(batch.position, batch.xid, l))
     order by position
"""
FEW = 12  # positions and xids: so few that rows and cursors meet
xids = st.integers(3, FEW)


class Lane(NamedTuple):
    first_slot: int
    last_slot: int
    position: int
    snapshot: str


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    first, last = sorted(draw(st.tuples(*[st.sampled_from([0, 1, 2, 3])] * 2)))
    position = draw(st.sampled_from([0, FEW // 2, FEW, FEW]))
    xmax = draw(st.sampled_from([FEW // 2, FEW + 1, FEW + 1]))
    running = sorted(draw(st.sets(st.integers(3, xmax - 1), max_size=2)))
    xmin = running[0] if running else xmax
    return Lane(first, last, position, f"{xmin}:{xmax}:{','.join(map(str, running))}")


rows = st.dictionaries(st.integers(1, FEW), st.tuples(xids, st.integers(0, 3)), min_size=1)


class Database:
    """A schema that stays, with other lanes and rows for each example."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self.runner = runner
        self.connection: Any = runner.run(asyncpg.connect(url, server_settings={"synchronous_commit": "off"}))
        self.store = PostgreSQLStore(url)
        runner.run(self.store.open())

    async def fill(self, lanes: list[Lane], rows: dict[int, tuple[int, int]]) -> None:
        await self.connection.execute("truncate postroad.outbox, postroad.lanes")
        await self.connection.executemany(
            "insert into postroad.lanes (sink, lane, first_slot, last_slot, position, snapshot) "
            "values ('s', $1, $2, $3, $4, $5::text::pg_snapshot)",
            [(number, *lane) for number, lane in enumerate(lanes)],
        )
        await self.connection.executemany(
            "insert into postroad.outbox (position, xid, slot, id, topic, type, payload, content_type, headers) "
            "overriding system value values ($1, $2, $3, gen_random_uuid(), 't', 't', '', 'c', '{}')",
            [(position, *row) for position, row in rows.items()],
        )

    async def positions(self, query: str, *values: object) -> list[int]:
        return [row[0] for row in await self.connection.fetch(query, *values)]

    def close(self) -> None:
        self.connection.terminate()
        self.runner.run(self.store.close())


@pytest.fixture
def database(postgresql: PostgreSQL) -> Iterator[Database]:
    with asyncio.Runner() as runner:
        database = Database(runner, runner.run(PostgreSQLLog.fresh(postgresql)).url)
        yield database
        database.close()


@given(lanes=st.lists(lanes(), max_size=4), rows=rows, after=st.integers(0, 3), batch=st.sampled_from([1, 4, 100]))
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def check(database: Database, lanes: list[Lane], rows: dict[int, tuple[int, int]], after: int, batch: int) -> None:
    async def check() -> None:
        await database.fill(lanes, rows)
        passed = await database.positions(EVERY_ROW_AGAINST_EVERY_LANE, after, batch)
        cleaned = await database.store.delete_passed(after=after, older_than=timedelta(0), batch=batch)
        left = await database.positions("select position from postroad.outbox order by position")
        assert left == sorted(set(rows) - set(passed))
        assert cleaned.deleted == len(passed)

    database.runner.run(check())


def test_retention_deletes_what_every_lane_has_passed(database: Database) -> None:
    check(database)
