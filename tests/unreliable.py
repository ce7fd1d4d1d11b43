"""A broker and a store that fail at random, for the property tests that run whole relays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from postroad import BrokerUnavailable, Refusal, StoredMessage, StoreUnavailable
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.retry import Backoff
from postroad.stores.base import ManyLanes, Store

AT_ONCE = Backoff(first=timedelta(0), max_attempts=3)


class UnreliableBroker(MemoryBroker):
    """Refuses messages and breaks off at random, until `mended`."""

    def __init__(self, random: Random, *, in_order: bool = False) -> None:
        super().__init__(in_order=in_order)
        self._random = random
        self.mended = False

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)
        if not self.mended:
            chance = self._random.random()
            if chance < 0.05:
                await super().publish(messages[: self._random.randrange(len(messages) + 1)])
                raise ZeroDivisionError
            if chance < 0.2:
                return await self._break_off(messages)
        return await super().publish(messages)

    async def _break_off(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        """Take some, and then tell only of some of those."""
        taken = messages[: self._random.randrange(len(messages) + 1)]
        before = len(self.messages)
        refusals = await super().publish(taken)
        arrived = {message.position for message in self.messages[before:]}
        heard_of = {message.position for message in taken[: self._random.randrange(len(taken) + 1)]}
        confirmed = heard_of & arrived
        suspicious = self._random.random() < 0.5
        logged = [refusal for refusal in refusals if refusal.position in heard_of]
        raise BrokerUnavailable("chance", confirmed=confirmed, refusals=logged, suspicious=suspicious)

    def _refusal_of(self, message: StoredMessage) -> Refusal | None:
        chance = 1.0 if self.mended else self._random.random()
        if chance < 0.15:
            return Refusal(message.position, "not now")
        if chance < 0.2:
            return Refusal(message.position, "never", permanent=True)
        if chance < 0.3:
            return Refusal(message.position, "no route", route=message.topic)
        return None


class UnreliableStore:
    """A store whose database fails at random: before it did what it was asked, or after, and the answer is lost."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random
        self.mended = False
        self.many = None if store.many is None else _UnreliableMany(self, store.many)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self.unreliably(method) if name in {"load", "read", "settle", "record", "claim"} else method

    def unreliably(self, method: Any) -> Any:
        """The same, but it may fail."""

        async def ask(*arguments: Any, **named: Any) -> Any:
            chance = 1.0 if self.mended else self._random.random()
            if chance < 0.03:
                raise StoreUnavailable("chance, before")
            answer = await method(*arguments, **named)
            if chance < 0.06:
                raise StoreUnavailable("chance, after")
            return answer

        return ask


class _UnreliableMany:
    """What the store does for several lanes fails in the same ways."""

    def __init__(self, store: UnreliableStore, many: ManyLanes) -> None:
        self.read = store.unreliably(many.read)
        self.settle = store.unreliably(many.settle)


def a_relay(store: Any, broker: MemoryBroker, random: Random, on_dead: str) -> Relay:
    options: dict[str, Any] = {
        "lanes": random.choice([2, 16]),  # the first relay decides; of 16, two relays have a convoy each
        "batch_size": random.choice([1, 3, 10]),
        "poll_interval": "1ms",
        "max_idle_backoff": "1ms",
        "outage_backoff": "1ms",
        "settle_interval": random.choice(["0", "2ms"]),
        "grace": "1ms",
        "on_dead": on_dead,
    }
    return Relay(store, broker, settings=RelaySettings(**options), retry=AT_ONCE)
