"""PostgreSQL, relays, three Kafka brokers, consumers, PostgreSQL, and all that can happen to them: a short version of
`make soak KAFKA=1`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.kafka_chaos import KafkaChaos
from tests.services.kafka import Kafka
from tests.services.postgresql import PostgreSQL

SEED = int(os.environ.get("TURMOIL_SEED", "18"))
MESSAGES = 20_000


async def test_every_promise_is_kept_through_the_death_of_brokers_relays_and_consumers(
    postgresql15: PostgreSQL, kafka3: Kafka, tmp_path: Path
) -> None:
    async with KafkaChaos(postgresql15, kafka3, tmp_path, seed=SEED) as chaos:
        chaos.writers.start()
        await chaos.until_flowing()
        brokers = asyncio.create_task(chaos.happen("too_few_replicas"))
        for fault in ("kill_relay", "freeze_consumer", "kill_consumer"):
            await chaos.happen(fault)
        await brokers
        await chaos.writers.until_committed(MESSAGES, seconds=300)
        histories = await chaos.come_to_rest()
        # Whether each duplicate in the topic has a reason is asked by `make soak`, on a machine of its own.
        assert histories.kept, chaos.report(histories)
        print(chaos.report(histories))  # noqa: T201 - `pytest -rP` shows it
