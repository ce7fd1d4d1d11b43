"""add: what `outbox.add` costs beside the same INSERT written by hand, in the same transaction on the same driver.

Both take turns in one process, a few transactions each; what is compared is the median of all turns. A transaction's
commit is part of it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks import by_hand
from benchmarks.add_ways import ON_POSTGRESQL, ON_SQLITE
from benchmarks.backlog import create_log
from benchmarks.by_hand import order_placed
from benchmarks.sections import Plan, Section, median
from postroad import Message, Outbox, event
from postroad.stores.sqlite import migrate_sqlite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.add_ways import Way
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
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # every way is measured in a loop, also those that block it
    asyncio.run(_on_postgresql(create_log(server), section, plan))
    with tempfile.TemporaryDirectory(prefix="postroad-benchmark-") as folder:
        path = Path(folder) / "log.sqlite"
        migrate_sqlite(path)
        asyncio.run(_on_sqlite(path, section, plan))
    return section


async def _on_postgresql(url: str, section: Section, plan: Plan) -> None:
    for name, by in ON_POSTGRESQL.items():
        async with by(url) as way:
            await _measure(section, plan, name, way)


async def _on_sqlite(path: Path, section: Section, plan: Plan) -> None:
    for name, by in ON_SQLITE.items():
        async with by(path) as way:
            await _measure(section, plan, name, way)


async def _measure(section: Section, plan: Plan, name: str, way: Way) -> None:
    """One kind of connection: what is awaited, is awaited on both sides."""

    async def ours(events: list[by_hand.OrderPlaced]) -> None:
        async with way.transaction() as connection:
            for each in events:
                added: Any = outbox.add(connection, each, key=each.customer)
                if hasattr(added, "__await__"):
                    await added

    async def hands(events: list[by_hand.OrderPlaced]) -> None:
        async with way.transaction() as connection:
            for each in events:
                inserted = way.insert(connection, each)
                if hasattr(inserted, "__await__"):
                    await inserted

    async def ours_many(events: list[by_hand.OrderPlaced]) -> None:
        async with way.transaction() as connection:
            added: Any = outbox.add_many(connection, [Message(each, key=each.customer) for each in events])
            if hasattr(added, "__await__"):
                await added

    async def hands_many(events: list[by_hand.OrderPlaced]) -> None:
        async with way.transaction() as connection:
            inserted = way.insert_many(connection, events)
            if hasattr(inserted, "__await__"):
                await inserted

    await _compare(section, plan, name, ONE_EACH, ours, hands)
    await _compare(section, plan, name, MANY_EACH, ours, hands)
    await _compare(section, plan, name, ADD_MANY, ours_many, hands_many)


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
