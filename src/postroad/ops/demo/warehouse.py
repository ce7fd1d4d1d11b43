"""The warehouse: another application, with its own database. It records every call of its handler.

It does not deduplicate, so that the audit can count what arrives. A real application would use an inbox.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from postroad.brokers.local import LocalPublisher
from postroad.config import RelaySettings
from postroad.ops.demo.plan import LANES, OrderPlaced
from postroad.ops.process import run_relay
from postroad.relay import Relay
from postroad.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from postroad.message import StoredMessage
    from postroad.ops.demo.plan import Plan

__all__ = ["Warehouse", "create_tables", "relay_to_warehouse"]

_TABLES = """
    pragma journal_mode = wal;
    create table deliveries (arrival integer primary key, number integer not null, customer text not null);
"""
# Small pages, so that a kill causes few duplicates, and short leases, so that lanes of a killed relay are free soon;
# a real service would use the defaults.
_SETTINGS = RelaySettings(lanes=LANES, batch_size=10, lease="1s")


def create_tables(plan: Plan) -> None:
    with closing(sqlite3.connect(plan.warehouse_file)) as connection:
        connection.executescript(_TABLES)


class Warehouse:
    """Records deliveries."""

    def __init__(self, plan: Plan) -> None:
        self._seconds = plan.handling_seconds
        self._connection = sqlite3.connect(plan.warehouse_file, timeout=30, isolation_level=None)
        self._connection.execute("pragma synchronous = normal")

    async def handle(self, message: StoredMessage) -> None:
        """The relay's handler: record the delivery, then take some time to process it."""
        self.record(msgspec.json.decode(message.payload, type=OrderPlaced))
        await asyncio.sleep(self._seconds)

    def record(self, order: OrderPlaced) -> None:
        self._connection.execute(
            "insert into deliveries (number, customer) values (?, ?)", (order.order, order.customer)
        )

    def close(self) -> None:
        self._connection.close()


async def relay_to_warehouse(plan: Plan, *, until_empty: bool) -> int:
    """The relay process: from the shop's log to the warehouse's handler. Gives the exit code."""
    with closing(Warehouse(plan)) as warehouse:
        relay = Relay(SQLiteStore(plan.shop_file), LocalPublisher(warehouse.handle), settings=_SETTINGS)
        return (await run_relay(relay, until_empty=until_empty)).exit_code
