"""`make soak MINUTES=30`: relays, writers, and everything that can happen to them, in random order, for a long time.

Ends with the report of the history checker, and with an error unless every promise was kept. A write transaction is
held open for a minute, again and again. The seed decides what happens; give it again to repeat a run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.logs import OUTBOX, numbered
from tests.services.postgresql import PostgreSQL
from tests.services.rabbitmq import RabbitMQ
from tests.turmoil import Turmoil

ACTS = {
    "kill": 4, "freeze": 4, "end_in_peace": 4, "drop_connections": 3, "half_close": 2, "delay": 3,
    "restart_database": 1, "crash_database": 1, "restart_broker": 1,
}  # fmt: skip
HELD_OPEN_SECONDS = 60


async def soak(minutes: float, seed: int, folder: Path) -> bool:
    until = time.monotonic() + 60 * minutes
    with PostgreSQL(15) as database, RabbitMQ() as broker:
        async with Turmoil(database, broker, folder, seed=seed) as turmoil:
            turmoil.write()
            holding = asyncio.create_task(_hold_transactions_open(turmoil, until))
            while time.monotonic() < until:
                await asyncio.sleep(turmoil.random.random() * 3)
                (act,) = turmoil.random.choices(list(ACTS), list(ACTS.values()))
                print(f"{time.strftime('%H:%M:%S')} {act}", flush=True)
                await turmoil.happen(act)
            await holding
            verdict = await turmoil.come_to_rest()
            print(turmoil.report(verdict))
            return verdict.passed


async def _hold_transactions_open(turmoil: Turmoil, until: float) -> None:
    """Nobody else's messages wait for these; and their own go out when they commit."""
    number = -1
    while (seconds := min(HELD_OPEN_SECONDS, until - time.monotonic())) > 0:
        try:
            connection = await turmoil.log.connect()
            try:
                async with connection.transaction():
                    await OUTBOX.add_many(connection, numbered(number))
                    number -= 1
                    await asyncio.sleep(seconds)
            finally:
                connection.terminate()
        except Exception as error:
            print(f"{time.strftime('%H:%M:%S')} a long transaction was ended: {error}", flush=True)
            await asyncio.sleep(1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="postroad-soak-") as folder:
        return 0 if asyncio.run(soak(given.minutes, given.seed, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
