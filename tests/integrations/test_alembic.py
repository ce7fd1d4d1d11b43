"""Real Alembic on real databases: our migrations run inside a revision, and autogenerate leaves our tables alone."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from postroad import InvalidSetting
from postroad.alembic import include_name, migrate
from postroad.stores.dialects import DIALECTS, POSTGRESQL, SQLDialect
from postroad.stores.migrations import SCHEMA_VERSION
from postroad.stores.postgresql import migrate_postgresql
from postroad.stores.sqlite import migrate_sqlite
from tests.services.postgresql import PostgreSQL

Dialect = Literal["postgresql", "sqlite"]

ENV = """
import asyncio
from alembic import context
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from postroad.alembic import include_name
from sqlalchemy import Column, Integer, Table

url = context.config.get_main_option("sqlalchemy.url")
metadata = MetaData()
Table("orders", metadata, Column("id", Integer, primary_key=True))
settings = dict(target_metadata=metadata, include_schemas=True, compare_server_default=True, include_name=include_name)

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


TEMPLATE = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = ${repr(up_revision)}, ${repr(down_revision)}

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
"""


class Place(NamedTuple):
    """A database that was not migrated, and how SQLAlchemy reaches it."""

    dialect: Dialect
    url: str
    plain: str


def alembic(place: Place, folder: Path, *upgrades: str, output: io.StringIO | None = None) -> Config:
    """An Alembic project with these revisions."""
    (folder / "alembic" / "versions").mkdir(parents=True, exist_ok=True)
    (folder / "alembic" / "env.py").write_text(ENV)
    (folder / "alembic" / "script.py.mako").write_text(TEMPLATE)
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


def differences(place: Place, metadata: MetaData, **options: Any) -> list[Any]:
    """What autogenerate would write."""
    engine = create_engine(place.plain, poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
        return list(compare_metadata(context, metadata))


def fetch(place: Place, sql: str) -> list[tuple[Any, ...]]:
    engine = create_engine(place.plain, poolclass=NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(sql)]


def versions(place: Place) -> list[Any]:
    table = "postroad.migrations" if place.dialect == "postgresql" else "postroad_migrations"
    return [row[0] for row in fetch(place, f"select version from {table} order by version")]


ALL = list(POSTGRESQL.migrations)


def test_our_migration_inside_a_revision(place: Place, tmp_path: Path) -> None:
    config = alembic(place, tmp_path, "op.postroad_migrate()", "op.postroad_migrate()")
    command.upgrade(config, "head")
    assert versions(place) == ALL
    command.downgrade(config, "base")
    command.upgrade(config, "head")
    assert versions(place) == ALL, "what is there stays, and is not made twice"


def test_a_later_revision_applies_what_a_newer_version_brings(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer version has two more migrations. `through` stops at one of them; what is there is not made again."""
    config = alembic(place, tmp_path, "op.postroad_migrate()")
    command.upgrade(config, "head")
    dialect = DIALECTS[place.dialect]
    newer = tmp_path / "newer"
    shutil.copytree(str(dialect.folder), newer)
    for number in (2, 3):
        table = f"{{schema}}{dialect.separator}"
        (newer / f"000{number}_more.sql").write_text(
            f"create table {table}more{number} (id integer);\n"
            f"insert into {table}migrations (version) values ({number});\n"
        )
    monkeypatch.setattr(dialect, "folder", newer)
    config = alembic(
        place, tmp_path, "op.postroad_migrate()", "op.postroad_migrate(through=2)", "op.postroad_migrate()"
    )
    command.upgrade(config, "r2")
    assert versions(place) == [1, 2]
    command.upgrade(config, "head")
    assert versions(place) == [1, 2, 3]


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


