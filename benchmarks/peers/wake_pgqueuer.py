"""PgQueuer, woken as it always is: `python -m benchmarks.peers.wake_pgqueuer DATABASE`. On uvloop, as its own CLI."""

from __future__ import annotations

import asyncio
import sys

import asyncpg
import uvloop  # type: ignore[import-not-found]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.models import Job  # type: ignore[import-not-found]  # noqa: TC002 - PgQueuer looks at the annotation
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from benchmarks.waking import Arrival


async def main(database: str) -> None:
    arrival = Arrival()
    adding = Queries(AsyncpgDriver(await asyncpg.connect(database)))
    await adding.install()
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(database)))

    @queue.entrypoint("order")  # type: ignore[untyped-decorator]
    async def handle(_: Job) -> None:
        arrival.now()

    running = asyncio.create_task(queue.run())
    await arrival.each(lambda: adding.enqueue("order", b'{"order":1}'))
    running.cancel()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
