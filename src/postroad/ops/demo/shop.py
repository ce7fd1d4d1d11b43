"""The shop, an ordinary application: it writes its order and adds its message in one transaction.

With --sabotage it makes the classic mistake: it publishes by itself, without an outbox.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from postroad.ops.demo.warehouse import Warehouse
from postroad.outbox import Outbox

if TYPE_CHECKING:
    from postroad.ops.demo.plan import OrderPlaced, Plan

__all__ = ["create_tables", "open_shop"]

_TABLES = """
    pragma journal_mode = wal;
    create table orders   (number integer primary key, customer text not null);
    create table declined (number integer primary key, customer text not null);
"""


class CardDeclined(Exception):
    """The customer can't pay; the transaction must be rolled back."""


class Announce(Protocol):
    """Publishes an order."""

    def __call__(self, connection: sqlite3.Connection, order: OrderPlaced) -> None:
        """Called inside the order's transaction."""


def create_tables(plan: Plan) -> None:
    """The shop's own tables. The log comes from `postroad migrate`."""
    with closing(sqlite3.connect(plan.shop_file)) as connection:
        connection.executescript(_TABLES)


async def open_shop(plan: Plan) -> None:
    """Serve all customers, beginning where a killed shop left off."""
    if not plan.sabotage:
        await _serve(plan, _through_the_outbox())
        return
    with closing(Warehouse(plan)) as warehouse:
        mistake = Directly(warehouse, plan.handling_seconds)
        await _serve(plan, mistake)
        await mistake.finish()


async def _serve(plan: Plan, announce: Announce) -> None:
    with closing(sqlite3.connect(plan.shop_file, timeout=30)) as connection:
        # What was written survives SIGKILL; only a power failure would need more than this.
        connection.execute("pragma synchronous = normal")
        for number in range(_next_number(connection), plan.orders + 1):
            order = plan.order(number)
            try:
                _place(connection, order, announce, can_pay=not plan.is_declined(number))
            except CardDeclined:
                with connection:
                    connection.execute("insert into declined values (?, ?)", (order.order, order.customer))
            await asyncio.sleep(plan.pause_seconds)


def _place(connection: sqlite3.Connection, order: OrderPlaced, announce: Announce, *, can_pay: bool) -> None:
    with connection:  # commits at the end, or rolls back
        connection.execute("insert into orders values (?, ?)", (order.order, order.customer))
        announce(connection, order)
        if not can_pay:
            raise CardDeclined


def _next_number(connection: sqlite3.Connection) -> int:
    query = "select coalesce(max(number), 0) + 1 from (select number from orders union all select number from declined)"
    return int(connection.execute(query).fetchone()[0])


def _through_the_outbox() -> Announce:
    outbox = Outbox(source="/shop")

    def announce(connection: sqlite3.Connection, order: OrderPlaced) -> None:
        outbox.add(connection, order, key=order.customer)

    return announce


class Directly:
    """The classic mistake: publish in the background. A rollback does not undo it, and a kill loses it."""

    def __init__(self, warehouse: Warehouse, seconds: float) -> None:
        self._warehouse = warehouse
        self._seconds = seconds
        self._under_way: set[asyncio.Task[None]] = set()

    def __call__(self, connection: sqlite3.Connection, order: OrderPlaced) -> None:
        """Publish before the commit."""
        task = asyncio.create_task(self._publish(order))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def finish(self) -> None:
        """Wait for the publications in flight."""
        await asyncio.gather(*self._under_way)

    async def _publish(self, order: OrderPlaced) -> None:
        await asyncio.sleep(self._seconds)  # the network and the broker take time
        self._warehouse.record(order)
