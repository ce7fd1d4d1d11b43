"""PgQueuer draining a queue in its own drain mode: `python -m benchmarks.peers.drain_pgqueuer DATABASE MESSAGES BATCH`.

As its guide to performance advises: asyncpg, a single connection, its own autovacuum settings, a larger batch; and on
uvloop, as its command line does. Its durability stays at the default, which is also the others'.
"""

from __future__ import annotations

import sys
import time

import asyncpg
import uvloop  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver  # type: ignore[import-not-found]
from pgqueuer.models import Job  # type: ignore[import-not-found]  # noqa: TC002 - PgQueuer looks at the annotation
from pgqueuer.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.types import QueueExecutionMode  # type: ignore[import-not-found]

from benchmarks.payload import PAYLOAD_SQL, transactions
from benchmarks.subject import report, wait_for_go

PAYLOADS = f"select array_agg(convert_to({PAYLOAD_SQL}, 'UTF8') order by n) from generate_series($1::bigint, $2) n"


async def drain(database: str, messages: int, batch: int) -> None:
    handled = 0
    async with asyncpg.create_pool(database) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        await queries.optimize_autovacuum()
        for first, last in transactions(messages):
            payloads = await pool.fetchval(PAYLOADS, first, last)
            await queries.enqueue(["order"] * len(payloads), payloads, [0] * len(payloads))
        await pool.execute("analyze")
    connection = await asyncpg.connect(database)
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("order")  # type: ignore[untyped-decorator]
    async def handle(_: Job) -> None:
        nonlocal handled
        handled += 1

    wait_for_go()
    began = time.monotonic()
    await queue.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)
    seconds = time.monotonic() - began
    await connection.close()
    report(messages=handled, seconds=seconds, settings=f"batch_size {batch:,}, asyncpg, uvloop, durable")


if __name__ == "__main__":
    uvloop.run(drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
