"""The plan that all processes of the demo share: the same plan makes the same orders, also after a kill."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

from postroad.message import event

__all__ = ["LANES", "OrderPlaced", "Plan"]

CUSTOMERS = 32
LANES = 4
ONE_IN = 5
"""One order in so many is rolled back."""
SLOWEST_HANDLING = 0.1
LONGEST_DRAIN = 4.5


@event("order.placed.v1")
class OrderPlaced(msgspec.Struct, frozen=True):
    """The event that the warehouse receives."""

    order: int
    customer: str


class Plan(msgspec.Struct, frozen=True):
    """A run of the demo."""

    directory: str
    orders: int
    """How many orders customers try to place."""
    seed: int
    sabotage: bool

    @property
    def shop_file(self) -> Path:
        """The shop's database: its own tables and the log."""
        return Path(self.directory, "shop.sqlite")

    @property
    def warehouse_file(self) -> Path:
        """The warehouse's database: what arrived."""
        return Path(self.directory, "warehouse.sqlite")

    @property
    def expected(self) -> int:
        """How many of the orders will be committed."""
        return sum(not self.is_declined(number) for number in range(1, self.orders + 1))

    def order(self, number: int) -> OrderPlaced:
        return OrderPlaced(number, f"customer-{self._random('customer', number).randint(1, CUSTOMERS)}")

    def is_declined(self, number: int) -> bool:
        """Of each five orders in a row one is rolled back; chance says which."""
        block, place = divmod(number - 1, ONE_IN)
        return self._random("declined", block).randrange(ONE_IN) == place

    # The shop is twice as fast as the warehouse, so that the relay always has messages in flight when it is killed;
    # and the demo takes a few seconds, however many orders there are.

    @property
    def handling_seconds(self) -> float:
        """How long the warehouse is busy with one order. Each lane hands it one at a time."""
        return min(SLOWEST_HANDLING, LONGEST_DRAIN * LANES / (self.orders * (1 - 1 / ONE_IN)))

    @property
    def pause_seconds(self) -> float:
        """How long it takes until the next customer comes."""
        return self.handling_seconds * (1 - 1 / ONE_IN) / LANES / 2

    def _random(self, what: str, number: int) -> Random:
        return Random(f"{self.seed}/{what}/{number}")  # noqa: S311 - a story, not a secret
