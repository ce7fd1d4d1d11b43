"""The audit: compares what the shop's tables say with what the warehouse's table says, and believes nobody else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


def read_books(plan: Plan) -> Books:
    """Read the tables, when all processes have ended."""
    with closing(_open(plan.shop_file)) as shop, closing(_open(plan.warehouse_file)) as warehouse:
        return Books(
            orders=[Entry(*row) for row in shop.execute("select number, customer from orders order by number")],
            declined=_number(shop, "select count(*) from declined"),
            logged=None if plan.sabotage else _number(shop, "select count(*) from postroad_outbox"),
            deliveries=[Entry(*row) for row in warehouse.execute("select number, customer from deliveries order by arrival")],
        )


class Counts(NamedTuple):
    """The same tables, counted while the processes are at work."""

    orders: int
    declined: int
    arrived: int
    """Different orders that arrived."""
    again: int

    @property
    def waiting(self) -> int:
        """Committed and not delivered yet."""
        return max(0, self.orders - self.arrived)


def count(plan: Plan) -> Counts:
    """Have a look."""
    with closing(_open(plan.shop_file)) as shop, closing(_open(plan.warehouse_file)) as warehouse:
        deliveries, arrived = warehouse.execute("select count(*), count(distinct number) from deliveries").fetchone()
        return Counts(
            orders=_number(shop, "select count(*) from orders"),
            declined=_number(shop, "select count(*) from declined"),
            arrived=arrived,
            again=deliveries - arrived,
        )


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=30)


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
