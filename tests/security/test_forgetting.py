"""`postroad forget --key`, by an operator who can't read payloads: what is left of a person in all of our tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroad import Outbox
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.postgresql import PostgreSQLStore
from tests.logs import Arrivals, numbered
from tests.security.neighbours import Neighbours, postroad

ANN = "ann@example.com"
WHY = ("--reason", "request 7", "--yes")


async def everything(neighbours: Neighbours) -> str:
    """All rows of all tables, as text."""
    async with neighbours.connected("postgres") as connection:
        tables = await connection.fetch(
            "select oid::regclass::text from pg_class where relnamespace = 'postroad'::regnamespace and relkind = 'r'"
        )
        rows: list[Any] = []
        for (table,) in tables:
            rows += await connection.fetch(f"select row_to_json(t)::text from {table} t")
    return "\n".join(row[0] for row in rows)


@pytest.fixture
async def delivered(neighbours: Neighbours) -> Neighbours:
    """A message of Ann's was refused, and her key held by an operator; then all of it was delivered."""
    async with neighbours.connected("shop") as connection, connection.transaction():
        await Outbox(source="/shop").add_many(connection, numbered(1, 2, key=ANN, headers={"to": ANN}))
        await Outbox(source="/shop").add_many(connection, numbered(3, key="bob"))
    broker = Arrivals()
    broker.refuse(lambda message: f"no mailbox {ANN}" if message.payload == b"1" else None)
    operator = ("--database", neighbours.url("operator"))
    settings = RelaySettings(lanes=1, max_attempts=1)
    await Relay(PostgreSQLStore(neighbours.url("relay")), broker, settings=settings).run_until_empty()
    postroad("dead", "retry", *operator, "--reason", f"for {ANN}", "--yes", "--key", ANN)
    broker.refuse(lambda _: None)
    await Relay(PostgreSQLStore(neighbours.url("relay")), broker, settings=settings).run_until_empty()
    assert sorted(broker.numbers) == [1, 2, 3]
    postroad("key", "hold", ANN, *operator, "--reason", f"{ANN} has called")
    postroad("key", "release", ANN, *operator)
    return neighbours


async def test_nothing_of_the_key_is_left(delivered: Neighbours) -> None:
    assert ANN in await everything(delivered)
    output = postroad("forget", "--key", ANN, "--database", delivered.url("operator"), *WHY)
    assert "2" in output
    left = await everything(delivered)
    assert ANN not in left
    assert "bob" in left
    audit = json.loads(postroad("audit", "--database", delivered.url("operator"), "--json"))
    (line,) = [entry for entry in audit if entry["command"] == "forget"]
    assert (line["role"], line["changed"], line["reason"]) == (delivered.name("operator"), 2, "request 7")


async def test_no_other_role_can_forget(delivered: Neighbours) -> None:
    for role in ("reader", "relay", "shop", "stranger"):
        output = postroad("forget", "--key", ANN, "--database", delivered.url(role), *WHY, fails=True)
        assert "permission denied" in output
    assert ANN in await everything(delivered)
