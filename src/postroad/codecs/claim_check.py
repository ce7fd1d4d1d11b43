"""The claim check: a large payload is stored elsewhere, and the message carries where (CloudEvents' `dataref`).

The rules, without which a committed message could be without its payload:

- **INSERT first, then put, in a savepoint.** A transaction that has put a payload has an id already, by which a sweep
  can wait for its end. When the put fails, the row is rolled back (`stores/connections/savepoint.py`).
- **A path is used once.** It has the message's id, for the sweep to look up, and a nonce: what an attempt that was
  rolled back has left behind can be deleted while the same message is added again.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from postroad.codecs.base import Codec, size_from
from postroad.codecs.payload_store import payload_store
from postroad.errors import InvalidMessage
from postroad.message import DATAREF
from postroad.received import Unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroad.codecs.base import About
    from postroad.codecs.payload_store import PayloadStore
    from postroad.kinds import Size

__all__ = ["ClaimCheck", "Put", "id_in", "put_all", "put_all_async"]

PUTS_AT_ONCE: Final = 8
_PATH: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})-[0-9a-f]{16}"
)


class Put(NamedTuple):
    """A payload that is to be stored after its message's row was written."""

    store: PayloadStore
    path: str
    payload: bytes


class ClaimCheck(Codec):
    """Stores payloads of more than `above` elsewhere."""

    header: str = DATAREF
    form: str = ""

    def __init__(self, store: Any, *, above: Size = "256KB", largest: Size = "64MB") -> None:
        """`store` is a URL such as "s3://bucket/payloads", a store of obstore, or a PayloadStore of your own. `largest`
        is the most that is stored, and that a consumer reads into memory.
        """
        self.store = payload_store(store)
        self._above = size_from("above", above)
        self._largest = size_from("largest", largest, least=1)

    def __repr__(self) -> str:
        return f"ClaimCheck({self.store!r}, above={self._above}, largest={self._largest})"

    def encode(self, payload: bytes, about: About) -> tuple[bytes, str] | None:
        """An empty payload, and where the real one is to be put."""
        if len(payload) <= self._above:
            return None
        if len(payload) > self._largest:
            raise InvalidMessage(
                f"the payload of this {about.type!r} has {len(payload):,} bytes, and ClaimCheck's largest is "
                f"{self._largest:,}; raise it, there and at the consumers"
            )
        return b"", f"{datetime.now(UTC):%Y-%m-%d}/{about.id}-{secrets.token_hex(8)}"

    async def decode(self, payload: bytes, value: str, about: About) -> bytes:
        """Read the payload. The path is checked: no message makes a consumer read other objects of the store."""
        if _PATH.fullmatch(value) is None:
            raise Unreadable(f"its header 'dataref' is {value!r:.80}; this is no payload that postroad has stored")
        return await self.store.get(value, self._largest)


def id_in(path: str) -> str | None:
    """The id of the message that a payload belongs to; None if postroad has not stored it."""
    matched = _PATH.fullmatch(path)
    return matched[1] if matched else None


def put_all(puts: Sequence[Put]) -> None:
    """Store these payloads. Raises PayloadsUnavailable."""
    for store, path, payload in puts:
        store.put(path, payload)


async def put_all_async(puts: Sequence[Put]) -> None:
    """Store these payloads, several at once. If one fails, none is being stored any more when this raises."""
    free = asyncio.Semaphore(PUTS_AT_ONCE)

    async def put(one: Put) -> None:
        async with free:
            await one.store.put_async(one.path, one.payload)

    if len(puts) == 1:
        await put(puts[0])
        return
    tasks = [asyncio.ensure_future(put(each)) for each in puts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
