"""One application's messages that no queue takes: what another application's messages have to suffer from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from postroad import Outbox, Refusal, StoredMessage
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.base import PROBES_PER_SECOND
from postroad.stores.postgresql import PostgreSQLStore
from tests.contracts.test_wakeup import running
from tests.logs import Arrivals, numbered
from tests.security.neighbours import Neighbours, Role

SHOP = Outbox(source="/shop")
BILLING = Outbox(source="/billing")
FLOOD = """
    insert into postroad.outbox (id, topic, key, slot, type, payload, content_type, headers)
    select gen_random_uuid(), 'lost.' || n, 'k' || n, postroad.slot_of('k' || n), 't', '0', 'text/plain',
           '{"source": "/billing"}'
      from generate_series(1, 3000) n"""


class Lost(Arrivals):
    """No queue takes a topic that begins with `lost`."""

    tried = 0

    async def publish(self, messages: Sequence[StoredMessage]) -> Sequence[Refusal]:
        lost = [each for each in messages if each.topic.startswith("lost")]
        self.tried += len(lost)
        await super().publish([each for each in messages if each not in lost])
        return [Refusal(each.position, "no queue", route=each.topic, unroutable=True) for each in lost]


async def add(neighbours: Neighbours, role: Role, outbox: Outbox, number: int, **fields: Any) -> None:
    async with neighbours.connected(role) as connection, connection.transaction():
        await outbox.add_many(connection, numbered(number, **fields))


@pytest.mark.parametrize("setting", [{"route_timeout": "1s"}, {"ordering": "source-key"}])
async def test_an_unroutable_message_does_not_hold_another_applications_key(
    neighbours: Neighbours, setting: dict[str, Any]
) -> None:
    await add(neighbours, "billing", BILLING, 1, key="k", topic="lost")
    await add(neighbours, "shop", SHOP, 2, key="k", topic="found")
    broker = Lost()
    settings = RelaySettings(lanes=1, **setting)
    async with running(Relay(PostgreSQLStore(neighbours.url("relay")), broker, settings=settings)):
        await broker.until(2)
    assert broker.numbers == [2]


async def test_very_many_unroutable_topics_cost_a_bounded_number_of_probes_and_lines(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "postroad.relay")
    neighbours.execute("billing", FLOOD)
    await add(neighbours, "shop", SHOP, 1, key="of the shop", topic="found")
    broker = Lost()
    store = PostgreSQLStore(neighbours.url("relay"))
    await Relay(store, broker, settings=RelaySettings(lanes=1)).run_until_empty()
    assert broker.numbers == [1]
    assert broker.tried < 2 * 3000, "each was tried once, and few of them again"
    due = "select count(*) from postroad.deferred where due_at < now() + interval '5 s'"
    assert int(neighbours.execute("owner", due)) <= 6 * PROBES_PER_SECOND
    assert sum("lost." in line for line in caplog.messages) <= 10
