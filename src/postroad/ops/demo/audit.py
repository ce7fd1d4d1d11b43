"""The audit: compares the shop's tables with the warehouse's table, and uses no other source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from postroad.verify import Arrival, Committed, verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.ops.demo.plan import Plan

__all__ = ["Audit", "Books", "Counts", "Entry", "audit", "count", "read_books"]


class Entry(NamedTuple):
    """An order or a delivery, as a row of its table."""

    number: int
    customer: str


class Books(msgspec.Struct, frozen=True):
    """The contents of the tables."""

    orders: Sequence[Entry]
    """The committed orders."""
    declined: int
    """How many orders were rolled back."""
    logged: int | None
    """How many messages are in the log; None without an outbox."""
    deliveries: Sequence[Entry]
    """Every call of the warehouse's handler, in order."""


class Audit(msgspec.Struct, frozen=True):
    """The result of the comparison."""

    orders: int
    declined: int
    logged: int | None
    deliveries: int
    lost: int
    """Orders that were never delivered."""
    phantoms: int
    """Deliveries of what is not an order, each counted once."""
    duplicates: int
    """Repeated deliveries."""
    customers: int
    disordered: int
    """Customers whose orders were not delivered in the order in which they were placed, repeated deliveries aside."""

    @property
    def passed(self) -> bool:
        """Duplicates are allowed: the promise is at least once."""
        nothing_wrong = not (self.lost or self.phantoms or self.disordered)
        return nothing_wrong and self.orders > 0 and self.logged in (None, self.orders)


def audit(books: Books) -> Audit:
    """Compare the tables, by `verify`. An order's number is its place among the orders of its customer."""
    orders = [Committed(order.number, order.customer, order.number) for order in books.orders]
    verdict = verify(orders, [Arrival(delivery.number) for delivery in books.deliveries])
    return Audit(
        orders=verdict.committed,
        declined=books.declined,
        logged=books.logged,
        deliveries=verdict.arrived,
        lost=len(verdict.lost),
        phantoms=len({phantom.id for phantom in verdict.phantoms}),
        duplicates=len(books.deliveries) - len(set(books.deliveries)),
        customers=len({order.customer for order in books.orders}),
        disordered=len({overtaken.message.key for overtaken in verdict.overtaken}),
    )


# -- reading the tables ----------------------------------------------------------------------------------------------

_ORDERS = "select number, customer from orders order by number"
_DELIVERIES = "select number, customer from warehouse.deliveries order by arrival"
_COUNTS = """
    select (select count(*) from orders),
           (select count(*) from declined),
           (select count(distinct number) from warehouse.deliveries),
           (select count(*) - count(distinct number) from warehouse.deliveries),
           (select count(*) from orders where number not in (select number from warehouse.deliveries))
"""


def read_books(plan: Plan) -> Books:
    """Read the tables, after all processes have ended."""
    with closing(_open(plan)) as tables:
        return Books(
            orders=[Entry(*row) for row in tables.execute(_ORDERS)],
            declined=_number(tables, "select count(*) from declined"),
            logged=None if plan.sabotage else _number(tables, "select count(*) from postroad_outbox"),
            deliveries=[Entry(*row) for row in tables.execute(_DELIVERIES)],
        )


class Counts(NamedTuple):
    """The same tables, counted while the processes run."""

    orders: int
    declined: int
    arrived: int
    """Distinct deliveries, of orders or not."""
    again: int
    """Repeated deliveries."""
    under_way: int
    """Orders that are not delivered yet."""


def count(plan: Plan) -> Counts:
    """Count the tables now."""
    with closing(_open(plan)) as tables:
        return Counts(*tables.execute(_COUNTS).fetchone())


def _open(plan: Plan) -> sqlite3.Connection:
    connection = sqlite3.connect(plan.shop_file, timeout=30)
    connection.execute("attach ? as warehouse", (str(plan.warehouse_file),))
    return connection


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
