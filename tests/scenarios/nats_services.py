"""What the scenarios' processes consume from NATS with: `--app tests.scenarios.nats_services:ledger`.

Where things are is in the environment.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from postroad import Consumer, Received
from tests.scenarios.services import SOON, TOGETHER, OrderCreated, begin

ledger: Consumer[Any] = Consumer(
    os.environ.get("SERVICE_NATS", "nats://localhost"),
    name="ledger",
    begin=begin,
    retry=SOON,
    messages_per_transaction=TOGETHER,
    stream=os.environ.get("SERVICE_STREAM"),
    subject=f"{os.environ.get('SERVICE_STREAM')}.>",
    durable=os.environ.get("SERVICE_STREAM"),
    stream_config={"num_replicas": int(os.environ.get("SERVICE_REPLICAS", "1"))},
    takeover_after="3s",
)


@ledger.on(OrderCreated)
async def note(event: OrderCreated, tx: Any, message: Received) -> None:
    await tx.execute('insert into effects ("order", key) values ($1, $2)', event.order, message.key)
    if event.poison == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
