"""pgmq's Python client draining a queue: `python -m benchmarks.peers.drain_pgmq DATABASE MESSAGES BATCH`.

The queue's SQL is the one that the client brings along and installs. A batch is read, which hides it from others, and
deleted: that is pgmq's way of at-least-once (`pop` would lose what it read in a crash).
"""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
from pgmq import AsyncPGMQueue, install_pgmq_from_sql  # type: ignore[import-not-found]

from benchmarks.payload import PAYLOAD_SQL
from benchmarks.peers.filling import fill
from benchmarks.subject import report, wait_for_go

QUEUE = "orders"

FILL = f"""
insert into pgmq.q_{QUEUE} (vt, message, headers)
select clock_timestamp(), ({PAYLOAD_SQL})::jsonb, '{{"source":"/benchmarks"}}'
  from generate_series($1::bigint, $2) n
"""


async def drain(database: str, messages: int, batch: int) -> None:
    handled = 0
    version = install_pgmq_from_sql(dsn=database)
    async with asyncpg.create_pool(database) as pool:
        await AsyncPGMQueue(pool=pool, init_extension=False).create_queue(QUEUE)
        await fill(pool, FILL, messages)
    async with asyncpg.create_pool(database, min_size=2) as pool:
        queue = AsyncPGMQueue(pool=pool, init_extension=False)
        wait_for_go()
        began = time.monotonic()
        while read := await queue.read_batch(QUEUE, vt=300, batch_size=batch):
            handled += len(read)
            await queue.delete_batch(QUEUE, [message.msg_id for message in read])
        seconds = time.monotonic() - began
    settings = f"read and delete in batches of {batch:,}, asyncpg, SQL {version}"
    report(messages=handled, seconds=seconds, settings=settings)


if __name__ == "__main__":
    asyncio.run(drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
