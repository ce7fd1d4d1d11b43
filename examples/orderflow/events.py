"""What the services tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from postroad import event


@event("order.created.v1")
@dataclass
class OrderCreated:
    order: int
    email: str
    product: str
    quantity: int


@event("stock.reserved.v1")
@dataclass
class StockReserved:
    order: int
    email: str
    product: str


@event("stock.missing.v1")
@dataclass
class StockMissing:
    order: int
    email: str
    product: str
