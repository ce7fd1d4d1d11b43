"""Real Alembic on real databases: our migrations run inside a revision, and autogenerate finds nothing to change."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from postroad import InvalidSetting
from postroad.alembic import migrate
from postroad.sqlalchemy import tables
from postroad.stores.migrations import SCHEMA_VERSION
from postroad.stores.postgresql import migrate_postgresql
from postroad.stores.queries import migration_files
from postroad.stores.scripts import lock_statement, migration_statements
from postroad.stores.sqlite import migrate_sqlite
from tests.services.postgresql import PostgreSQL

Dialect = Literal["postgresql", "sqlite"]

ENV = """
import asyncio
from alembic import context
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
import postroad.alembic
from postroad.sqlalchemy import tables

url = context.config.get_main_option("sqlalchemy.url")
metadata = MetaData()
tables(metadata, dialect=url.partition(":")[0].partition("+")[0])
settings = dict(target_metadata=metadata, include_schemas=url.startswith("postgresql"), compare_server_default=True,
                include_name=lambda name, kind, _: kind != "schema" or name in {None, "public", "postroad"})

def run(connection):
    context.configure(connection=connection, **settings)
    with context.begin_transaction():
        context.run_migrations()

async def run_async():
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)

if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, **settings)
    with context.begin_transaction():
        context.run_migrations()
elif "async" in url or "aio" in url:
    asyncio.run(run_async())
else:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        run(connection)
"""

REVISION = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "{revision}", {down}

def upgrade():
    {upgrade}

def downgrade():
    pass
"""


class Place(NamedTuple):
    """A database that nobody has migrated, and how SQLAlchemy reaches it."""

    dialect: Dialect
    url: str
    plain: str


def alembic(place: Place, folder: Path, *upgrades: str, output: io.StringIO | None = None) -> Config:
    """An Alembic project with these revisions."""
    (folder / "alembic" / "versions").mkdir(parents=True, exist_ok=True)
    (folder / "alembic" / "env.py").write_text(ENV)
    for number, upgrade in enumerate(upgrades, 1):
        down = f'"r{number - 1}"' if number > 1 else None
        text = REVISION.format(revision=f"r{number}", down=down, upgrade=upgrade)
        (folder / "alembic" / "versions" / f"r{number}.py").write_text(text)
    config = Config(output_buffer=output, stdout=io.StringIO())
    config.set_main_option("script_location", str(folder / "alembic"))
    config.set_main_option("sqlalchemy.url", place.url)
    config.set_main_option("path_separator", "os")
    return config


@pytest.fixture
def pg_url(postgresql15: PostgreSQL) -> Iterator[str]:
    postgresql15.start()
    url = postgresql15.create_database()
    yield url
    postgresql15.drop_database(url)


