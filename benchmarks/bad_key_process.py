"""A relay whose publisher refuses one message, or does not, in a process of its own.

Run as `python -m benchmarks.bad_key_process DATABASE SINK well|refuse|mended TO MESSAGES`. It fails when a
message of the bad key comes out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from benchmarks.rabbitmq_yardsticks import EXCHANGE
from benchmarks.subject import report, wait_for_go
from postroad.brokers import publisher_for
from postroad.errors import Refusal
from postroad.relay import Relay
from postroad.retry import Backoff
from postroad.stores import store_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.brokers.base import Publisher
    from postroad.message import StoredMessage

BAD = "bad"
SOON = Backoff(first=timedelta(seconds=1), max_backoff=timedelta(seconds=1), max_attempts=1_000_000)


class Choosy:
    """Has everything published, but the messages of the bad key only when it is mended."""

    def __init__(self, publisher: Publisher, *, refuses: bool) -> None:
        self.name = publisher.name
        self.destination = publisher.destination
        self.open = publisher.open
        self.close = publisher.close
        self._publisher = publisher
        self._refuses = refuses
        self._latest = 0

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        bad = [message.position for message in messages if message.key == BAD]
        if self._refuses and bad:
            others = [message for message in messages if message.key != BAD]
            refused = [Refusal(position, "refused by the benchmark") for position in bad]
            return [*refused, *(await self._publisher.publish(others) if others else ())]
        for position in bad:
            if position <= self._latest:
                raise SystemExit(f"{position} came after {self._latest}")
            self._latest = position
        return await self._publisher.publish(messages)


async def run_relay(database: str, sink: str, *, how: str, to: str, messages: int) -> tuple[int, float]:
    published, began = 0, time.perf_counter()
    publisher = Choosy(publisher_for(to, exchange=EXCHANGE), refuses=how == "refuse")
    while True:
        summary = await Relay(store_for(database), publisher, sink=sink, retry=SOON).run_until_empty()
        if not published and summary.published:
            began = time.perf_counter() - summary.seconds
        published += summary.published
        if published >= messages or how != "mended":
            return published, time.perf_counter() - began
        await asyncio.sleep(0.05)  # until the head is due


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("sink")
    parser.add_argument("how")
    parser.add_argument("to")
    parser.add_argument("messages", type=int)
    given = parser.parse_args()
    starting_cpu_seconds = wait_for_go()
    published, seconds = asyncio.run(
        run_relay(given.database, given.sink, how=given.how, to=given.to, messages=given.messages)
    )
    report(messages=published, seconds=seconds, settings=given.how, starting_cpu_seconds=starting_cpu_seconds)


if __name__ == "__main__":
    main()
