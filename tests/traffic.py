"""Numbers through a log: what is sent, and whether all of it arrived, and each key in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from postroad import Message
from postroad.message import UNSET
from tests.logs import OUTBOX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.logs import PostgreSQLLog

PER_TRANSACTION = 2_000


@dataclass
class Traffic:
    """The numbers from 1 to `count`, with so many keys in no regular order; one message in ten has none."""

    count: int
    keys: int

    def key_of(self, number: int) -> str | None:
        return f"key-{crc32(b'%d' % number) % self.keys}" if self.keys and number % 10 else None

    def messages(self, first: int, end: int) -> list[Message]:
        return [Message(str(n), type="test.number", key=self.key_of(n) or UNSET) for n in range(first, end)]

    async def add_to(self, log: PostgreSQLLog) -> None:
        """Commit them in many transactions, and roll back some more."""
        async with log.connected() as connection:
            for first in range(1, self.count + 1, PER_TRANSACTION):
                messages = self.messages(first, min(first + PER_TRANSACTION, self.count + 1))
                async with connection.transaction():
                    await OUTBOX.add_many(connection, messages)
        await log.add_and_roll_back(*self.messages(self.count + 1, self.count + 100))

    @asynccontextmanager
    async def growing(self, log: PostgreSQLLog) -> AsyncIterator[None]:
        """While the block runs, more come: some transactions in every tenth of a second, one of them in vain."""
        done = asyncio.Event()
        adding = asyncio.create_task(self._grow(log, done))
        try:
            yield
        finally:
            done.set()
            await adding

    async def _grow(self, log: PostgreSQLLog, done: asyncio.Event) -> None:
        async with log.connected() as connection:
            while not done.is_set():
                for size in (1, 5, 20):
                    async with connection.transaction():
                        await OUTBOX.add_many(connection, self.messages(self.count + 1, self.count + 1 + size))
                    self.count += size
                await log.add_and_roll_back(*self.messages(self.count + 1, self.count + 3))
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), 0.1)

    def check(self, arrived: Sequence[int]) -> Counter[int]:
        """Each number arrived, no other did, and each key's came in order, not counting what came before. How often
        each came again.
        """
        times = Counter(arrived)
        missing = [number for number in range(1, self.count + 1) if number not in times]
        assert not missing, f"{len(missing)} did not arrive, the first of them is {missing[0]}"
        assert len(times) == self.count, f"{max(times)} was never committed"
        latest: dict[str, int] = {}
        for number in dict.fromkeys(arrived):
            key = self.key_of(number)
            if key is not None:
                assert latest.get(key, 0) < number, f"{number} came after {latest[key]}, which has the same key"
                latest[key] = number
        assert len(latest) >= self.keys * 0.8
        return +Counter({number: count - 1 for number, count in times.items()})
