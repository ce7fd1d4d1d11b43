"""A service that receives webhooks, in a process of its own: `uvicorn tests.scenarios.webhook_service:app`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite

from postroad import Consumer, Received
from postroad.asgi import webhook

DATABASE, SECRETS = os.environ["WAREHOUSE"], Path(os.environ["WAREHOUSE_SECRETS"])


@asynccontextmanager
async def begin() -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(DATABASE, timeout=60) as connection:
        await connection.execute("begin immediate")
        yield connection
        await connection.commit()


consumer: Consumer[aiosqlite.Connection] = Consumer(name="warehouse", begin=begin)


@consumer.on(dict, type="order.placed")
async def ship(event: dict[str, Any], tx: aiosqlite.Connection, message: Received) -> None:
    await tx.execute("insert into shipped (customer, number) values (?, ?)", (message.key, event["number"]))


app = webhook(consumer, secrets=SECRETS)
