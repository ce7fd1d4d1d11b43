"""A broker in memory, for tests: it keeps what it took, and fails when it is told to."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from postroad.errors import BrokerUnavailable, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroad.message import StoredMessage

__all__ = ["MemoryBroker"]


class MemoryBroker:
    """`messages` is what arrived, in order, duplicates and all."""

    name = "memory"

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self._refuse: Callable[[StoredMessage], str | None] = lambda _: None
        self._outages: deque[int] = deque()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.asked = asyncio.Event()
        """Set whenever somebody asks to publish."""

    def refuse(self, reason_for: Callable[[StoredMessage], str | None]) -> None:
        """Refuse every message that this function gives a reason for."""
        self._refuse = reason_for

    def fail_after(self, *confirmed: int) -> None:
        """Break the connection once for each number, after so many messages of a call were taken."""
        self._outages.extend(confirmed)

    def hold(self) -> None:
        """Let calls wait for their confirm until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Confirm again."""
        self._flowing.set()

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Take what is not refused, until an outage that was ordered."""
        self.asked.set()
        await self._flowing.wait()
        outage_after = self._outages.popleft() if self._outages else None
        refusals: list[Refusal] = []
        for count, message in enumerate(messages):
            if count == outage_after:
                confirmed = {each.position for each in messages[:count]} - {each.position for each in refusals}
                raise BrokerUnavailable("the memory broker was told to fail", confirmed=confirmed, refusals=refusals)
            if reason := self._refuse(message):
                refusals.append(Refusal(message.position, reason))
            else:
                self.messages.append(message)
        return refusals

    async def close(self) -> None:
        """What arrived stays."""
