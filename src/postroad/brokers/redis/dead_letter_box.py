"""The dead letters of a consumer at Redis: entries of their stream, moved back by a script in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from postroad.brokers.redis.connection import LinkLost
from postroad.brokers.redis.entries import CONTENT_TYPE, DATA
from postroad.brokers.redis.scripts import MOST_ARGUMENTS, RETRY
from postroad.dead_letters import DeadLetter
from postroad.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from postroad.brokers.redis.address import Address
    from postroad.brokers.redis.connection import Connection

__all__ = ["RedisDeadLetters"]

AT_ONCE: Final = 100


class RedisDeadLetters:
    """See `DeadLetterBox` for the contract."""

    def __init__(self, address: Address, stream: str, *, seconds: float) -> None:
        self.name = f"{address.name} stream {stream}"
        self._address = address
        self._stream = stream
        self._seconds = seconds
        self._connection: Connection | None = None

    async def open(self) -> None:
        try:
            self._connection = await self._address.connect()
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    async def letters(self) -> AsyncIterator[DeadLetter]:
        after = "-"
        while True:
            page = await self._ask("XRANGE", self._stream, after, "+", "COUNT", AT_ONCE)
            for id, fields in page:
                yield self._letter(id.decode(), fields)
            if len(page) < AT_ONCE:
                return
            after = f"({page[-1][0].decode()}"

    async def retry(self, letter: DeadLetter) -> None:
        stream = letter.headers.get("postroad-stream")
        if not stream:
            raise BrokerUnavailable(
                f"{self.name}: the letter {letter.original} has no field postroad-stream, so its stream is not known",
                suspicious=False,
            )
        for id, fields in await self._ask("XRANGE", self._stream, letter.original, letter.original):
            if len(fields) <= MOST_ARGUMENTS:
                await self._ask("EVAL", RETRY, 2, self._stream, stream, id)
            else:  # no script can pass so many on
                await self._ask("XADD", stream, "*", *fields)
                await self._ask("XDEL", self._stream, id)

    async def drop(self, letter: DeadLetter) -> None:
        await self._ask("XDEL", self._stream, letter.original)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _ask(self, *command: str | int | bytes) -> Any:
        if self._connection is None:
            raise BrokerUnavailable(f"{self.name}: it is not open")
        try:
            return await self._connection.ask(*command, seconds=self._seconds)
        except LinkLost as lost:
            raise self._unavailable(lost) from lost

    def _letter(self, id: str, fields: Sequence[bytes]) -> DeadLetter:
        names = [name.decode(errors="replace") for name in fields[::2]]
        values = dict(zip(names, fields[1::2], strict=True))
        body = values.pop(DATA, b"")
        headers = {name: value.decode(errors="replace") for name, value in values.items()}
        return DeadLetter(
            place=f"stream {self._stream}, entry {id}",
            body=body,
            content_type=headers.get(CONTENT_TYPE, ""),
            headers=headers,
            original=id,
        )

    def _unavailable(self, lost: LinkLost) -> BrokerUnavailable:
        return lost.outage(f"{self.name}: {lost}", suspicious=False)
