"""Writers that fill a log while something else happens: transactions small and large, some of them rolled back.

A key belongs to one writer, which commits one transaction after the other: so position order is causal order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from postroad import Message
from postroad.message import UNSET
from tests.logs import OUTBOX, connected

__all__ = ["Writers", "number"]

ROLLED_BACK = 0.2
WITH_KEY = 0.9


def number(number: int, key: Any) -> Message:
    """A message whose payload is its number."""
    return Message(str(number), type="test.number", key=key)


class Writers:
    """Tasks that add numbered messages until they are stopped, also through restarts of the database."""

    def __init__(
        self,
        url: str,
        seed: int,
        *,
        message: Callable[[int, Any], Message] = number,
        keys: int = 20,
        sizes: Sequence[int] = (1, 5, 30),
        per_statement: int = 1,
        pause: float = 0.1,
    ) -> None:
        """Each writer has so many `keys`; it waits up to `pause` seconds after a transaction."""
        self.rolled_back = 0
        self._url = url
        self._seed = seed
        self._message = message
        self._keys = keys
        self._sizes = sizes
        self._per_statement = per_statement
        self._pause = pause
        self._numbers = 0
        self._quiet = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, writers: int = 3) -> None:
        self._tasks += [asyncio.create_task(self._write(writer)) for writer in range(writers)]

    async def stop(self) -> None:
        """Let each end its transaction."""
        self._quiet.set()
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        self._quiet.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_committed(self, messages: int, seconds: float = 120) -> None:
        """Let them go on until so many messages are in the log."""
        async with asyncio.timeout(seconds), connected(self._url) as connection:
            count = "select count(*) from postroad.outbox"
            while await connection.fetchval(count) < messages:  # noqa: ASYNC110 - a restart may take some back
                await asyncio.sleep(0.2)

    async def _write(self, writer: int) -> None:
        dice = random.Random(self._seed * 1000 + writer)
        while not self._quiet.is_set():
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                connection = await asyncpg.connect(self._url, timeout=10)
                try:
                    while not self._quiet.is_set():
                        await self._write_some(connection, dice, writer)
                finally:
                    connection.terminate()
            await asyncio.sleep(0.05)

    async def _write_some(self, connection: Any, dice: random.Random, writer: int) -> None:
        transaction = connection.transaction()
        await transaction.start()
        messages = []
        for _ in range(dice.choice(self._sizes)):
            self._numbers += 1
            key = f"{writer}-{dice.randrange(self._keys)}" if dice.random() < WITH_KEY else UNSET
            messages.append(self._message(self._numbers, key))
        for first in range(0, len(messages), self._per_statement):
            await OUTBOX.add_many(connection, messages[first : first + self._per_statement])
        if dice.random() < ROLLED_BACK:
            self.rolled_back += 1
            await transaction.rollback()
        else:
            await transaction.commit()
        await asyncio.sleep(dice.random() * self._pause)
