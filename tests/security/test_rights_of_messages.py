"""What an application may do to messages of another application: nothing, and not in silence."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from postroad import Cancellation, IdTaken, NotOwner, Outbox
from postroad.lifecycle import State
from postroad.message import new_id
from postroad.stores.base import Deferred
from postroad.stores.postgresql import PostgreSQLStore
from tests.lanes import take_lanes
from tests.logs import PLENTY, numbered
from tests.security.neighbours import Neighbours, Role

SHOP = Outbox(source="/shop")
BILLING = Outbox(source="/billing")


async def add(neighbours: Neighbours, role: Role, outbox: Outbox = SHOP, number: int = 1, **fields: Any) -> UUID:
    (message,) = numbered(number, **{"id": new_id()} | fields)
    async with neighbours.connected(role) as connection, connection.transaction():
        [id] = await outbox.add_many(connection, [message])
    return UUID(str(id))


async def cancel(neighbours: Neighbours, role: Role, id: UUID) -> Cancellation:
    async with neighbours.connected(role) as connection, connection.transaction():
        answer: Cancellation = await SHOP.cancel(connection, id)
        return answer


async def defer(neighbours: Neighbours) -> None:
    """Let a relay have the whole log refused."""
    store = PostgreSQLStore(neighbours.url("owner"))
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    page = await store.read(lane, lane.cursor, PLENTY)
    refused = [Deferred(each.position, each.key, State.RETRYING, attempts=1, due_in=3600) for each in page.messages]
    await store.record(lane, page.after, deferred=refused)
    await store.close()


# -- reading and canceling -------------------------------------------------------------------------------------------


async def test_an_application_cannot_read_ids(neighbours: Neighbours) -> None:
    async with neighbours.connected("billing") as connection:
        for columns, table in [
            ("id", "outbox"),
            ("position", "outbox"),
            ("id", "scheduled"),
            ("count(*)", "scheduled"),
        ]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"select {columns} from postroad.{table}")


async def test_an_application_cannot_add_in_the_name_of_another(neighbours: Neighbours) -> None:
    async with neighbours.connected("billing") as connection:
        for table, due, now in [("outbox", "", ""), ("scheduled", ", due_at", ", now()")]:
            insert = (
                f"insert into postroad.{table} (id, topic, slot, type, payload, content_type, headers%s{due}) "
                f"values (gen_random_uuid(), 't', 1, 't', '', '', '{{}}'%s{now}) returning %s"
            )
            await connection.execute(insert % ("", "", "true"))
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(insert % (", added_by", f", '{neighbours.name('shop')}'", "true"))
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(insert % ("", "", "id"))


async def test_an_application_cannot_cancel_anothers_message(neighbours: Neighbours) -> None:
    deferred = await add(neighbours, "shop")
    await defer(neighbours)
    for id in (deferred, await add(neighbours, "shop", deliver_in="1d")):
        async with neighbours.connected("billing") as connection, connection.transaction():
            with pytest.raises(NotOwner, match="added by another role"):
                await BILLING.cancel(connection, id)
            assert await connection.fetchval("select 1") == 1, "what else it wrote can be committed"
        assert await cancel(neighbours, "shop", id) is Cancellation.CANCELED


async def test_what_was_moved_into_the_log_belongs_to_the_role_that_added_it(neighbours: Neighbours) -> None:
    id = await add(neighbours, "shop", deliver_in="0")
    store = PostgreSQLStore(neighbours.url("owner"))
    await store.open()
    assert (await store.move_scheduled(10)).moved == 1
    await store.close()
    await defer(neighbours)
    with pytest.raises(NotOwner):
        await cancel(neighbours, "billing", id)
    assert await cancel(neighbours, "shop", id) is Cancellation.CANCELED


async def test_set_role_changes_nothing_about_who_added(neighbours: Neighbours) -> None:
    """A role that may become another one has the rights of both; what it adds is its own."""
    shop, billing = neighbours.name("shop"), neighbours.name("billing")
    neighbours.execute("postgres", f"grant {billing} to {shop}")
    async with neighbours.connected("shop") as connection, connection.transaction():
        await connection.execute(f"set role {billing}")
        id = await SHOP.add(connection, {"n": 1}, type="t", key="k", deliver_in="1d")
    with pytest.raises(NotOwner):
        await cancel(neighbours, "billing", id)
    assert await cancel(neighbours, "shop", id) is Cancellation.CANCELED


async def test_a_member_of_the_role_and_the_owner_may_cancel(neighbours: Neighbours) -> None:
    first = await add(neighbours, "shop", deliver_in="1d")
    second = await add(neighbours, "shop", number=2, deliver_in="1d")
    neighbours.execute("postgres", f"grant {neighbours.name('shop')} to {neighbours.name('billing')}")
    assert await cancel(neighbours, "billing", first) is Cancellation.CANCELED
    assert await cancel(neighbours, "owner", second) is Cancellation.CANCELED


async def test_every_cancel_is_in_the_audit_with_the_role_that_did_it(neighbours: Neighbours) -> None:
    id = await add(neighbours, "shop", deliver_in="1d")
    other = await add(neighbours, "shop", number=2)
    await defer(neighbours)
    for each in (id, other, other):  # canceling again changes nothing
        assert await cancel(neighbours, "shop", each) is Cancellation.CANCELED or each == other
    async with neighbours.connected("owner") as connection:
        lines = await connection.fetch("select who, command, arguments, changed from postroad.audit order by number")
    assert [(who, command, json.loads(arguments), n) for who, command, arguments, n in lines] == [
        (neighbours.name("shop"), "cancel", {"id": str(each)}, 1) for each in (id, other)
    ]


# -- ids that are taken ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [{}, {"deliver_in": "1d"}], ids=["now", "later"])
async def test_an_id_that_another_application_took_first_is_an_error(
    neighbours: Neighbours, later: dict[str, Any]
) -> None:
    """Also when the other one's message is the very same: it could cancel it."""
    id = uuid4()
    await add(neighbours, "billing", id=id, **later)
    with pytest.raises(IdTaken, match=f"{id} already; what differs: the role that added it"):
        await add(neighbours, "shop", id=id, **later)


async def test_an_id_that_was_taken_in_plain_sql_is_an_error(neighbours: Neighbours) -> None:
    id = uuid4()
    call = f"select postroad.add('%s', 't', '{{\"n\": %d}}', id => '{id}')"
    neighbours.execute("shop", call % ("/shop", 1))
    neighbours.execute("shop", call % ("/shop", 1))
    async with neighbours.connected("shop") as connection:
        with pytest.raises(asyncpg.PostgresError, match="what differs: payload"):
            await connection.execute(call % ("/shop", 2))
        with pytest.raises(asyncpg.PostgresError, match="what differs: source"):
            await connection.execute(call % ("/other", 1))


async def test_a_scheduled_message_whose_id_was_taken_is_not_dropped_in_silence(
    neighbours: Neighbours, caplog: pytest.LogCaptureFixture
) -> None:
    id = await add(neighbours, "shop", deliver_in="0")
    await add(neighbours, "billing", id=id, number=2)
    store = PostgreSQLStore(neighbours.url("owner"))
    await store.open()
    await store.move_scheduled(10)
    await store.close()
    assert f"the scheduled message {id} was due and was dropped" in caplog.text
