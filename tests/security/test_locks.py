"""A role without rights can hold any advisory lock: nothing of ours may wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import asyncpg
import pytest

from postroad import StoreUnavailable
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from tests.contracts.test_wakeup import running, until, until_asleep
from tests.lanes import identity, take_lanes
from tests.logs import OUTBOX, Arrivals, numbered
from tests.security.neighbours import Neighbours

SECONDS: Final = 60
# What earlier versions locked; every role can do the sum.
CLASS: Final = "x'706F7374'::int"
NAMES: Final = ["postroad", *(f"postroad.{name}" for name in ("scheduled", "retention", "create", "naps"))]


@pytest.fixture
async def squatter(neighbours: Neighbours) -> AsyncIterator[Any]:
    """A role without rights that holds every advisory lock of ours whose key it can know."""
    async with neighbours.connected("stranger") as connection:
        for name in NAMES:
            await connection.execute(f"select pg_advisory_lock({CLASS}, hashtext('{name}'))")
        yield connection


async def test_a_squatter_stops_no_migration(neighbours: Neighbours, squatter: Any) -> None:
    neighbours.execute("postgres", "drop schema postroad cascade")
    async with asyncio.timeout(SECONDS):
        assert await migrate_postgresql(neighbours.url("owner"))


async def test_a_squatter_stops_no_relay(neighbours: Neighbours, squatter: Any) -> None:
    """Lanes of a new sink are made, they nap and are woken, what is due is moved, what is old is deleted."""
    broker = Arrivals()
    settings = RelaySettings(lanes=2, tick="1h", linger="1ms", poll_interval="1ms", retain="0s", cleanup_interval="1s")
    it = Relay(PostgreSQLStore(neighbours.url("owner")), broker, settings=settings)
    async with asyncio.timeout(SECONDS), running(it), neighbours.connected("shop") as connection:
        for number in range(3):
            await until_asleep(it)
            async with connection.transaction():
                await OUTBOX.add_many(connection, numbered(number))
            await broker.until(number)
        async with connection.transaction():
            await OUTBOX.add_many(connection, numbered(3, deliver_in=timedelta(milliseconds=1)))
        await broker.until(3)
        await until(lambda: neighbours.execute("owner", "select count(*) from postroad.outbox").strip() == "0")


async def test_marks_are_wiped_in_spite_of_a_squatter(neighbours: Neighbours, squatter: Any) -> None:
    """Marks that stay would have every INSERT call the trigger."""
    store = PostgreSQLStore(neighbours.url("owner"), connections=1)
    await store.open()
    (lane,) = await take_lanes(store, "s", uuid4(), lanes=1, start="oldest")
    nap = await store.naps.begin(lane, channel="c", seconds=3600.0)
    assert nap is not None
    await store.naps.end([nap])
    await store.close()
    assert neighbours.execute("owner", "select pg_sequence_last_value('postroad.napping'::regclass)").strip() == "0"


async def test_a_dead_relays_lock_in_another_hand_does_not_keep_it_alive(neighbours: Neighbours) -> None:
    """Every role sees in pg_locks which lock a relay holds, and can queue for it."""
    store = PostgreSQLStore(neighbours.url("owner"), connections=2)
    await store.open()
    dead, living = identity("s"), identity("s")
    for each in (dead, living):
        await store.leases.heartbeat(each, 3600.0)
    liveness_lock = await store.leases.open_session(dead, None, lambda: None)
    assert liveness_lock is not None
    async with neighbours.connected("stranger") as squatter:
        key = await squatter.fetchval("""
            select (classid::bigint << 32) | objid::bigint from pg_locks
             where locktype = 'advisory' and objsubid = 1 and granted
               and database = (select oid from pg_database where datname = current_database())""")
        assert key is not None
        assert (await store.leases.inspect(living)).suspects == []
        waiting = asyncio.create_task(squatter.execute("select pg_advisory_lock($1)", key))
        liveness_lock.close()
        await asyncio.wait_for(waiting, SECONDS)
        suspects = (await store.leases.inspect(living)).suspects
    assert [each.owner for each in suspects] == [dead.owner]
    await store.close()


async def test_a_role_without_rights_can_lock_none_of_our_rows_or_tables(neighbours: Neighbours) -> None:
    tables = neighbours.execute("owner", "select relname from pg_class where relnamespace = 'postroad'::regnamespace "
                                      "and relkind in ('r', 'v')").split()  # fmt: skip
    for role in ("stranger", "shop"):
        # An application writes to some tables, so it can lock those in the mode of a writer.
        theirs = {"outbox", "scheduled", "inbox", "inbox_attempts"} if role == "shop" else set()
        for table in set(tables) - theirs:
            for statement in (f"lock table postroad.{table}", f"select from postroad.{table} for update"):
                async with neighbours.connected(role) as connection, connection.transaction():
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(statement)


# -- a lock timeout names the blocker --------------------------------------------------------------------------------


def quickly(store: Any) -> None:
    store._sql = {name: sql.replace("'10s'", "'100ms'") for name, sql in store._sql.items()}


async def test_a_rewind_that_waits_in_vain_names_the_process(neighbours: Neighbours) -> None:
    database = PostgreSQLAdminDatabase(neighbours.url("owner"))
    quickly(database._pool)
    await database.open()
    async with neighbours.connected("owner") as other, other.transaction():
        await other.execute("select from postroad.locks where name = 'retention' for update")
        with pytest.raises(StoreUnavailable, match=f"locked by server process {other.get_server_pid()} "):
            async with database.write() as query:
                await query("lock_retention")
    await database.close()


async def test_a_migration_that_waits_in_vain_names_the_process(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.stores.postgresql.MIGRATION_TRIES", 2)
    async with neighbours.connected("owner") as other, other.transaction():
        await other.execute("lock table postroad.migrations in exclusive mode")
        process, role = other.get_server_pid(), neighbours.name("owner")
        with pytest.raises(StoreUnavailable, match=rf"by server process {process} \(role {role}\)"):
            await migrate_postgresql(neighbours.url("owner"))
