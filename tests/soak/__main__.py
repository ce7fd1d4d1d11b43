"""`make soak MINUTES=30`: relays, writers, and everything that can happen to them, in random order, for a long time.

Ends with the report of the history checker, and with an error unless every promise was kept. In every other minute a
write transaction is held open, and the database stays up. The seed decides what happens; give it again to repeat a run.
With KAFKA=1 it is another run, see `tests.soak.kafka`. After a broken promise the logs and histories are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from tests.chaos import Chaos
from tests.logs import OUTBOX, numbered
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.soak.kafka import soak_kafka

ACTS = {
    "kill": 4, "freeze": 4, "end_in_peace": 4, "drop_connections": 3, "half_close": 2, "delay": 2,
    "delay_beyond_lease": 2, "forget_connections": 3, "restart_broker": 1, "restart_database": 2, "crash_database": 2,
}  # fmt: skip
END_TRANSACTIONS = {"restart_database", "crash_database"}
HELD_OPEN_SECONDS = 60
DEFAULT_MINUTES = 30


async def soak(minutes: float, seed: int, folder: Path) -> bool:
    until = time.monotonic() + 60 * minutes
    with PostgreSQL(15) as database, RabbitMQ() as broker:
        async with Chaos(database, broker, folder, seed=seed) as chaos:
            chaos.write()
            held = 0
            while time.monotonic() < until:
                holding = asyncio.create_task(_hold_transaction_open(chaos, number=-1 - held))
                await _let_happen(chaos, until, ACTS.keys() - END_TRANSACTIONS, unless=holding.done)
                await holding
                held += 1
                await _let_happen(chaos, min(until, time.monotonic() + HELD_OPEN_SECONDS), ACTS.keys())
            verdict = await chaos.come_to_rest()
            print(chaos.report(verdict))
            print(f"{held} transactions were held open for {HELD_OPEN_SECONDS} seconds, and no message waited for them")
            return verdict.passed


async def _let_happen(
    chaos: Chaos, until: float, acts: Collection[str], unless: Callable[[], bool] = lambda: False
) -> None:
    choice = sorted(acts)
    while time.monotonic() < until and not unless():
        await asyncio.sleep(chaos.random.random() * 3)
        (act,) = chaos.random.choices(choice, [ACTS[act] for act in choice])
        print(f"{time.strftime('%H:%M:%S')} {act}", flush=True)
        await chaos.happen(act)


async def _hold_transaction_open(chaos: Chaos, number: int) -> None:
    """No other message waits for it: before it commits, every lane is past its position. Its own goes out then."""
    connection = await chaos.log.connect()
    try:
        async with connection.transaction():
            await OUTBOX.add_many(connection, numbered(number))
            position = await connection.fetchval("select max(position) from postroad.outbox")
            await asyncio.sleep(HELD_OPEN_SECONDS)
            waiting = await connection.fetchval("select count(*) from postroad.lanes where position < $1", position)
            assert not waiting, f"{waiting} lanes wait for an open transaction"
    finally:
        connection.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, help="default: 30, and with --kafka until all has happened")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--kafka", action="store_true", help="three Kafka brokers and consumers, instead of RabbitMQ")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="postroad-soak-"))
    passed = False
    try:
        if given.kafka:
            passed = asyncio.run(soak_kafka(given.minutes, given.seed, folder))
        else:
            passed = asyncio.run(soak(given.minutes or DEFAULT_MINUTES, given.seed, folder))
    finally:
        if passed:
            shutil.rmtree(folder)
        else:
            print(f"FAILED; logs and histories are in {folder}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
