"""Headers that only a hostile application writes, where keys belong to their source: others' messages go on."""

from __future__ import annotations

import pytest

from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.postgresql import PostgreSQLStore
from tests.logs import OUTBOX, Arrivals, numbered
from tests.security.neighbours import Neighbours

POISON = (
    "insert into postroad.outbox (id, topic, key, slot, type, payload, content_type, headers) "
    "values (gen_random_uuid(), 'poison', 'k', postroad.slot_of('k'), 'poison', '', 'text/plain', $1::text::json)"
)


@pytest.mark.parametrize("headers", ['{"source": 1}', '{"source": "a\\u0000"}', '{"source": {}}', "{}"])
async def test_a_source_that_is_no_text_ends_no_lane(neighbours: Neighbours, headers: str) -> None:
    async with neighbours.connected("billing") as hostile:
        await hostile.execute(POISON, headers)
    async with neighbours.connected("shop") as connection, connection.transaction():
        await OUTBOX.add_many(connection, numbered(1, 2, 3, key="k"))
    broker = Arrivals()
    broker.refuse(lambda message: "no" if message.topic == "poison" else None)
    settings = RelaySettings(lanes=1, ordering="source-key", max_attempts=1)
    for _ in range(2):  # the second one loads what the first one has deferred
        store = PostgreSQLStore(neighbours.url("relay"))
        await Relay(store, broker, settings=settings).run_until_empty()
    assert broker.numbers == [1, 2, 3]