def written_by_autogenerate(config: Config, revision: str) -> list[str]:
    """The operations in a revision that `alembic revision --autogenerate` writes."""
    script = command.revision(config, "autogenerated", autogenerate=True, rev_id=revision)
    assert isinstance(script, Script)
    return re.findall(r"op\.(\w+\('\w+')", Path(script.path).read_text().partition("def downgrade")[0])


@pytest.mark.parametrize("migrated_by", ["a later revision", "an earlier revision", "the command line"])
def test_autogenerate_writes_the_application_s_own_tables_alone(place: Place, tmp_path: Path, migrated_by: str) -> None:
    """The first time, when our tables may not be there yet, and ever after."""
    earlier = ["op.postroad_migrate()"] if migrated_by == "an earlier revision" else []
    config = alembic(place, tmp_path, *earlier)
    if migrated_by == "the command line":
        url = re.sub(r"\+\w+", "", place.plain)
        subprocess.run(
            [sys.executable, "-m", "postroad", "migrate", "--database", url], check=True, capture_output=True
        )
    command.upgrade(config, "head")
    assert written_by_autogenerate(config, "auto1") == ["create_table('orders'"]
    command.upgrade(config, "head")
    if migrated_by == "a later revision":
        script = command.revision(config, "ours", rev_id="ours")
        assert isinstance(script, Script)
        path = Path(script.path)
        path.write_text(path.read_text().replace("    pass", "    op.postroad_migrate()", 1))
        command.upgrade(config, "head")
    assert versions(place) == ALL
    assert written_by_autogenerate(config, "auto2") == []
    command.upgrade(config, "head")
    command.check(config)  # raises when autogenerate would write anything


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


def test_another_schema_is_named(migrated: Place) -> None:
    assert differences(migrated, MetaData(), include_name=partial(include_name, schema="shop")) == []
    dropped = [each[1].name for each in differences(migrated, MetaData(), include_name=include_name)]
    assert {"outbox", "shop_outbox"} & set(dropped), "without that, and without the hook, autogenerate would drop ours"


def test_tables_of_the_application_with_a_similar_name_are_compared(migrated: Place) -> None:
    """A table of the same name in another schema, one in the same schema, and one with the same prefix."""
    names = ["public.outbox", "shop.orders", "shop_orders"] if migrated.dialect == "postgresql" else ["shop_orders"]
    engine = create_engine(migrated.plain, poolclass=NullPool)
    with engine.begin() as connection:
        for name in names:
            connection.exec_driver_sql(f"create table {name} (id integer primary key)")
    found = differences(migrated, MetaData(), include_name=partial(include_name, schema="shop"))
    assert sorted((kind, table.name) for kind, table in found) == sorted(
        ("remove_table", name.rpartition(".")[2]) for name in names
    )


def test_our_tables_in_the_default_schema_are_left_alone(pg_url: str) -> None:
    """Alembic has no name for the default schema."""
    asyncio.run(migrate_postgresql(pg_url, "public"))
    plain = pg_url.replace("postgresql", "postgresql+psycopg", 1)
    place = Place("postgresql", plain, plain)
    assert differences(place, MetaData(), include_name=partial(include_name, schema="public")) == []


# -- statements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_statements_are_whole(dialect: SQLDialect) -> None:
    statements = dialect.migration_statements()
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
    assert dialect.migration_statements(after=SCHEMA_VERSION) == []


async def test_the_lock_is_the_one_that_postroad_migrate_takes(pg_url: str) -> None:
    engine = create_async_engine(pg_url.replace("postgresql", "postgresql+asyncpg", 1), poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.exec_driver_sql(POSTGRESQL.lock_statement("postroad"))
        other = asyncio.create_task(migrate_postgresql(pg_url))
        waiting = "select count(*) from pg_locks where not granted"
        async with engine.connect() as watcher:
            async with asyncio.timeout(60):
                while not (await watcher.exec_driver_sql(waiting)).scalar():
                    pass  # the question itself gives the others their turn
        assert not other.done()
        await connection.rollback()
    assert await other == ALL
