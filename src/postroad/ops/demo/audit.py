"""The audit: compares what the shop's tables say with what the warehouse's table says, and believes nobody else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.ops.demo.plan import Plan

__all__ = ["Audit", "Books", "Counts", "Entry", "audit", "count", "read_books"]


class Entry(NamedTuple):
    """An order as it stands in a table."""

    number: int
    customer: str


class Books(msgspec.Struct, frozen=True):
    """The tables as they are."""

    orders: Sequence[Entry]
    """What was committed."""
    declined: int
    """How many were rolled back."""
    logged: int | None
    """How many messages are in the log; None when there is none."""
    deliveries: Sequence[Entry]
    """Every call of the warehouse's handler, as they came."""


class Audit(msgspec.Struct, frozen=True):
    """What the books say together."""

    orders: int
    declined: int
    logged: int | None
    deliveries: int
    lost: int
    """Orders that never arrived."""
    phantoms: int
    """What arrived and is no order."""
    duplicates: int
    """How often something arrived again."""
    customers: int
    disordered: int
    """Customers whose orders did not arrive, for the first time each, in the order they were placed in."""

    @property
    def passed(self) -> bool:
        """Duplicates are allowed: the promise is at least once."""
        nothing_wrong = not (self.lost or self.phantoms or self.disordered)
        return nothing_wrong and self.orders > 0 and self.logged in (None, self.orders)


def audit(books: Books) -> Audit:
    """Compare the books. Pure."""
    ordered = {order.number for order in books.orders}
    first_arrivals = list(dict.fromkeys(books.deliveries))
    arrived = {delivery.number for delivery in first_arrivals}
    return Audit(
        orders=len(ordered),
        declined=books.declined,
        logged=books.logged,
        deliveries=len(books.deliveries),
        lost=len(ordered - arrived),
        phantoms=len(arrived - ordered),
        duplicates=len(books.deliveries) - len(first_arrivals),
        customers=len({order.customer for order in books.orders}),
        disordered=_disordered(first_arrivals),
    )


def _disordered(first_arrivals: Sequence[Entry]) -> int:
    newest: dict[str, int] = {}
    disordered = set()
    for number, customer in first_arrivals:  # an order's number tells when it was placed
        if number < newest.get(customer, 0):
            disordered.add(customer)
        newest[customer] = max(number, newest.get(customer, 0))
    return len(disordered)


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
    """Read the tables, when all processes have ended."""
    with closing(_open(plan)) as tables:
        return Books(
            orders=[Entry(*row) for row in tables.execute(_ORDERS)],
            declined=_number(tables, "select count(*) from declined"),
            logged=None if plan.sabotage else _number(tables, "select count(*) from postroad_outbox"),
            deliveries=[Entry(*row) for row in tables.execute(_DELIVERIES)],
        )


class Counts(NamedTuple):
    """The same tables, counted while the processes are at work."""

    orders: int
    declined: int
    arrived: int
    """How much arrived, orders or not."""
    again: int
    """How often something arrived again."""
    under_way: int
    """Orders that did not arrive yet."""


def count(plan: Plan) -> Counts:
    """Have a look."""
    with closing(_open(plan)) as tables:
        return Counts(*tables.execute(_COUNTS).fetchone())


def _open(plan: Plan) -> sqlite3.Connection:
    connection = sqlite3.connect(plan.shop_file, timeout=30)
    connection.execute("attach ? as warehouse", (str(plan.warehouse_file),))
    return connection


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
