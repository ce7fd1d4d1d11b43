"""Payload stores for tests: one in memory, and one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from postroad import PayloadsUnavailable
from postroad.codecs import StoredPayload
from postroad.received import Unreadable

__all__ = ["Payloads"]


class Payloads:
    """A PayloadStore of an application's own: a dict. All of its objects are older than anything."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails = False
        """Whether the store is unavailable."""
        self.blocked: asyncio.Event | None = None
        """A put sets it, and never ends."""

    def __repr__(self) -> str:
        return "Payloads()"

    def put(self, path: str, payload: bytes) -> None:
        self._check()
        self.objects[path] = payload

    async def put_async(self, path: str, payload: bytes) -> None:
        if self.blocked is not None:
            self.blocked.set()
            await asyncio.Event().wait()
        self.put(path, payload)

    async def get(self, path: str, largest: int) -> bytes:
        self._check()
        if path not in self.objects:
            raise Unreadable(f"its payload, {path!r} in the test's store, is gone")
        return self.objects[path]

    async def delete(self, paths: Sequence[str]) -> None:
        self._check()
        for path in paths:
            self.objects.pop(path, None)

    async def older_than(self, age: timedelta) -> AsyncIterator[Sequence[StoredPayload]]:
        self._check()
        yield [StoredPayload(path, len(payload)) for path, payload in self.objects.items()]

    def _check(self) -> None:
        if self.fails:
            raise PayloadsUnavailable("the test's store is unavailable")
