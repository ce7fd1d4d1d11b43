"""A consumer whose handler talks to its database until it may end, or the database goes silent.

`postroad consume --app tests.scenarios.silent_service:consumer`; where things are is in the environment.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from postroad import Consumer, Received
from tests.places import _POSTGRESQL
from tests.scenarios.services import BROKER, DATABASE, SOON, OrderCreated

DRIVER = os.environ.get("SERVICE_DRIVER", "asyncpg")
BUSY = Path(os.environ.get("SERVICE_BUSY", "busy"))
ENDLESS = os.environ.get("SERVICE_ENDLESS") == "1"

begin, _, is_async = _POSTGRESQL[DRIVER](DATABASE)
consumer: Consumer[Any] = Consumer(BROKER, name="alone", begin=begin, retry=SOON, grace="1s")
_STATEMENT = 'insert into effects ("order", attempt) values (1, 1)'
_LOOK = "select 1"


def _sql(statement: str) -> Any:
    return text(statement) if DRIVER.endswith("session") else statement


async def talk(event: OrderCreated, tx: Any, message: Received) -> None:
    await tx.execute(_sql(_STATEMENT))
    while ENDLESS:
        await tx.execute(_sql(_LOOK))
        BUSY.touch()  # noqa: ASYNC240 - a file system in memory
        await asyncio.sleep(0.01)


def talk_in_a_thread(event: OrderCreated, tx: Any, message: Received) -> None:
    tx.execute(_sql(_STATEMENT))
    while ENDLESS:
        tx.execute(_sql(_LOOK))
        BUSY.touch()
        time.sleep(0.01)


consumer.on(OrderCreated)(talk if is_async else talk_in_a_thread)
