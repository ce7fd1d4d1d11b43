"""Retention that runs all the time, in a process of its own: deletes what was delivered, until it is told to stop.

Run by the benchmarks as `python -m benchmarks.retention_process DATABASE`. In production it would wait between two
rounds and keep what is younger than days; here it is as much in the way as it can be.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import timedelta

from benchmarks.subject import report, wait_for_go
from postroad.relay.maintenance import Retention
from postroad.stores import store_for


async def delete_until_told(database: str) -> int:
    store = store_for(database)
    await store.open()
    retention = Retention(store, retain=timedelta(0))
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    deleted = 0
    try:
        while not stop.done():
            deleted += await retention.run_once()
            await asyncio.sleep(0.01)
        return deleted + await retention.run_once()
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    arguments = parser.parse_args()
    wait_for_go()
    began = time.monotonic()
    deleted = asyncio.run(delete_until_told(arguments.database))
    report(messages=deleted, seconds=time.monotonic() - began, settings="retain 0, without a pause between rounds")


if __name__ == "__main__":
    main()
