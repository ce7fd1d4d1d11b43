"""What the scenarios' processes consume from Redis with: `--app tests.scenarios.redis_services:ledger`.

Where things are is in the environment.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from postroad import Consumer, Received
from tests.scenarios.services import SOON, TOGETHER, OrderCreated, begin

PARTITIONS = 4

ledger: Consumer[Any] = Consumer(
    os.environ.get("SERVICE_REDIS", "redis://localhost"),
    name="ledger",
    begin=begin,
    retry=SOON,
    messages_per_transaction=TOGETHER,
    stream="orders",
    partitions=PARTITIONS,
    lease="3s",
)


@ledger.on(OrderCreated)
async def note(event: OrderCreated, tx: Any, message: Received) -> None:
    await tx.execute('insert into effects ("order", key) values ($1, $2)', event.order, message.key)
    if event.poison == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
