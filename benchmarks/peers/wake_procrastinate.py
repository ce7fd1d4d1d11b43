"""Procrastinate, woken as it always is: `python -m benchmarks.peers.wake_procrastinate DATABASE`."""

from __future__ import annotations

import asyncio
import sys

import procrastinate  # type: ignore[import-not-found]

from benchmarks.waking import Arrival


async def main(database: str) -> None:
    arrival = Arrival()
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database))

    @app.task(name="order")  # type: ignore[untyped-decorator]
    async def handle(order: int) -> None:
        arrival.now()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        running = asyncio.create_task(app.run_worker_async(install_signal_handlers=False))
        await arrival.each(lambda: handle.defer_async(order=1))
        running.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
