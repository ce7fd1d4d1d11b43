"""What an application may do to the inbox of another application's consumer: nothing."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from postroad import Consumer, Inbox, NotOwner
from postroad.brokers.memory import MemoryQueue
from postroad.stores.grants import grants_script
from tests.places import asyncpg_transactions
from tests.security.neighbours import Neighbours, Role

INBOX = Inbox()

CALLS = {
    "open_inbox": "('invoices')",
    "first_time": "('1s', 'invoices', 'i', 't')",
    "first_times": "('1s', 'invoices', '{i}', '{t}')",
    "undo_first_times": "('3', 'invoices', '{i}')",
    "begin_attempt": "('1s', 'invoices', 'i', 't', 'crashed')",
    "end_attempt": "('invoices', 'i')",
    "fail_attempt": "('1s', 'invoices', 'i', 't', 'error')",
    "note_dead": "('1s', 'invoices', 'i', 't', 'error')",
    "forget_processed": "('invoices', '0', 1000)",
    "forget_attempts": "('invoices', '0', 1000)",
    "consumer_heartbeat": f"('invoices', '{UUID(int=1)}', 'host', 1, '1', 'source', '20 s', 1, 1, 1, 1)",
    "consumer_ended": f"('invoices', '{UUID(int=1)}')",
    "forget_consumers": "('invoices', '7 days')",
}


NAMES = [("consumer_names", "name"), ("consumers", "consumer")]


async def first_time(neighbours: Neighbours, role: Role, id: str = "i", *, consumer: str = "invoices") -> bool:
    async with neighbours.connected(role) as connection, connection.transaction():
        return bool(await INBOX.first_time(connection, id, consumer=consumer))


async def test_a_name_belongs_to_the_role_that_first_used_it(neighbours: Neighbours) -> None:
    assert await first_time(neighbours, "billing")
    assert not await first_time(neighbours, "billing")
    shop, billing = neighbours.name("shop"), neighbours.name("billing")
    with pytest.raises(NotOwner) as refused:
        await first_time(neighbours, "shop", "other")
    assert str(refused.value) == (
        f'consumer "invoices" belongs to the role "{billing}", and this session\'s role is "{shop}". '
        f'Use another name or the role "{billing}"; or let an operator give the name to this role: '
        f"select postroad.give_consumer('invoices', '{shop}')"
    )
    assert await first_time(neighbours, "shop", consumer="parcels")
    assert await first_time(neighbours, "billing", "other"), "what was refused has left no row"


async def test_no_function_touches_anothers_consumer(neighbours: Neighbours) -> None:
    assert await first_time(neighbours, "billing")
    async with neighbours.connected("shop") as shop, neighbours.connected("billing") as billing:
        for function, arguments in CALLS.items():
            with pytest.raises(asyncpg.PostgresError, match='belongs to the role "billing') as refused:
                await shop.fetch(f"select * from postroad.{function}{arguments}")
            assert refused.value.sqlstate == "PR403", function
            await billing.fetch(f"select * from postroad.{function}{arguments}")


async def test_the_tables_are_not_to_be_touched_directly(neighbours: Neighbours) -> None:
    async with neighbours.connected("billing") as connection:
        for table, column in [("inbox", "consumer"), ("inbox_attempts", "consumer"), *NAMES]:
            for statement in (
                f"select from postroad.{table}",
                f"delete from postroad.{table}",
                f"insert into postroad.{table} default values",
                f"update postroad.{table} set {column} = 'mine'",
                f"truncate postroad.{table}",
                f"lock table postroad.{table} in access share mode",
                f"lock table postroad.{table} in access exclusive mode",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with connection.transaction():
                        await connection.execute(statement)


async def test_rights_that_earlier_grants_gave_are_taken_back(neighbours: Neighbours) -> None:
    billing = neighbours.name("billing")
    neighbours.execute(
        "owner",
        f"grant select, insert (consumer, id, type), delete on postroad.inbox to {billing};"
        f"grant select, insert, update, delete on postroad.inbox_attempts to {billing};"
        f"grant select (id) on postroad.outbox, postroad.scheduled to {billing}",
    )
    neighbours.execute("owner", grants_script(billing))
    async with neighbours.connected("billing") as connection:
        for table in ("inbox", "inbox_attempts", "outbox", "scheduled"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"select id from postroad.{table}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("insert into postroad.inbox (consumer, id, type) values ('c', 'i', 't')")


async def test_an_application_cannot_give_a_name_away(neighbours: Neighbours) -> None:
    async with neighbours.connected("shop") as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("select postroad.give_consumer('invoices', $1)", neighbours.name("shop"))


async def test_an_operator_gives_a_name_to_another_role(neighbours: Neighbours) -> None:
    assert await first_time(neighbours, "shop")
    neighbours.execute("owner", f"select postroad.give_consumer('invoices', '{neighbours.name('billing')}')")
    assert not await first_time(neighbours, "billing"), "what was noted under the name goes with it"
    with pytest.raises(NotOwner):
        await first_time(neighbours, "shop", "other")
    assert "give_consumer" in neighbours.execute("owner", "select command from postroad.audit")


async def test_a_consumer_whose_name_is_anothers_does_not_start(neighbours: Neighbours) -> None:
    assert await first_time(neighbours, "shop")
    consumer = Consumer(MemoryQueue(), name="invoices", begin=asyncpg_transactions(neighbours.url("billing"))[0])

    @consumer.on(dict, type="t")
    async def handle(event: dict[str, Any], tx: Any, message: Any) -> None: ...

    with pytest.raises(NotOwner, match='"invoices" belongs to'):
        await consumer.run_until_empty()


HEARTBEAT = "select postroad.consumer_heartbeat($1, $2, 'host', 1, '1', 'source', interval '20 s', $3, 0, 0, 0)"


async def test_a_consumers_row_is_changed_by_its_own_role_alone(neighbours: Neighbours) -> None:
    instance = UUID(int=1)
    async with neighbours.connected("billing") as billing, neighbours.connected("shop") as shop:
        await billing.execute(HEARTBEAT, "invoices", instance, 1)
        await shop.execute(HEARTBEAT, "parcels", instance, 99)
        await shop.execute("select postroad.consumer_ended('parcels', $1)", instance)
        await shop.execute("select postroad.forget_consumers('parcels', interval '-1 year')")
    assert neighbours.execute("owner", "select consumer, handled from postroad.consumers").strip() == "invoices|1"


async def test_no_consumer_is_alive_for_ever(neighbours: Neighbours) -> None:
    async with neighbours.connected("billing") as billing:
        await billing.execute(HEARTBEAT.replace("20 s", "20 years"), "invoices", UUID(int=1), 1)
    alive = "select alive_until < now() + interval '61 minutes' from postroad.consumers"
    assert neighbours.execute("owner", alive).strip() == "t"
