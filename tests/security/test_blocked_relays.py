"""An application's open transaction stops no relay; and what does stop one is named in the log."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from postroad import Cancellation, Outbox
from postroad.config import RelaySettings
from postroad.errors import Refusal
from postroad.relay import Relay
from postroad.stores.postgresql import PostgreSQLStore
from tests.contracts.test_wakeup import running, until, until_asleep
from tests.lanes import take_lanes
from tests.logs import Arrivals, numbered
from tests.security.neighbours import Neighbours, Role

SHOP = Outbox(source="/shop")
BILLING = Outbox(source="/billing")
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
    return neighbours.execute("owner", "select 1 from postroad.deferred").strip() == "1"


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


async def test_an_open_transaction_that_has_taken_an_id_stops_no_scheduling(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    """To learn whether an id is in the log, an INSERT waits for every transaction that has written the id."""
    id = uuid4()
    broker = Arrivals()
    relay = Relay(PostgreSQLStore(neighbours.url("relay")), broker, sink="s", settings=ONE_LANE)
    async with running(relay), neighbours.connected("billing") as hostile:
        await until_asleep(relay)
        transaction = hostile.transaction()
        await transaction.start()
        await BILLING.add_many(hostile, numbered(1, id=id))
        async with neighbours.connected("billing") as second, second.transaction():
            await BILLING.add_many(second, numbered(1, id=id, deliver_in="0s"))
        async with neighbours.connected("shop") as connection, connection.transaction():
            await SHOP.add_many(connection, numbered(2, 3, deliver_in="0s"))
        await broker.until(2, 3)
        assert 1 not in broker.numbers
        await until(lambda: f"process {hostile.get_server_pid()} of role {neighbours.name('billing')}" in caplog.text)
        await transaction.rollback()
        await broker.until(1)


@pytest.mark.parametrize("role", ["operator", "reader"])
async def test_doctor_names_what_blocks_the_relay_of_another_role(neighbours: Neighbours, role: Role) -> None:
    command = ("doctor", "--database", neighbours.url(role))
    relay = Relay(PostgreSQLStore(neighbours.url("relay")), Arrivals(), sink="s", settings=ONE_LANE)
    async with running(relay), neighbours.connected("postgres") as other:
        await until_asleep(relay)
        async with neighbours.connected("stranger", server_settings={"application_name": "postroad"}) as squatter:
            await squatter.execute("select pg_advisory_lock(1)")  # which is no business of ours
            assert await says("no other session", *command, "--all")
        async with other.transaction():
            await other.execute("lock table postroad.lanes")
            await add(neighbours, 1)
            wanted = f"process {other.get_server_pid()} of role postgres"
            await until(lambda: says(wanted, *command))
            findings = json.loads(await ran(*command, "--json"))["findings"]
            found = [each["evidence"] for each in findings if each["check"] == "locks"]
            assert [(each["pid"], each["role"], each["query_seconds"]) for each in found] == [
                (other.get_server_pid(), "postgres", None)
            ]
            neighbours.execute("postgres", f"grant pg_read_all_stats to {neighbours.name(role)}")
            output = " ".join((await ran(*command)).split())
            assert re.search(rf"{wanted}, idle in transaction, transaction \d+ s old, query \d+ s", output)
        await until(lambda: says("no other session", *command, "--all"))


async def says(text: str, *command: str) -> bool:
    return text in await ran(*command)


async def ran(*command: str) -> str:
    """What a command prints, whether it fails or not."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "postroad", *command, stdout=subprocess.PIPE)
    return (await process.communicate())[0].decode()
