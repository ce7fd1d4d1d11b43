"""What the scenarios' processes share a queue of RabbitMQ with: `--app tests.scenarios.partition_services:divided`.

Where things are is in the environment.
"""

from __future__ import annotations

import os
from typing import Any

from postroad import Consumer, Received
from tests.scenarios.services import BROKER, SOON, TOGETHER, begin

divided: Consumer[Any] = Consumer(
    BROKER,
    name="divided",
    begin=begin,
    retry=SOON,
    messages_per_transaction=TOGETHER,
    partitions=8,
    prefetch=50,
    heartbeat=os.environ.get("SERVICE_HEARTBEAT", "2s"),
    arguments={"x-queue-type": os.environ.get("SERVICE_QUEUE_TYPE", "classic")},
)


@divided.on(dict, type="order.created")
async def effect(event: dict[str, Any], tx: Any, message: Received) -> None:
    insert = "insert into effects (key, number, process) values ($1, $2, $3)"
    await tx.execute(insert, message.key, event["number"], os.getpid())
