"""An application's open transaction stops no relay; and what does stop one is named in the log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from postroad import Cancellation, Outbox
from postroad.config import RelaySettings
from postroad.errors import Refusal
from postroad.relay import Relay
from postroad.stores.postgresql import PostgreSQLStore
from tests.contracts.test_wakeup import running, until, until_asleep
from tests.lanes import take_lanes
from tests.logs import Arrivals, numbered
from tests.security.neighbours import Neighbours

SHOP = Outbox(source="/shop")
ONE_LANE = RelaySettings(lanes=1)


class Refusing(Arrivals):
    """Refuses the messages of one key, and takes them once `takes` is true."""

    takes = False

    async def publish(self, messages: Any) -> Any:
        if not self.takes and any(message.key == "refused" for message in messages):
            refused = [Refusal(message.position, "no") for message in messages if message.key == "refused"]
            await super().publish([message for message in messages if message.key != "refused"])
            return refused
        return await super().publish(messages)


async def add(neighbours: Neighbours, *numbers: int, key: str = "k") -> list[Any]:
    async with neighbours.connected("shop") as connection, connection.transaction():
        return list(await SHOP.add_many(connection, numbered(*numbers, key=key)))


async def test_an_open_transaction_that_cancels_stops_no_relay(neighbours: Neighbours) -> None:
    broker = Refusing()
    relay = Relay(PostgreSQLStore(neighbours.url("owner")), broker, sink="s", settings=ONE_LANE)
    async with running(relay), neighbours.connected("shop") as hostile:
        await until_asleep(relay)  # what is in the log when a lane is loaded may have been published before
        [id] = await add(neighbours, 1, key="refused")
        await until(lambda: relay_has_deferred(neighbours))
        transaction = hostile.transaction()
        await transaction.start()

        async def is_canceled() -> bool:  # not while it is being tried again
            return await SHOP.cancel(hostile, id) is Cancellation.CANCELED

        await until(is_canceled)
        broker.takes = True
        await add(neighbours, 2, 3)
        await broker.until(2, 3)
        assert 1 not in broker.numbers
        await transaction.rollback()
        await broker.until(1)


async def relay_has_deferred(neighbours: Neighbours) -> bool:
    return neighbours.psql("owner", "select 1 from postroad.deferred").strip() == "1"


@pytest.mark.parametrize("statement", ["select from postroad.lanes for update", "lock table postroad.lanes"])
async def test_what_blocks_a_relay_is_named(
    neighbours: Neighbours, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Arrivals()
    store = PostgreSQLStore(neighbours.url("owner"))
    relay = Relay(store, broker, sink="s", settings=ONE_LANE)
    async with running(relay), neighbours.connected("postgres") as other:
        await add(neighbours, 1)
        await broker.until(1)
        await until_asleep(relay)
        async with other.transaction():
            await other.execute(statement)
            await add(neighbours, 2)
            wanted = f"is blocked by locks of another session: process {other.get_server_pid()} of role postgres"
            await until(lambda: wanted in caplog.text)
            blockers = await store.blockers(longer_than=timedelta(0))
            assert (other.get_server_pid(), "postgres") in {(blocker.pid, blocker.role) for blocker in blockers}
        await broker.until(2)


async def test_what_keeps_a_relay_from_taking_its_lanes_is_named(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for them, and would only say that it stands by."""
    first = PostgreSQLStore(neighbours.url("owner"))
    await first.open()
    await take_lanes(first, "s")
    await first.close()
    broker = Arrivals()
    async with neighbours.connected("postgres") as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from postroad.lanes for update")
        relay = Relay(PostgreSQLStore(neighbours.url("owner")), broker, sink="s", settings=ONE_LANE)
        async with running(relay):
            wanted = f"is blocked by locks of another session: process {other.get_server_pid()} of role postgres"
            await until(lambda: wanted in caplog.text)
            await transaction.rollback()
            await add(neighbours, 1)
            await broker.until(1)
