"""Each role can do what it is for with the printed grants, and nothing else."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Final

import asyncpg
import pytest

from postroad import Inbox
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.grants import GRANTS, grants_script
from postroad.stores.postgresql import PostgreSQLStore
from tests.contracts.test_wakeup import running, until, until_asleep
from tests.logs import OUTBOX, Arrivals, numbered
from tests.security.neighbours import Neighbours, Role, postroad
from tests.services.postgresql import PostgreSQL

SECONDS: Final = 90
OWNERS_ALONE: Final = {"acts_as", "refuse_row", "wake_naps", "wake_scheduled"}
"""Functions of triggers, and one that other functions call: no role needs a right to them."""


async def add(neighbours: Neighbours, *numbers: int, role: Role = "shop") -> None:
    async with neighbours.connected(role) as connection, connection.transaction():
        await OUTBOX.add_many(connection, numbered(*numbers))


# -- the relay -------------------------------------------------------------------------------------------------------


async def test_a_relay_with_its_grants_does_all_that_relays_do(neighbours: Neighbours) -> None:
    """It makes lanes, is woken, retries, moves what is due, deletes what is old, and leaves."""
    broker = Arrivals()
    settings = RelaySettings(lanes=2, tick="1h", linger="1ms", poll_interval="1ms", retain="0s", cleanup_interval="1s")
    it = Relay(PostgreSQLStore(neighbours.url("relay")), broker, settings=settings)
    async with asyncio.timeout(SECONDS), running(it):
        for number in range(3):
            await until_asleep(it)
            await add(neighbours, number, role="shop" if number % 2 else "billing")
            await broker.until(number)
        async with neighbours.connected("shop") as connection, connection.transaction():
            await OUTBOX.add_many(connection, numbered(3, deliver_in=timedelta(milliseconds=1)))
        await broker.until(3)
        await until(lambda: neighbours.execute("owner", "select count(*) from postroad.outbox").strip() == "0")
    assert neighbours.execute("owner", "select count(*) from postroad.relays").strip() == "0"


async def test_a_refused_message_is_retried_and_dies(neighbours: Neighbours) -> None:
    await add(neighbours, 1, 2)
    broker = Arrivals()
    broker.refuse(lambda message: "no" if message.payload == b"1" else None)
    store = PostgreSQLStore(neighbours.url("relay"))
    async with asyncio.timeout(SECONDS), running(Relay(store, broker, settings=RelaySettings(max_attempts=1))):
        await broker.until(2)
        dead = "select error from postroad.deferred where state = 'dead'"
        await until(lambda: neighbours.execute("owner", dead).strip() == "no")


async def test_a_restored_log_is_carried_over_by_a_relay(neighbours: Neighbours) -> None:
    await add(neighbours, 1, 2)
    neighbours.execute("owner", "update postroad.installation set system_identifier = 1")
    output = postroad("status", "--database", neighbours.url("reader"), fails=True)
    assert "permission denied" in output
    delivered = postroad("relay", "--database", neighbours.url("relay"), "--to", "null://", "--until-empty")
    assert "2 published" in delivered
    postroad("status", "--database", neighbours.url("reader"))


async def test_what_a_relay_may_not(neighbours: Neighbours) -> None:
    await refused(
        neighbours, "relay",
        "select from postroad.audit", "insert into postroad.holds (sink, key, slot, who) values ('s', 'k', 0, 'w')",
        "insert into postroad.pauses (sink, who) values ('s', 'w')", "delete from postroad.pauses",
        "update postroad.outbox set payload = ''", "drop table postroad.naps", "delete from postroad.lanes",
        "insert into postroad.migrations values (99)", "create table postroad.mine ()", "select from postroad.inbox",
    )  # fmt: skip


# -- operators and readers -------------------------------------------------------------------------------------------

LOOKING: Final = ["status", "messages", "relays", "consumers", "why --key k", "audit", "dead list", "status --by-lane"]


@pytest.fixture
def worked(neighbours: Neighbours) -> Neighbours:
    """Some messages delivered, one dead, one waiting, one scheduled."""
    neighbours.execute(
        "owner", "select postroad.add('/shop', 'order', '{\"n\": 1}', key => 'k') from generate_series(1, 4)"
    )
    postroad("relay", "--database", neighbours.url("relay"), "--to", "null://", "--until-empty")
    neighbours.execute("owner", """
        insert into postroad.deferred (sink, lane, position, key, blocks, state, error)
        select 'default', l.lane, o.position, o.key, false, 'dead', 'no'
          from postroad.outbox o join postroad.lanes l on o.slot between l.first_slot and l.last_slot
         where o.position <= 2""")  # fmt: skip
    return neighbours


def ids(neighbours: Neighbours) -> list[str]:
    return neighbours.execute("owner", "select id from postroad.outbox order by position").split()


@pytest.mark.parametrize("role", ["reader", "operator"])
def test_looking(worked: Neighbours, role: Role) -> None:
    database = ("--database", worked.url(role))
    for command in LOOKING:
        postroad(*command.split(), *database)
    first = ids(worked)[0]
    shown = postroad("message", "show", first, *database)
    assert "not readable by this role; application/json" in shown
    assert json.loads(postroad("dead", "show", first, *database, "--json"))["payload_size"] is None
    output = postroad("message", "show", first, *database, "--payload", fails=True)
    assert (
        "permission denied for table outbox; `postroad migrate --grants` prints what each kind of role needs" in output
    )
    worked.execute("owner", grants_script(worked.name(role), kind="payloads"))
    assert '"n": 1' in postroad("message", "show", first, *database, "--payload")


def test_acting(worked: Neighbours) -> None:
    database = ("--database", worked.url("operator"))
    why = ("--reason", "a test", "--yes")
    first, second, *_ = ids(worked)
    postroad("dead", "retry", first, *database, "--yes")
    postroad("dead", "drop", second, *database, *why)
    postroad("message", "skip", first, *database, *why)
    postroad("key", "hold", "k", *database, "--reason", "a test")
    postroad("key", "release", "k", *database)
    postroad("pause", "default", *database, "--reason", "a test")
    postroad("resume", "default", *database)
    postroad("rewind", *database, "--to", "1", *why)
    worked.execute("owner", "select postroad.add('/shop', 'order', '{}', key => 'k')")
    postroad("message", "poison", ids(worked)[-1], *database, "--reason", "a test")
    worked.execute("owner", "select postroad.add('/shop', 'order', '{}', key => 'ann')")
    postroad("key", "hold", "ann", *database, "--reason", "a test")
    postroad("key", "release", "ann", *database)
    postroad("relay", "--database", worked.url("relay"), "--to", "null://", "--until-empty")
    postroad("forget", "--key", "ann", *database, *why)
    postroad("cleanup", *database, "--older-than", "0s", *why)
    entries = json.loads(postroad("audit", *database, "--json"))
    assert {entry["role"] for entry in entries} == {worked.name("operator")}
    commands = {entry["command"] for entry in entries}
    assert {
        "retry",
        "drop",
        "skip",
        "hold",
        "release",
        "pause",
        "resume",
        "rewind",
        "poison",
        "cleanup",
        "forget",
    } <= commands
    assert "ann" not in {entry["arguments"].get("key") for entry in entries}


async def test_what_a_reader_may_not(worked: Neighbours) -> None:
    await refused(
        worked, "reader",
        "select payload from postroad.outbox", "select payload from postroad.scheduled",
        "select from postroad.locks for update",
        "delete from postroad.outbox", "update postroad.lanes set version = 0", "delete from postroad.deferred",
        "insert into postroad.audit (who, command, arguments, changed) values ('x', 'y', '{}', 1)",
        "select postroad.cancel(gen_random_uuid())", "select postroad.add('/x', 'y', '{}')",
        "insert into postroad.pauses (sink, who) values ('s', 'w')",
    )  # fmt: skip
    output = postroad("pause", "default", "--database", worked.url("reader"), "--reason", "a test", fails=True)
    assert "permission denied" in output


async def test_what_an_operator_may_not(worked: Neighbours) -> None:
    await refused(
        worked, "operator",
        "select payload from postroad.outbox", "update postroad.outbox set slot = 1",
        "update postroad.lanes set position = 0",
        "insert into postroad.migrations values (99)", "drop table postroad.naps",
        "select postroad.add('/x', 'y', '{}')",
    )  # fmt: skip


# -- applications, and roles without rights --------------------------------------------------------------------------


async def test_an_application_adds_cancels_and_consumes(neighbours: Neighbours) -> None:
    async with neighbours.connected("shop") as connection, connection.transaction():
        later = await OUTBOX.add(connection, {"n": 1}, type="n", deliver_in=timedelta(hours=1))
        await OUTBOX.cancel(connection, later)
        await connection.execute("select postroad.add('/shop', 'n', '{}')")
        assert await Inbox().first_time(connection, "1", consumer="stock")


async def test_what_applications_and_strangers_may_not(neighbours: Neighbours) -> None:
    for role in ("shop", "stranger"):
        await refused(
            neighbours, role,
            "select payload from postroad.outbox", "select from postroad.lanes",
            "select from postroad.locks for update",
            "delete from postroad.outbox", "select from postroad.audit", "select postroad.wipe_marks()",
            "select postroad.server_started()", "select postroad.lock_holders(1)", "select from postroad.relays",
            "select setval('postroad.napping'::regclass, 0)", "select from postroad.outbox_status",
        )  # fmt: skip
    await refused(neighbours, "stranger", "select postroad.add('/x', 'y', '{}')", "select postroad.slot_of('x')")


async def refused(neighbours: Neighbours, role: Role, *statements: str) -> None:
    async with neighbours.connected(role) as connection:
        for statement in statements:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
                pytest.fail(f"{role} may: {statement}")


# -- the grants themselves -------------------------------------------------------------------------------------------


async def test_grants_take_nothing_from_the_owner(neighbours: Neighbours) -> None:
    neighbours.execute("owner", grants_script(neighbours.name("owner")))
    async with neighbours.connected("shop") as connection, connection.transaction():
        await OUTBOX.add(connection, {"n": 1}, type="n")
        assert await Inbox().first_time(connection, "an id", source="/x", consumer="stock")
    async with neighbours.connected("owner") as connection:
        assert await connection.fetchval("select count(*) from postroad.inbox") == 1


def test_every_table_and_function_is_granted_to_a_role(empty: Neighbours) -> None:
    """A new one needs a line in each role's grants that uses it."""
    postroad("migrate", "--database", empty.url("owner"))
    names = empty.execute("owner", """
        select proname from pg_proc where pronamespace = 'postroad'::regnamespace
        union
        select c.relname from pg_class c
         where c.relnamespace = 'postroad'::regnamespace and c.relkind in ('r', 'v', 'S')
           and not exists (select from pg_depend d where d.objid = c.oid and d.classid = 'pg_class'::regclass
                                                     and d.deptype = 'i')""").split()  # fmt: skip
    granted = "".join(POSTGRESQL.sql_file(f"grants/{kind}.sql", "postroad") for kind in GRANTS)
    missing = {name for name in names if f"postroad.{name}" not in granted}
    assert missing == OWNERS_ALONE


def test_grants_may_be_asked_for_together(postgresql15: PostgreSQL) -> None:
    url = ("--database", "postgresql://nowhere.invalid/nothing")
    both = postroad("migrate", *url, "--grants", "shop", "--grants", "relay=carrier")
    assert both == grants_script("shop") + grants_script("carrier", kind="relay")
    output = postroad("migrate", *url, "--grants", "boss=me", fails=True)
    assert "grants is for 'boss'; it must be for one of application, relay, operator, reader, payloads" in output