@pytest.fixture(params=["postgresql+psycopg", "postgresql+asyncpg", "sqlite", "sqlite+aiosqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    driver: str = request.param
    if driver.startswith("sqlite"):
        return Place("sqlite", f"{driver}:///{tmp_path / 'shop.sqlite'}", f"sqlite:///{tmp_path / 'shop.sqlite'}")
    url: str = request.getfixturevalue("pg_url")
    return Place("postgresql", url.replace("postgresql", driver, 1), url.replace("postgresql", "postgresql+psycopg", 1))


def differences(place: Place, metadata: MetaData, *, schema: str = "postroad") -> list[Any]:
    """What autogenerate would write."""
    options = {
        "compare_type": True,
        "compare_server_default": True,
        "include_schemas": place.dialect == "postgresql",
        "include_name": lambda name, kind, _: kind != "schema" or name in {None, schema},
    }
    engine = create_engine(place.plain, poolclass=NullPool)
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def fetch(place: Place, sql: str) -> list[tuple[Any, ...]]:
    engine = create_engine(place.plain, poolclass=NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(sql)]


def versions(place: Place) -> list[Any]:
    table = "postroad.migrations" if place.dialect == "postgresql" else "postroad_migrations"
    return [row[0] for row in fetch(place, f"select version from {table} order by version")]


ALL = list(migration_files("postgresql"))


def test_our_migration_inside_a_revision(place: Place, tmp_path: Path) -> None:
    config = alembic(place, tmp_path, "op.postroad_migrate()", "op.postroad_migrate()")
    command.upgrade(config, "head")
    assert versions(place) == ALL
    command.downgrade(config, "base")
    command.upgrade(config, "head")
    assert versions(place) == ALL, "what is there stays, and is not made twice"
    command.check(config)  # raises when autogenerate would write anything


async def test_what_a_revision_made_is_what_postroad_makes(
    pg_url: str, tmp_path: Path, postgresql15: PostgreSQL
) -> None:
    place = Place("postgresql", pg_url.replace("postgresql", "postgresql+psycopg", 1), pg_url)
    await asyncio.to_thread(command.upgrade, alembic(place, tmp_path, "op.postroad_migrate()"), "head")
    other = postgresql15.create_database()
    await migrate_postgresql(other)
    dumps = [
        postgresql15.run("pg_dump", "-d", url, "--schema-only", "--schema=postroad", "--restrict-key=same")
        for url in (pg_url, other)
    ]
    postgresql15.drop_database(other)
    assert dumps[0] == dumps[1]
    assert "postroad.add_bytes" in dumps[0]


def test_a_revision_fails_as_a_whole(pg_url: str, tmp_path: Path) -> None:
    url = pg_url.replace("postgresql", "postgresql+psycopg", 1)
    place = Place("postgresql", url, url)
    with pytest.raises(sqlalchemy.exc.ProgrammingError):
        command.upgrade(alembic(place, tmp_path, "op.postroad_migrate(); op.execute('select nonsense')"), "head")
    assert fetch(place, "select to_regclass('postroad.outbox')") == [(None,)]


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_offline(dialect: Dialect, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    output = io.StringIO()
    if dialect == "sqlite":
        path = tmp_path / "shop.sqlite"
        place = Place("sqlite", f"sqlite:///{path}", f"sqlite:///{path}")
    else:
        url = request.getfixturevalue("pg_url").replace("postgresql", "postgresql+psycopg", 1)
        place = Place("postgresql", url, url)
    command.upgrade(alembic(place, tmp_path, "op.postroad_migrate()", output=output), "head", sql=True)
    script = output.getvalue()
    if dialect == "sqlite":
        with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
            connection.executescript(script)
    else:
        server: PostgreSQL = request.getfixturevalue("postgresql15")
        server.psql(request.getfixturevalue("pg_url"), script)
        assert fetch(place, "select postroad.add('/x', 'order.created', '{}') is not null") == [(True,)]
    assert versions(place) == ALL


def test_a_plain_function_another_schema_and_an_open_end(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}")
    with engine.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        migrate(op, schema="shop", through=1)
        with pytest.raises(InvalidSetting, match="through is 99"):
            migrate(op, through=99)
        migrate(op, schema="other", after=SCHEMA_VERSION)
        names = {row[0] for row in connection.exec_driver_sql("select name from sqlite_master where type = 'table'")}
    engine.dispose()
    assert "shop_outbox" in names
    assert not any(name.startswith(("other_", "postroad_")) for name in names)


# -- autogenerate ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgresql", "sqlite"])
def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """What `postroad migrate` makes, in a schema that is not the default."""
    if request.param == "sqlite":
        migrate_sqlite(tmp_path / "shop.sqlite", "shop")
        url = f"sqlite:///{tmp_path / 'shop.sqlite'}"
        return Place("sqlite", url, url)
    url = request.getfixturevalue("pg_url")
    asyncio.run(migrate_postgresql(url, "shop"))
    plain = url.replace("postgresql", "postgresql+psycopg", 1)
    return Place("postgresql", plain, plain)


def test_autogenerate_finds_nothing(migrated: Place) -> None:
    metadata = MetaData()
    made = tables(metadata, dialect=migrated.dialect, schema="shop")
    assert len(made) == len(metadata.tables)
    assert differences(migrated, metadata, schema="shop") == []


def test_autogenerate_would_find_what_differs(migrated: Place) -> None:
    """The test above can fail: each of these is seen."""
    assert {each[0] for each in differences(migrated, MetaData(), schema="shop")} >= {"remove_table"}
    metadata = MetaData()
    outbox = tables(metadata, dialect=migrated.dialect, schema="shop")[2]
    outbox.append_column(Column("more", Integer))
    outbox.c.topic.nullable = True
    outbox.c.slot.type = sqlalchemy.TEXT()
    outbox.c.created_at.server_default = None
    found = {
        each[0] if isinstance(each, tuple) else each[0][0] for each in differences(migrated, metadata, schema="shop")
    }
    assert found == {"add_column", "modify_nullable", "modify_type", "modify_default"}


def check_constraints(place: Place, schema: str) -> int:
    """How many CHECKs the database has: Alembic does not compare them."""
    if place.dialect == "postgresql":
        sql = f"select count(*) from pg_constraint where contype = 'c' and connamespace = '{schema}'::regnamespace"
        return int(fetch(place, sql)[0][0])
    return sum(row[0].count(" check (") for row in fetch(place, "select sql from sqlite_master where sql is not null"))


def test_check_constraints_are_described_too(migrated: Place) -> None:
    made = tables(MetaData(), dialect=migrated.dialect, schema="shop")
    described = [each for table in made for each in table.constraints if isinstance(each, sqlalchemy.CheckConstraint)]
    assert len(described) == check_constraints(migrated, "shop")
    if migrated.dialect == "postgresql":
        sql = "select conname from pg_constraint where contype = 'c' and connamespace = 'shop'::regnamespace"
        assert sorted(str(each.name) for each in described) == sorted(row[0] for row in fetch(migrated, sql))


def test_create_all_refuses_to_make_half_of_it(tmp_path: Path, migrated: Place) -> None:
    metadata = MetaData()
    tables(metadata, dialect=migrated.dialect, schema="shop")
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    engine = create_engine(migrated.plain, poolclass=NullPool)
    metadata.create_all(engine)  # they are there, so nothing is asked of us
    tables(other := MetaData(), dialect=migrated.dialect, schema="shop" if migrated.dialect == "sqlite" else "public")
    with pytest.raises(InvalidSetting, match="run postroad's own migrations first"):
        other.create_all(engine if migrated.dialect == "postgresql" else create_engine("sqlite://"))


def test_unknown_dialect() -> None:
    with pytest.raises(InvalidSetting, match="dialect is 'mysql'"):
        tables(MetaData(), dialect="mysql")  # type: ignore[arg-type]


# -- statements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_statements_are_whole(dialect: Dialect) -> None:
    statements = migration_statements(dialect)
    verbs = (
        "create ",
        "insert ",
        "alter ",
        "drop ",
        "update ",
        "grant ",
        "revoke ",
        "do ",
        "lock ",
        "with ",
        "delete ",
    )
    assert all(statement.startswith(verbs) for statement in statements)
    assert migration_statements(dialect, after=SCHEMA_VERSION) == []


async def test_the_lock_is_the_one_that_postroad_migrate_takes(pg_url: str) -> None:
    engine = create_async_engine(pg_url.replace("postgresql", "postgresql+asyncpg", 1), poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.exec_driver_sql(lock_statement("postroad"))
        other = asyncio.create_task(migrate_postgresql(pg_url))
        waiting = "select count(*) from pg_locks where not granted"
        async with engine.connect() as watcher:
            async with asyncio.timeout(60):
                while not (await watcher.exec_driver_sql(waiting)).scalar():
                    pass  # the question itself gives the others their turn
        assert not other.done()
        await connection.rollback()
    assert await other == ALL
