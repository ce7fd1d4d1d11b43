"""A destination that confirms everything and keeps nothing, to measure a relay by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.brokers.base import Durability
from postroad.brokers.registry import Broker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.errors import Refusal
    from postroad.message import StoredMessage

__all__ = ["BROKER", "NullPublisher"]


class NullPublisher:
    """Confirms at once."""

    name = "null://"
    destination = "null://"
    in_order = True

    async def open(self) -> Durability:
        """There is nothing to connect to."""
        return Durability("kept nowhere: the null broker stores nothing")

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Confirm all of them."""
        return ()

    async def close(self) -> None:
        """There is nothing to close."""


BROKER = Broker(name="null", title="the null broker", url="null://", publisher=lambda url, settings: NullPublisher())
