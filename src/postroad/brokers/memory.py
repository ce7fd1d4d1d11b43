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
        self._refuse: Callable[[StoredMessage], str | Refusal | None] = lambda _: None
        self._unbound: set[str] = set()
        self._outages: deque[int] = deque()
        self._out = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.asked = asyncio.Event()
        """Set whenever somebody asks to publish."""

    def refuse(self, reason_for: Callable[[StoredMessage], str | Refusal | None]) -> None:
        """Refuse every message that this function gives a reason for, or a whole Refusal."""
        self._refuse = reason_for

    def unbind(self, topic: str) -> None:
        """Nobody takes messages of this topic any more: they are refused, and it is not their fault."""
        self._unbound.add(topic)

    def bind(self, topic: str) -> None:
        """Take messages of this topic again."""
        self._unbound.discard(topic)

    def fail_after(self, *confirmed: int) -> None:
        """Break the connection once for each number, after so many messages of a call were taken."""
        self._outages.extend(confirmed)

    def go_out(self) -> None:
        """Can't be asked until `come_back`."""
        self._out = True

    def come_back(self) -> None:
        """Can be asked again."""
        self._out = False

    def hold(self) -> None:
        """Let calls wait for their confirm until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Confirm again."""
        self._flowing.set()

    async def open(self) -> None:
        """Fails while the broker is out."""
        if self._out:
            raise BrokerUnavailable("the memory broker is out")

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Take what is not refused, until an outage that was ordered."""
        self.asked.set()
        await self._flowing.wait()
        await self.open()
        outage_after = self._outages.popleft() if self._outages else None
        refusals: list[Refusal] = []
        for count, message in enumerate(messages):
            if count == outage_after:
                confirmed = {each.position for each in messages[:count]} - {each.position for each in refusals}
                raise BrokerUnavailable("the memory broker was told to fail", confirmed=confirmed, refusals=refusals)
            refusal = self._refusal_of(message)
            if refusal is None:
                self.messages.append(message)
            else:
                refusals.append(refusal)
        return refusals

    def _refusal_of(self, message: StoredMessage) -> Refusal | None:
        if message.topic in self._unbound:
            return Refusal(message.position, f"nobody takes {message.topic!r}", route=message.topic)
        reason = self._refuse(message)
        return Refusal(message.position, reason) if isinstance(reason, str) else reason

    async def close(self) -> None:
        """What arrived stays."""
