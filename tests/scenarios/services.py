"""What the scenarios' processes consume with: `postroad consume --app tests.scenarios.services:<name>`.

Where things are, and how a handler misbehaves, is in the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from postroad import Consumer, Outbox, Received, event
from postroad.retry import Backoff

DATABASE = os.environ.get("SERVICE_DATABASE", "")
BROKER = os.environ.get("SERVICE_BROKER", "amqp://localhost")
STOPS = os.environ.get("SERVICE_STOPS", "")
"""Where it comes to a halt: `before_commit`, `after_commit` or `second_attempt`."""
GRACE = os.environ.get("SERVICE_GRACE", "10s")
TOGETHER = int(os.environ.get("SERVICE_TOGETHER", "1"))
IDLE = os.environ.get("SERVICE_IDLE", "0")
"""How long PostgreSQL waits for a process that is silent in a transaction; 0 for ever."""
HALTED = Path(os.environ.get("SERVICE_HALTED", "halted"))
SOON = Backoff(max_attempts=5, first=timedelta(milliseconds=10), jitter=0)

outbox = Outbox(source="/service")
_connections: list[Any] = []
_noted: list[int] = []


@event("order.created")
@dataclass
class OrderCreated:
    order: int
    poison: str = ""


@event("stock.reserved")
@dataclass
class StockReserved:
    order: int


@asynccontextmanager
async def begin() -> AsyncIterator[Any]:
    """A transaction on a connection of its own, kept for the next one."""
    settings = {"application_name": str(os.getpid()), "idle_in_transaction_session_timeout": IDLE}
    connection = _connections.pop() if _connections else await asyncpg.connect(DATABASE, server_settings=settings)
    try:
        async with connection.transaction():
            yield connection
    except BaseException:
        connection.terminate()
        raise
    if STOPS == "after_commit" and _noted:
        await halt()
    _connections.append(connection)


async def halt() -> None:
    HALTED.touch()  # noqa: ASYNC240 - nothing else is to happen any more
    await asyncio.Event().wait()


# -- one effect ------------------------------------------------------------------------------------------------------

shared: Consumer[Any] = Consumer(BROKER, name="shared", begin=begin, ordering="none", retry=SOON)
alone: Consumer[Any] = Consumer(
    BROKER, name="alone", begin=begin, retry=SOON, grace=GRACE, messages_per_transaction=TOGETHER
)


async def note(event: OrderCreated, tx: Any, message: Received) -> None:
    await tx.execute('insert into effects ("order", attempt) values ($1, $2)', event.order, message.attempt)
    _noted.append(event.order)
    if STOPS == "before_commit" or (STOPS == "second_attempt" and message.attempt == 2):
        await halt()
    if event.poison == "fails three times" and message.attempt <= 3:
        raise LookupError(f"attempt {message.attempt}")
    if event.poison == "kills":
        os.kill(os.getpid(), signal.SIGKILL)


shared.on(OrderCreated)(note)
alone.on(OrderCreated)(note)


# -- a chain ---------------------------------------------------------------------------------------------------------

inventory: Consumer[Any] = Consumer(BROKER, name="inventory", begin=begin, retry=SOON)
notify: Consumer[Any] = Consumer(BROKER, name="notify", begin=begin, retry=SOON)


@inventory.on(OrderCreated)
async def reserve(event: OrderCreated, tx: Any, message: Received) -> None:
    await tx.execute('insert into reservations ("order", message) values ($1, $2)', event.order, message.id)
    await outbox.add(tx, StockReserved(event.order), key=event.order)


@notify.on(StockReserved)
async def send(event: StockReserved, tx: Any, message: Received) -> None:
    columns = '"order", message, causation, correlation'
    values = (event.order, message.id, message.causation_id, message.correlation_id)
    await tx.execute(f"insert into notifications ({columns}) values ($1, $2, $3, $4)", *values)
