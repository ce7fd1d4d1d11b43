"""Whatever is refused, dies, is tried again, crashes or is taken over: no consumer sees a key out of order, and nothing
is lost.

Chance decides what the broker answers, when the database fails (before a write, or after it and unheard), when a relay
is killed and when another takes its lanes. Then all is mended, and the log is emptied.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad import Message
from postroad.message import UNSET
from tests.logs import Log, MemoryLog, PostgreSQLLog, SQLiteLog
from tests.unreliable import UnreliableBroker, UnreliableStore, a_relay

KEYS = ["a", "b", "c", None]


async def live_through(
    log: Log, random: Random, on_dead: str, *, in_order: bool
) -> tuple[list[int], dict[int, str | None]]:
    """What arrived in the end, and the key of each number."""
    broker = UnreliableBroker(random, in_order=in_order)
    keys: dict[int, str | None] = {}
    running: list[asyncio.Task[Any]] = []
    shaky = [UnreliableStore(log.store, random)]
    for _ in range(random.randrange(3, 8)):
        for _ in range(random.randrange(3)):
            batch = range(len(keys), len(keys) + random.randrange(1, 6))
            keys |= {number: random.choice(KEYS) for number in batch}
            await log.add(
                *(
                    Message(str(number), type="t", topic=random.choice("xy"), key=keys[number] or UNSET)
                    for number in batch
                )
            )
        match random.choice(["start", "start", "kill", "stop", "wait"]):
            case "start":
                store = (
                    shaky[0]
                    if isinstance(log, MemoryLog) or not running
                    else UnreliableStore(log.another_store(), random)
                )
                shaky.append(store)
                running.append(asyncio.create_task(a_relay(store, broker, random, on_dead).run()))
            case "kill" if running:
                running[-1].cancel()
                await asyncio.wait((running[-1],))
            case _:
                pass
        await asyncio.sleep(random.choice([0, 0.001, 0.005]))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    broker.mended = True
    for store in shaky:
        store.mended = True
    async with asyncio.timeout(60):
        while (await a_relay(log.another_store(), broker, random, on_dead).run_until_empty()).published:
            pass
    return [int(message.payload) for message in broker.messages], keys


async def in_trouble(log: Log) -> dict[int, str]:
    """The numbers that have not gone, and in which state they are."""
    query = "select payload, state from {}outbox join {}deferred using (position)"
    if isinstance(log, MemoryLog):
        rows: Any = [(log.store._log[n - 1].payload, row.state) for (_, n), row in log.store._deferred.items()]
    elif isinstance(log, SQLiteLog):
        with closing(sqlite3.connect(log.path)) as connection:
            rows = connection.execute(query.format("postroad_", "postroad_")).fetchall()
    else:
        assert isinstance(log, PostgreSQLLog)
        rows = await log.execute(query.format("postroad.", "postroad."))
    return {int(payload): str(state) for payload, state in rows}


async def check(log: Log, random: Random, *, in_order: bool) -> None:
    on_dead = random.choice(["release", "hold"])
    arrived, keys = await live_through(log, random, on_dead, in_order=in_order)
    left = await in_trouble(log)
    missing = set(keys) - set(arrived) - set(left)
    assert not missing, f"lost: {missing}"
    dead_keys = {keys[number] for number, state in left.items() if state == "dead"}
    stuck = [number for number, state in left.items() if state != "dead" and keys[number] not in dead_keys]
    assert not stuck, f"left behind: {stuck}"
    assert on_dead == "hold" or set(left.values()) <= {"dead"}
    latest: dict[str, int] = {}
    for number in dict.fromkeys(arrived):
        key = keys[number]
        if key is not None:
            assert latest.get(key, -1) < number, f"{number} came after {latest[key]}: {arrived}"
            latest[key] = number


OFTEN = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
SELDOM = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


SEEDS = st.integers(0, 1 << 32)


PUBLISHERS = pytest.mark.parametrize("in_order", [False, True])


@PUBLISHERS
@OFTEN
@given(seed=SEEDS)
def test_in_memory(seed: int, in_order: bool) -> None:
    asyncio.run(check(MemoryLog(), Random(seed), in_order=in_order))


@PUBLISHERS
@SELDOM
@given(seed=SEEDS)
def test_on_sqlite(seed: int, in_order: bool) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(check(SQLiteLog(Path(folder) / "log.sqlite"), Random(seed), in_order=in_order))


@PUBLISHERS
@SELDOM
@given(seed=SEEDS)
def test_on_postgresql(postgresql15: Any, seed: int, in_order: bool) -> None:
    async def run() -> None:
        await check(await PostgreSQLLog.fresh(postgresql15), Random(seed), in_order=in_order)

    asyncio.run(run())
