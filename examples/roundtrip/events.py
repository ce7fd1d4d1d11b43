"""What the two services tell each other: their whole contract."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class OrderPlaced:
    order: int
    customer: str


@dataclass
class OrderShipped:
    order: int
    customer: str
    parcel: int
