"""Reporting blockers outlives every error of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from postroad import events
from postroad.errors import StoreUnavailable
from postroad.events import Event
from postroad.listeners import Listeners
from postroad.relay import blockers
from postroad.stores.base import Blocker
from postroad.stores.memory import MemoryStore


class Blocked(MemoryStore):
    """Fails with each of these errors, then names a session."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self._errors = list(errors)
        self._named = False

    async def blocked(self) -> Sequence[Blocker]:
        if self._errors:
            raise self._errors.pop(0)
        if not self._named:
            self._named = True
            return [Blocker(7, "shop", "", "active", transaction_seconds=2.0, query_seconds=2.0)]
        return await super().blocked()


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.blocked = asyncio.Event()

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, events.StoreBlocked):
            self.blocked.set()


async def test_an_error_that_is_not_postroads_own_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockers, "RETRY_SECONDS", 0.0)
    told = Told()
    store = Blocked(StoreUnavailable("gone"), RuntimeError("unexpected"), StoreUnavailable("gone"))
    async with asyncio.timeout(60), blockers.reporting_blockers(store, Listeners([told])):
        await told.blocked.wait()
    unknown, blocked = told.events
    assert unknown == events.BlockersUnknown(reason="RuntimeError('unexpected')", retry_ms=0.0)
    assert isinstance(blocked, events.StoreBlocked)
    assert blocked.pid == 7
