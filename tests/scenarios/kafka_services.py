"""What the scenarios' processes consume from Kafka with: `--app tests.scenarios.kafka_services:ledger`.

Where things are is in the environment.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from postroad import Consumer, Received
from tests.scenarios.services import SOON, TOGETHER, OrderCreated, begin

ledger: Consumer[Any] = Consumer(
    os.environ.get("SERVICE_KAFKA", "kafka://localhost"),
    name="ledger",
    begin=begin,
    retry=SOON,
    messages_per_transaction=TOGETHER,
    topic=os.environ.get("SERVICE_TOPIC"),
    group=os.environ.get("SERVICE_TOPIC"),
    instance=os.environ.get("SERVICE_INSTANCE"),
    session_timeout=os.environ.get("SERVICE_SESSION", "3s"),
)


@ledger.on(OrderCreated)
async def note(event: OrderCreated, tx: Any, message: Received) -> None:
    await tx.execute('insert into effects ("order", key) values ($1, $2)', event.order, message.key)
    if event.poison == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
