"""`make soak KAFKA=1`: writers, relays, three Kafka brokers and consumers, and everything that can happen to them.

Brokers and processes have faults of their own at the same time, each kind once before any comes again, in an order that
the seed decides. It ends when the minutes are over; without a number of minutes, when MESSAGES are committed and each
fault has happened.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.kafka_chaos import BROKER_FAULTS, PROCESS_FAULTS, KafkaChaos
from tests.services.kafka import Kafka
from tests.services.postgresql import PostgreSQL

MESSAGES = 200_000
LONGEST_PAUSE = 3


async def soak_kafka(minutes: float | None, seed: int, folder: Path) -> bool:
    """Whether every promise was kept."""
    with PostgreSQL(15) as database, Kafka(3) as brokers:
        async with KafkaChaos(database, brokers, folder, seed=seed) as chaos:
            chaos.writers.start()
            await chaos.until_flowing()
            over = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for number, kinds in enumerate((BROKER_FAULTS, PROCESS_FAULTS)):
                    tasks.create_task(_let_happen(chaos, kinds, random.Random(2 * seed + number), over.is_set))
                tasks.create_task(_end(chaos, minutes, over))
            histories = await chaos.come_to_rest()
            print(chaos.report(histories))
            return histories.kept and histories.published.passed


async def _let_happen(
    chaos: KafkaChaos, kinds: Sequence[str], dice: random.Random, is_over: Callable[[], bool]
) -> None:
    for fault in _in_rounds(kinds, dice):
        await asyncio.sleep(dice.random() * LONGEST_PAUSE)
        if is_over():
            return
        print(f"{time.strftime('%H:%M:%S')} {fault}", flush=True)
        await chaos.happen(fault)
        if kinds is BROKER_FAULTS:
            await chaos.until_flowing()


def _in_rounds(kinds: Sequence[str], dice: random.Random) -> Iterator[str]:
    while True:
        yield from dice.sample(kinds, len(kinds))


async def _end(chaos: KafkaChaos, minutes: float | None, over: asyncio.Event) -> None:
    if minutes is not None:
        await asyncio.sleep(60 * minutes)
    else:
        await chaos.writers.until_committed(MESSAGES, seconds=3600)
        while chaos.faults.keys() != {*BROKER_FAULTS, *PROCESS_FAULTS}:  # noqa: ASYNC110 - they take their time
            await asyncio.sleep(1)
    over.set()
