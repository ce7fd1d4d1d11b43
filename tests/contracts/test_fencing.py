"""The fence and the lease check, seen from outside: with them a relay that lost its lane harms nobody, and the history
checker passes; without them it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from postroad import Refusal, StoredMessage
from postroad.brokers.memory import MemoryBroker
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.relay.tenure import Tenure
from postroad.stores.postgresql import PostgreSQLStore
from postroad.verify import Arrival, Committed, Incident, Verdict, verify
from tests.logs import PostgreSQLLog, numbered
from tests.services.postgresql import PostgreSQL

FENCE = "and owner = $3 and epoch = $4 and version = $5"
NO_FENCE = "and $3::uuid is not null and $4::bigint is not null and $5::bigint is not null"


class Towards(MemoryBroker):
    """One relay's way to a destination that all share, and that remembers who sent what."""

    def __init__(self, arrived: list[Arrival], by: str) -> None:
        super().__init__()
        self._arrived = arrived
        self._by = by
        self.all_arrived = asyncio.Event()

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        refusals = await super().publish(messages)
        for message in messages:
            self._arrived.append(Arrival(int(message.payload), at=float(len(self._arrived)), by=self._by))
        if len(self.messages) >= 40:
            self.all_arrived.set()
        return refusals


async def history(log: PostgreSQLLog, first_store: PostgreSQLStore) -> Verdict:
    """A relay is stuck in its first page while its lease runs out; another carries everything; the first goes on."""
    arrived: list[Arrival] = []
    settings = RelaySettings(lanes=1, batch_size=10, lease="1h", poll_interval="1ms", max_idle_backoff="5ms")
    await log.add(*numbered(*range(40), key="k"))
    stuck = Towards(arrived, "A")
    stuck.hold()
    first = Relay(first_store, stuck, sink="s", settings=settings)
    running = asyncio.create_task(first.run())
    await asyncio.wait_for(stuck.asked.wait(), 30)
    await log.execute("update postroad.lanes set lease_until = now() - interval '1 s'")
    await log.execute("update postroad.relays set alive_until = now() - interval '1 s'")
    other = Towards(arrived, "B")
    second = Relay(log.another_store(), other, sink="s", settings=settings)
    carrying = asyncio.create_task(second.run())
    await asyncio.wait_for(other.all_arrived.wait(), 30)
    second.stop()
    await carrying
    under_way = len(arrived)
    stuck.release()
    await asyncio.wait({asyncio.create_task(stuck.all_arrived.wait())}, timeout=1)
    first.stop()
    await asyncio.wait_for(running, 30)
    rows = await log.execute("select convert_from(payload, 'utf8')::int, key, position from postroad.outbox")
    # Of the page that was under way, one wave was: the key's first message.
    lost = Incident("A lost its lease", began=0.0, ended=float(under_way), to="A")
    return verify([Committed(*row) for row in rows], arrived, [lost])


@pytest.fixture
async def log(postgresql15: PostgreSQL) -> PostgreSQLLog:
    return await PostgreSQLLog.fresh(postgresql15)


async def test_a_relay_that_lost_its_lane_sends_no_more_than_the_wave_under_way(log: PostgreSQLLog) -> None:
    verdict = await history(log, PostgreSQLStore(log.url))
    assert verdict.passed, str(verdict)
    assert [each.reason for each in verdict.duplicates] in ([], ["A lost its lease"])


async def test_without_fence_and_lease_check_the_history_checker_fails_it(
    log: PostgreSQLLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unaware(self: Any, *_: object) -> None:
        """It believes that the lane is its own."""

    monkeypatch.setattr(Tenure, "check", unaware)
    monkeypatch.setattr(Tenure, "lose", unaware)
    store = PostgreSQLStore(log.url)
    assert FENCE in store._sql["settle"]
    store._sql = {name: text.replace(FENCE, NO_FENCE) for name, text in store._sql.items()}
    verdict = await history(log, store)
    assert not verdict.passed
    assert verdict.unexplained, str(verdict)
