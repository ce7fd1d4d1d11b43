"""A relay whose waking is measured: `python -m benchmarks.wakeup_process DATABASE [off [LANES]]`. All else is as by
default.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncpg

from benchmarks.waking import Arrival
from postroad import Outbox, StoredMessage
from postroad.brokers.local import LocalPublisher
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores import store_for


async def main(database: str, wakeup: Any = "notify", lanes: str = "4") -> None:
    arrival = Arrival()
    outbox = Outbox(source="/benchmarks")
    connection = await asyncpg.connect(database)

    async def handle(_: StoredMessage) -> None:
        arrival.now()

    async def add() -> None:
        async with connection.transaction():
            await outbox.add(connection, {"order": 1}, type="order.placed")

    settings = RelaySettings(wakeup=wakeup, lanes=int(lanes))
    relay = Relay(store_for(database), LocalPublisher(handle), settings=settings)
    running = asyncio.create_task(relay.run())
    await arrival.each(add)
    relay.stop()
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
