"""add: what `outbox.add` costs beside the same INSERT written by hand, in the same transaction on the same driver.

Both take turns in one process, a few transactions each; what is compared is the median of all turns. A transaction's
commit is part of it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from benchmarks import by_hand
from benchmarks.backlog import create_log
from benchmarks.by_hand import order_placed
from benchmarks.sections import Plan, Section, median
from postroad import Message, Outbox, event
from postroad.stores.sqlite import migrate_sqlite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.services.postgresql import PostgreSQL

MANY = 100
ONE_EACH = "one add per transaction"
MANY_EACH = f"{MANY} adds in one transaction"
ADD_MANY = f"add_many of {MANY}"
TURNS = {ONE_EACH: (60, 25), MANY_EACH: (40, 3), ADD_MANY: (60, 5)}
"""How many turns each way has, and how many transactions a turn."""

outbox = Outbox(source=by_hand.SOURCE)
event(by_hand.TYPE)(by_hand.OrderPlaced)

Turn: TypeAlias = "Callable[[list[by_hand.OrderPlaced]], Awaitable[None]]"


def run(server: PostgreSQL, plan: Plan) -> Section:
    header = ["", "postroad.add", "by hand", "postroad takes"]
    section = Section("add", "Adding a message, beside the same INSERT written by hand", header)
    asyncio.run(_on_postgresql(create_log(server), section, plan))
    with tempfile.TemporaryDirectory(prefix="postroad-benchmark-") as folder:
        path = Path(folder) / "log.sqlite"
        migrate_sqlite(path)
        asyncio.run(_on_sqlite(path, section, plan))
    return section


async def _on_postgresql(url: str, section: Section, plan: Plan) -> None:
    connection: Any = await asyncpg.connect(url)

    async def ours(events: list[by_hand.OrderPlaced]) -> None:
        async with connection.transaction():
            for each in events:
                await outbox.add(connection, each, key=each.customer)

    async def hands(events: list[by_hand.OrderPlaced]) -> None:
        async with connection.transaction():
            for each in events:
                await by_hand.add(connection, each)

    async def ours_many(events: list[by_hand.OrderPlaced]) -> None:
        async with connection.transaction():
            await outbox.add_many(connection, [Message(each, key=each.customer) for each in events])

    async def hands_many(events: list[by_hand.OrderPlaced]) -> None:
        async with connection.transaction():
            await by_hand.add_many(connection, events)

    await _compare(section, plan, "asyncpg", ONE_EACH, ours, hands)
    await _compare(section, plan, "asyncpg", MANY_EACH, ours, hands)
    await _compare(section, plan, "asyncpg", ADD_MANY, ours_many, hands_many)
    await connection.close()


async def _on_sqlite(path: Path, section: Section, plan: Plan) -> None:
    with closing(sqlite3.connect(path)) as connection:

        async def ours(events: list[by_hand.OrderPlaced]) -> None:
            with connection:
                for each in events:
                    outbox.add(connection, each, key=each.customer)

        async def hands(events: list[by_hand.OrderPlaced]) -> None:
            with connection:
                for each in events:
                    by_hand.add_sqlite(connection, each)

        async def ours_many(events: list[by_hand.OrderPlaced]) -> None:
            with connection:
                outbox.add_many(connection, [Message(each, key=each.customer) for each in events])

        async def hands_many(events: list[by_hand.OrderPlaced]) -> None:
            with connection:
                by_hand.add_many_sqlite(connection, events)

        await _compare(section, plan, "sqlite3", ONE_EACH, ours, hands)
        await _compare(section, plan, "sqlite3", MANY_EACH, ours, hands)
        await _compare(section, plan, "sqlite3", ADD_MANY, ours_many, hands_many)


async def _compare(section: Section, plan: Plan, driver: str, case: str, *ways: Turn) -> None:
    turns, transactions = TURNS[case]
    turns = 6 if plan.quick else turns
    size = 1 if case == ONE_EACH else MANY
    costs: list[list[float]] = [[], []]
    number = 0
    for turn in range(turns + 1):
        for way in (0, 1) if turn % 2 else (1, 0):
            batches = [[order_placed(number := number + 1) for _ in range(size)] for _ in range(transactions)]
            began = time.perf_counter()
            for batch in batches:
                await ways[way](batch)
            if turn:  # the first turn only warms up
                costs[way].append((time.perf_counter() - began) / transactions / size)
    ours, hands = map(median, costs)
    name = f"{driver}, {case}"
    section.rows.append([name, f"{ours * 1e6:,.1f} µs", f"{hands * 1e6:,.1f} µs", f"{ours / hands:.0%}"])
    section.at_most(f"of the INSERT by hand ({name})", 1.15, ours / hands, "{:.0%}")
    section.raw[name] = {"postroad": costs[0], "by hand": costs[1]}
