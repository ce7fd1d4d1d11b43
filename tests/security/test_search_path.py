"""Whatever other roles put into a schema on the search_path, nothing of ours runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from postroad import Inbox
from postroad.alembic import migrate
from postroad.config import RelaySettings
from postroad.relay import Relay
from postroad.stores.dialects import POSTGRESQL
from postroad.stores.grants import grants_script
from postroad.stores.postgresql import PostgreSQLStore, migrate_postgresql
from tests.contracts.test_wakeup import running, until_asleep
from tests.logs import OUTBOX, Arrivals, numbered
from tests.security.neighbours import Neighbours, postroad
from tests.security.traps import caught, set_traps
from tests.services.pgbouncer import PgBouncer

MANAGE = """
import sys
from django.conf import settings
from django.core.management import execute_from_command_line
settings.configure(
    SECRET_KEY="tests", USE_TZ=True, INSTALLED_APPS=["postroad.django"],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "{name}", "USER": "postgres",
                             "HOST": "127.0.0.1", "PORT": {port}}}}})
execute_from_command_line(sys.argv)
"""


# -- migrating -------------------------------------------------------------------------------------------------------


async def by_postroad(neighbours: Neighbours, _: Path) -> None:
    await migrate_postgresql(neighbours.url("postgres"))


def by_a_script(neighbours: Neighbours, _: Path) -> None:
    neighbours.execute("postgres", POSTGRESQL.migration_script())


def alembic(connection: sqlalchemy.Connection, **options: Any) -> Operations:
    return Operations(MigrationContext.configure(connection, **options))


def by_alembic(neighbours: Neighbours, _: Path) -> None:
    engine = sqlalchemy.create_engine(neighbours.url("postgres").replace("postgresql", "postgresql+psycopg", 1))
    with engine.begin() as connection:
        migrate(alembic(connection))
    engine.dispose()


def by_alembics_script(neighbours: Neighbours, folder: Path) -> None:
    with (folder / "script.sql").open("w") as script:
        context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": script})
        migrate(Operations(context))
    neighbours.execute("postgres", f"begin; {(folder / 'script.sql').read_text()} commit;")


def by_django(neighbours: Neighbours, folder: Path) -> None:
    url = neighbours.url("postgres")
    (folder / "manage.py").write_text(MANAGE.format(name=url.rpartition("/")[2], port=neighbours.server.port))
    command = [sys.executable, "manage.py", "migrate"]
    done = subprocess.run(command, cwd=folder, env=os.environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", [by_postroad, by_a_script, by_alembic, by_alembics_script, by_django])
async def test_a_migration_runs_nothing_of_another_role(empty: Neighbours, tmp_path: Path, way: Any) -> None:
    set_traps(empty)
    if (done := way(empty, tmp_path)) is not None:
        await done
    assert caught(empty) == []
    kept = """
        select count(*) from pg_depend d join pg_proc p on d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
         where p.pronamespace = 'public'::regnamespace and d.classid <> 'pg_operator'::regclass"""
    assert empty.execute("postgres", kept).strip() == "0", "no trigger, view or default refers to a trap"


async def test_a_trigger_that_was_made_with_a_trap_on_the_path_is_made_again(empty: Neighbours) -> None:
    """The condition of a trigger keeps the functions that it had found."""
    await migrate_postgresql(empty.url("postgres"))
    set_traps(empty)
    empty.execute(
        "postgres",
        """
        drop trigger wake_naps on postroad.outbox;
        create trigger wake_naps after insert on postroad.outbox for each row
            when (pg_sequence_last_value('postroad.napping') << (new.slot / 16) < 0)
            execute function postroad.wake_naps();
        delete from postroad.migrations;
    """,
    )
    await migrate_postgresql(empty.url("postgres"))
    async with empty.connected("postgres") as connection, connection.transaction():
        await OUTBOX.add_many(connection, numbered(1))
    assert caught(empty) == []


async def test_a_default_that_was_made_with_a_trap_on_the_path_is_named(empty: Neighbours) -> None:
    """To make it again might rewrite a large table: that is for a person to decide."""
    await migrate_postgresql(empty.url("postgres"))
    empty.execute(
        "postgres",
        """
        create function public.now() returns timestamptz language sql as $$ select pg_catalog.now() $$;
        alter table postroad.outbox alter column created_at set default public.now();
        delete from postroad.migrations;
    """,
    )
    output = postroad("migrate", "--database", empty.url("postgres"), fails=True)
    assert "default value for column created_at of table postroad.outbox uses function public.now()" in output


def test_alembic_leaves_the_path_as_it_was(empty: Neighbours) -> None:
    engine = sqlalchemy.create_engine(empty.url("postgres").replace("postgresql", "postgresql+psycopg", 1))
    with engine.begin() as connection:
        connection.exec_driver_sql("set local search_path = 'public', \"$user\"")
        for _ in range(2):
            migrate(alembic(connection))
            assert connection.exec_driver_sql("show search_path").scalar() == 'public, "$user"'
    with engine.connect() as connection:
        assert connection.exec_driver_sql("show search_path").scalar() == '"$user", public'
    engine.dispose()


def test_statements_without_a_transaction_are_refused(empty: Neighbours) -> None:
    """The path could not be set for them."""
    url = empty.url("postgres").replace("postgresql", "postgresql+psycopg", 1)
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as connection,
        pytest.raises(sqlalchemy.exc.DBAPIError, match="must run in one transaction"),
    ):
        migrate(alembic(connection))
    engine.dispose()


# -- working ---------------------------------------------------------------------------------------------------------


async def work(neighbours: Neighbours, store: PostgreSQLStore) -> None:
    """What a relay does: it sends, retries, moves what is due, naps, is woken, cleans up."""
    broker = Arrivals()
    settings = RelaySettings(lanes=2, tick="50ms", linger="1ms", poll_interval="1ms", retain="0s")
    async with running(Relay(store, broker, settings=settings)) as it, neighbours.connected("shop") as connection:
        for number in range(3):
            await until_asleep(it)
            async with connection.transaction():
                await OUTBOX.add_many(connection, numbered(number))
            await broker.until(number)
        async with connection.transaction():
            await OUTBOX.add_many(connection, numbered(3, deliver_in=timedelta(milliseconds=1)))
        await broker.until(3)


async def test_a_relay_runs_nothing_of_another_role(neighbours: Neighbours) -> None:
    set_traps(neighbours)
    await work(neighbours, PostgreSQLStore(neighbours.url("postgres")))
    assert caught(neighbours) == []


async def test_nor_does_one_behind_a_pooler(empty: Neighbours, pgbouncer15: PgBouncer) -> None:
    await migrate_postgresql(empty.url("owner"))
    empty.execute("owner", grants_script(empty.name("shop")))
    set_traps(empty)
    url = empty.url("postgres")
    await work(empty, PostgreSQLStore(pgbouncer15.url(url), direct=url))
    assert caught(empty) == []
    async with empty.connected("postgres") as stranger:
        assert await stranger.fetchval("show search_path") == '"$user", public'


async def test_every_connection_has_the_path(neighbours: Neighbours) -> None:
    neighbours.execute("postgres", f"alter role {neighbours.name('owner')} set search_path = public, pg_catalog")
    store = PostgreSQLStore(neighbours.url("owner"), connections=2)
    await store.open()
    async with store._connection() as one, store._connection() as two:
        paths = [await each.fetchval("show search_path") for each in (one, two)]
    async with store._connect_to_stay("a test") as stays:
        paths.append(await stays.fetchval("show search_path"))
        stays.terminate()
    await store.close()
    assert paths == ["pg_catalog, pg_temp"] * 3


async def test_looking_for_locks_runs_nothing_of_another_role(neighbours: Neighbours) -> None:
    set_traps(neighbours)
    async with neighbours.connected("postgres") as connection, connection.transaction():
        await connection.execute("lock table postroad.deferred in share mode")
        store = PostgreSQLStore(neighbours.url("postgres"))
        found = await store.blockers(longer_than=timedelta(0))
        assert connection.get_server_pid() in [each.pid for each in found]
    assert caught(neighbours) == []


def test_operators_run_nothing_of_another_role(neighbours: Neighbours) -> None:
    set_traps(neighbours)
    database = ("--database", neighbours.url("postgres"))
    neighbours.execute("postgres", "select postroad.add('/shop', 'n', '{}')")
    postroad("relay", *database, "--to", "null://", "--until-empty")
    for command in ("status", "messages", "relays", "audit", "dead list"):
        postroad(*command.split(), *database)
    postroad("rewind", *database, "--sink", "default", "--to", "2026-01-01T00:00:00Z", "--yes", "--reason", "a test")
    postroad("relay", *database, "--to", "null://", "--until-empty")
    postroad("cleanup", *database, "--older-than", "0s", "--yes", "--reason", "a test")
    assert caught(neighbours) == []


async def test_adding_and_consuming_run_nothing_of_another_role(neighbours: Neighbours) -> None:
    """On the application's own connection, whose path is not ours to set."""
    set_traps(neighbours)
    async with neighbours.connected("shop") as connection:
        async with connection.transaction():
            await OUTBOX.add(connection, {"n": 1}, type="n", key="k")
            await OUTBOX.add_many(connection, numbered(1, 2))
            later = await OUTBOX.add(connection, {"n": 2}, type="n", deliver_in=timedelta(hours=1))
            at = datetime.now(UTC) + timedelta(hours=1)
            await OUTBOX.add_many(connection, [*numbered(3, deliver_at=at), *numbered(4)])
            await OUTBOX.cancel(connection, later)
            await connection.execute("select postroad.add('/shop', 'n', '{}', key => 'k')")
        async with connection.transaction():
            inbox = Inbox()
            assert await inbox.first_time(connection, "1", consumer="stock")
            assert len(await inbox.first_times(connection, [("2", "n"), ("3", "n")], consumer="stock")) == 2
    assert caught(neighbours) == []
