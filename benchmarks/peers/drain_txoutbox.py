"""txoutbox draining a backlog: `python -m benchmarks.peers.drain_txoutbox DATABASE MESSAGES BATCH`.

The messages have no key, so strict ordering is off as its documentation advises; delivered rows are deleted, not
marked; there is no timeout per message, and as many may be published at once as a round claims.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

import asyncpg
from txoutbox import OutboxMessage, Relay, RelayConfig  # type: ignore[import-not-found]
from txoutbox.adapters.postgres import PostgresStorage  # type: ignore[import-not-found]

from benchmarks.payload import PAYLOAD_SQL
from benchmarks.peers.filling import fill
from benchmarks.subject import report, wait_for_go

FILL = f"""
insert into outbox (topic, key, payload, headers)
select 'order.placed', null, convert_to({PAYLOAD_SQL}, 'UTF8'), '{{"source":"/benchmarks"}}'
  from generate_series($1::bigint, $2) n
"""


async def drain(database: str, messages: int, batch: int) -> None:
    handled = 0

    async def publish(message: OutboxMessage) -> None:
        nonlocal handled
        handled += 1

    async with asyncpg.create_pool(database) as pool:
        await PostgresStorage(pool).create_schema()
        await fill(pool, FILL, messages)
    async with asyncpg.create_pool(database, min_size=2) as pool:
        storage = PostgresStorage(pool, strict_ordering=False, delete_on_ack=True)
        config = RelayConfig(batch_size=batch, concurrency=batch, publish_timeout=None, lease=timedelta(minutes=5))
        relay = Relay(storage, publish, config=config)
        wait_for_go()
        began = time.monotonic()
        while (await relay.run_once()).claimed:
            pass
        seconds = time.monotonic() - began
    settings = f"batch_size {batch:,}, strict_ordering off, delete_on_ack, no publish_timeout"
    report(messages=handled, seconds=seconds, settings=settings)


if __name__ == "__main__":
    asyncio.run(drain(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
