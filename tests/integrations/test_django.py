"""Real Django, in a process of its own, on real databases: `migrate`, `makemigrations --check`, `sqlmigrate`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from postroad.stores.queries import migration_files
from postroad.stores.sqlite import migrate_sqlite
from tests.services.postgresql import PostgreSQL

SITE = """
import json, os, sys
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    SECRET_KEY="tests", USE_TZ=True, INSTALLED_APPS=["postroad.django"],
    DATABASES=json.loads(os.environ["DATABASES"]), **json.loads(os.environ.get("MORE", "{}")))
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""

ADDING = """
import django
import manage
django.setup()
from django.db import connection, transaction
from postroad import Outbox
from postroad.testing import outbox_messages
outbox = Outbox(source="/orders", schema="shop")
with transaction.atomic():
    outbox.add(connection, {"order": 1}, type="order.created", key=1)
try:
    with transaction.atomic():
        outbox.add(connection, {"order": 2}, type="order.created", key=2)
        raise LookupError
except LookupError:
    pass
print([each.key for each in outbox_messages(connection, schema="shop")])
"""


class Site:
    """A Django project of one file, with one database."""

    def __init__(self, folder: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        self.database = database
        (folder / "manage.py").write_text(SITE)
        (folder / "adding.py").write_text(ADDING)

    def run(self, *arguments: str, fails: bool = False, **more: Any) -> str:
        environment = os.environ | {"DATABASES": json.dumps({"default": self.database}), "MORE": json.dumps(more)}
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=self.folder, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def manage(self, *arguments: str, fails: bool = False, **more: Any) -> str:
        return self.run("manage.py", *arguments, fails=fails, **more)


@pytest.fixture(params=["postgresql", "sqlite"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        yield Site(tmp_path, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.sqlite")})
        return
    server: PostgreSQL = request.getfixturevalue("postgresql15")
    server.start()
    url = server.create_database()
    parts = urlsplit(url)
    where = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    yield Site(tmp_path, {"ENGINE": "django.db.backends.postgresql", **where})
    server.drop_database(url)


def test_migrate_add_and_nothing_more_to_make(site: Site) -> None:
    said = site.manage("migrate", POSTROAD_SCHEMA="shop")
    for name in migration_files("sqlite").values():
        assert f"Applying postroad.{name.removesuffix('.sql')}... OK" in said
    assert "No migrations to apply" in site.manage("migrate", POSTROAD_SCHEMA="shop")
    assert "No changes detected" in site.manage("makemigrations", "--check", "--dry-run", POSTROAD_SCHEMA="shop")
    assert "no issues" in site.manage("check")
    assert "'1'" in (keys := site.run("adding.py", POSTROAD_SCHEMA="shop"))
    assert "'2'" not in keys, "what was rolled back is not there"


def test_the_relays_own_check_is_content(site: Site, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`postroad migrate` finds nothing left to do."""
    site.manage("migrate")
    if "sqlite" in site.database["ENGINE"]:
        url = f"sqlite:///{tmp_path / 'shop.sqlite'}"
    else:
        url = f"postgresql://postgres@127.0.0.1:{site.database['PORT']}/{site.database['NAME']}"
    code = f"import asyncio; from postroad.stores import migrate; print(asyncio.run(migrate({url!r})))"
    assert site.run("-c", code).strip() == "[]"


def test_a_database_that_postroad_has_migrated_already(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "shop.sqlite")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        connection.execute("drop table postroad_lanes")
    site = Site(tmp_path, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.sqlite")})
    assert "OK" in site.manage("migrate")
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        assert connection.execute("select count(*) from postroad_migrations").fetchone() == (
            len(migration_files("postgresql")),
        )
        found = connection.execute("select count(*) from sqlite_master where name = 'postroad_lanes'").fetchone()
    assert found == (0,), "nothing runs twice: an old migration could undo a newer one"


def test_sqlmigrate_shows_what_would_run(site: Site) -> None:
    said = site.manage("sqlmigrate", "postroad", "0001")
    assert "create table" in said
    assert "migrations (version) values (1)" in said
    assert "CANNOT BE WRITTEN AS SQL" not in said


def test_there_is_no_way_back(site: Site) -> None:
    site.manage("migrate")
    assert "IrreversibleError" in site.manage("migrate", "postroad", "zero", fails=True)


def test_a_router_decides_where_the_tables_are(tmp_path: Path) -> None:
    site = Site(tmp_path, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "other.sqlite")})
    (tmp_path / "routes.py").write_text(
        "class Elsewhere:\n    def allow_migrate(self, db, app_label, **_):\n        return app_label != 'postroad'\n"
    )
    site.manage("migrate", DATABASE_ROUTERS=["routes.Elsewhere"])
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection:
        names = [row[0] for row in connection.execute("select name from sqlite_master")]
    assert not [name for name in names if name.startswith("postroad_")]


def test_every_migration_of_postroad_is_one_of_django() -> None:
    import postroad.django.migrations

    folder = Path(postroad.django.migrations.__path__[0])
    ours = [Path(name).stem for name in migration_files("postgresql").values()]
    assert sorted(path.stem for path in folder.glob("[0-9]*.py")) == ours
    for number, name in zip(migration_files("postgresql"), ours, strict=True):
        assert f"ApplyMigration({number})" in (folder / f"{name}.py").read_text()
