"""The fence, seen from outside: with it, a relay that lost its lane does no harm, whatever it believes, and the history
checker passes it; without it, the history checker fails it.
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
from postroad.relay.owned_lane import OwnedLane
from postroad.relay.ownership import LaneOwnership
from postroad.stores.postgresql import PostgreSQLStore
from postroad.verify import Arrival, Committed, Incident, Verdict, verify
from tests.logs import PostgreSQLLog, log_fixture, numbered

FENCE = "and owner = $3 and epoch = $4 and version = $5"
NO_FENCE = "and $3::uuid is not null and $4::bigint is not null and $5::bigint is not null"

MESSAGES = 10


class Towards(MemoryBroker):
    """One relay's way to a destination that all share, and that remembers who sent what."""

    def __init__(self, arrived: list[Arrival], by: str) -> None:
        super().__init__()
        self._arrived = arrived
        self._by = by

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        refusals = await super().publish(messages)
        for message in messages:
            self._arrived.append(Arrival(int(message.payload), at=float(len(self._arrived)), by=self._by))
        return refusals


async def history(log: PostgreSQLLog, first_store: PostgreSQLStore) -> Verdict:
    """A relay is stuck in its first page while its lease runs out; another delivers everything; the first goes on."""
    arrived: list[Arrival] = []
    settings = RelaySettings(lanes=1, batch_size=1, lease="1h", settle_interval="0s")
    await log.add(*numbered(*range(MESSAGES), key="k"))
    stuck = Towards(arrived, "A")
    stuck.hold()
    running = asyncio.create_task(Relay(first_store, stuck, sink="s", settings=settings).run_until_empty())
    await asyncio.wait_for(stuck.asked.wait(), 60)
    await log.execute("update postroad.lanes set lease_until = now() - interval '1 s'")
    await log.execute("update postroad.relays set alive_until = now() - interval '1 s'")
    await Relay(log.another_store(), Towards(arrived, "B"), sink="s", settings=settings).run_until_empty()
    assert len(arrived) == MESSAGES
    stuck.release()
    await asyncio.wait_for(running, 60)
    rows = await log.execute("select convert_from(payload, 'utf8')::int, key, position from postroad.outbox")
    # What A had under way, one message, comes right behind all that B has sent.
    lost = Incident("A lost its lease", began=0.0, ended=float(MESSAGES), to="A")
    return verify([Committed(*row) for row in rows], arrived, [lost])


log = log_fixture("postgresql15")


@pytest.fixture
def unaware(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay believes that its lanes are its own until one of its writes fails."""

    def believe(self: Any, *_: object) -> None:
        pass

    monkeypatch.setattr(OwnedLane, "check", believe)
    monkeypatch.setattr(LaneOwnership, "_update_lanes", believe)


async def test_a_relay_that_lost_its_lane_sends_no_more_than_what_was_under_way(log: PostgreSQLLog) -> None:
    verdict = await history(log, PostgreSQLStore(log.url))
    assert verdict.passed, str(verdict)
    assert [each.reason for each in verdict.duplicates] == ["A lost its lease"]


@pytest.mark.usefixtures("unaware")
async def test_the_fence_alone_is_enough(log: PostgreSQLLog) -> None:
    verdict = await history(log, PostgreSQLStore(log.url))
    assert verdict.passed, str(verdict)
    assert [each.reason for each in verdict.duplicates] == ["A lost its lease"]


@pytest.mark.usefixtures("unaware")
async def test_without_the_fence_the_history_checker_fails_it(log: PostgreSQLLog) -> None:
    store = PostgreSQLStore(log.url)
    assert FENCE in store._sql["settle"]
    store._sql = {name: text.replace(FENCE, NO_FENCE) for name, text in store._sql.items()}
    verdict = await history(log, store)
    assert not verdict.passed
    assert verdict.unexplained, str(verdict)
