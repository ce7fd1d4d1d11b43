"""txoutbox, woken by its own trigger and listener: `python -m benchmarks.peers.wake_txoutbox DATABASE`."""

from __future__ import annotations

import asyncio
import sys

import asyncpg
from txoutbox import OutboxMessage, Relay  # type: ignore[import-not-found]
from txoutbox.adapters.postgres import PostgresStorage  # type: ignore[import-not-found]

from benchmarks.waking import Arrival

ADD = "insert into outbox (topic, key, payload, headers) values ('order.placed', null, '{\"order\":1}', '{}')"


async def main(database: str) -> None:
    arrival = Arrival()
    connection = await asyncpg.connect(database)

    async def publish(_: OutboxMessage) -> None:
        arrival.now()

    async def add() -> None:
        async with connection.transaction():
            await connection.execute(ADD)

    async with asyncpg.create_pool(database, min_size=3) as pool:
        storage = PostgresStorage(pool, strict_ordering=False, delete_on_ack=True, notify_channel="outbox_added")
        await storage.create_schema()
        relay = Relay(storage, publish)
        async with await storage.listen(relay.wake):
            running = asyncio.create_task(relay.run())
            await arrival.each(add)
            running.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
