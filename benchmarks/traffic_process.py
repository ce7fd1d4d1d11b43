"""A writer or a relay that is at work all the time, in a process of its own, until it is told to stop.

Run by the benchmarks as `python -m benchmarks.traffic_process DATABASE writer|relay`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

import asyncpg

from benchmarks import by_hand
from benchmarks.subject import report, wait_for_go
from postroad import Message, Outbox
from postroad.brokers.null import NullPublisher
from postroad.relay import Relay
from postroad.stores import store_for

WRITERS = 4


async def write(database: str) -> int:
    """Some writers, each of which adds one message per transaction; how many they were."""
    stopping = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    outbox = Outbox(source=by_hand.SOURCE)

    async def one() -> int:
        connection: Any = await asyncpg.connect(database)
        written = 0
        while not stopping.done():
            async with connection.transaction():
                await outbox.add_many(connection, [Message("x" * 170, type=by_hand.TYPE)])
            written += 1
        await connection.close()
        return written

    return sum(await asyncio.gather(*(one() for _ in range(WRITERS))))


async def relay(database: str) -> int:
    """A relay to nowhere; how many messages it delivered."""
    stopping = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    it = Relay(store_for(database), NullPublisher())
    running = asyncio.create_task(it.run())
    await stopping
    it.stop()
    return (await running).published


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("role", choices=["writer", "relay"])
    arguments = parser.parse_args()
    wait_for_go()
    began = time.monotonic()
    done = asyncio.run((write if arguments.role == "writer" else relay)(arguments.database))
    report(messages=done, seconds=time.monotonic() - began, settings=arguments.role)


if __name__ == "__main__":
    main()
