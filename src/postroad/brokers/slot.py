"""A destination to which another program carries the log, by a replication slot of the database: `slot://NAME`.

The relay publishes nothing to it. It follows the slot, so that `status`, `why`, retention and scheduled messages work
as with any other sink; `relay/following.py` has the rules.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from postroad.brokers.base import Durability
from postroad.brokers.registry import Broker
from postroad.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.message import StoredMessage

__all__ = ["BROKER", "SlotPublisher"]


class SlotPublisher:
    """Names the slot that the relay follows."""

    def __init__(self, url: str) -> None:
        self.slot = url.partition("://")[2]
        if not re.fullmatch("[a-z0-9_]{1,63}", self.slot):
            raise InvalidSetting(
                f"to is {url!r}; it must be slot://NAME, where NAME is that of a replication slot: up to 63 lower-case "
                "letters, digits and underscores"
            )
        self.name = self.destination = f"slot://{self.slot}"

    async def open(self) -> Durability:
        """There is nothing to connect to."""
        return Durability(f"carried by the program that reads the replication slot {self.slot!r}, which confirmed it")

    async def publish(self, messages: Sequence[StoredMessage]) -> NoReturn:
        """Is never called: a lane that follows a slot publishes nothing."""
        raise NotImplementedError(f"the messages of {self.name} are carried by another program")

    async def close(self) -> None:
        """There is nothing to close."""


BROKER = Broker(
    name="slot", title="a replication slot", url="slot://NAME", publisher=lambda url, settings: SlotPublisher(url)
)
