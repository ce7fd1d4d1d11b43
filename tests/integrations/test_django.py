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

import django
import pytest

from postroad import InvalidSetting
from postroad.django.databases import database_url
from postroad.kinds import is_url
from postroad.stores.dialects import POSTGRESQL, SQLITE
from postroad.stores.sqlite import migrate_sqlite
from tests.conftest import GUARDED_PASSWORD
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

    @property
    def vendor(self) -> str:
        return "sqlite" if "sqlite" in self.database["ENGINE"] else "postgresql"

    def run(self, *arguments: str, fails: bool = False, **more: Any) -> str:
        environment = os.environ | {"DATABASES": json.dumps({"default": self.database}), "MORE": json.dumps(more)}
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=self.folder, env=environment, check=False, capture_output=True, text=True, timeout=120,
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
    output = site.manage("migrate", POSTROAD_SCHEMA="shop")
    for name in SQLITE.migrations.values():
        assert f"Applying postroad.{name.removesuffix('.sql')}... OK" in output
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
            len(POSTGRESQL.migrations),
        )
        found = connection.execute("select count(*) from sqlite_master where name = 'postroad_lanes'").fetchone()
    assert found == (0,), "nothing runs twice: an old migration could undo a newer one"


def test_sqlmigrate_shows_what_would_run(site: Site) -> None:
    output = site.manage("sqlmigrate", "postroad", "0001")
    assert "create table" in output
    assert "migrations (version) values (1)" in output
    assert "CANNOT BE WRITTEN AS SQL" not in output


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


# -- commands of manage.py -------------------------------------------------------------------------------------------

STOCK = """
import os
from contextlib import contextmanager
from django.contrib.contenttypes.models import ContentType  # can be imported only after django.setup()
from django.db import connection, transaction
from postroad import Consumer, Inbox

@contextmanager
def begin():
    with transaction.atomic():
        yield connection

consumer = Consumer(os.environ.get("BROKER"), name="stock", begin=begin, inbox=Inbox(schema="shop"))

@consumer.on(dict, type="order.created")
def reserve(event, tx, message):
    print("reserved", event["order"])
"""
SETTINGS = """
import json, os
SECRET_KEY, USE_TZ, DATABASES = "tests", True, json.loads(os.environ["DATABASES"])
INSTALLED_APPS = ["django.contrib.contenttypes", "postroad.django"]
POSTROAD_SCHEMA = "shop"
"""


def test_the_commands_use_the_databases_of_the_project(site: Site) -> None:
    warned = site.manage("check", "--database", "default", POSTROAD_SCHEMA="shop")
    assert "(postroad.W001) DATABASES['default'] has no postroad tables in 'shop'" in warned
    assert "schema 'shop' is ready" in site.manage("postroad_migrate", POSTROAD_SCHEMA="shop")
    assert "no issues" in site.manage("check", "--database", "default", POSTROAD_SCHEMA="shop")
    site.manage("migrate", POSTROAD_SCHEMA="shop")
    site.run("adding.py", POSTROAD_SCHEMA="shop")
    relayed = site.manage("postroad_relay", "--to", "null://", "--until-empty", POSTROAD_SCHEMA="shop")
    assert "1 published in " in relayed


def test_a_module_of_a_django_project_is_imported_after_setup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.manage("postroad_migrate", POSTROAD_SCHEMA="shop")
    site.run("adding.py", POSTROAD_SCHEMA="shop")
    (site.folder / "stock.py").write_text(STOCK)
    (site.folder / "site_settings.py").write_text(SETTINGS)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "site_settings")
    url = database_url(site.vendor, site.database)
    options = ["--app", "stock:consumer", "--until-empty", "--database", url, "--schema", "shop"]
    assert "reserved 1" in site.run("-m", "postroad", "relay", *options)
    assert "has no broker" in site.run("-m", "postroad", "consume", "--app", "stock:consumer", fails=True)


def test_messages_go_through_rabbitmq(site: Site, vhost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", vhost)
    (site.folder / "stock.py").write_text(STOCK.replace("from django.contrib.contenttypes.models", "#"))

    def consumed() -> str:
        return site.manage("postroad_consume", "--app", "stock:consumer", "--until-empty", POSTROAD_SCHEMA="shop")

    site.manage("postroad_migrate", POSTROAD_SCHEMA="shop")
    assert "reserved" not in consumed(), "it has made its queue"
    site.run("adding.py", POSTROAD_SCHEMA="shop")
    relayed = site.manage("postroad_relay", "--to", vhost, "--until-empty", POSTROAD_SCHEMA="shop")
    assert "1 published in " in relayed
    assert "reserved 1" in consumed()
    assert "reserved" not in consumed()


def test_the_project_s_database_and_schema_win_over_variables(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_DATABASE", "sqlite:///elsewhere.sqlite")
    monkeypatch.setenv("POSTROAD_SCHEMA", "elsewhere")
    assert "schema 'postroad' is ready" in site.manage("postroad_migrate")
    assert "No migrations to apply" not in site.manage("migrate"), "Django has not noted them"
    assert "no issues" in site.manage("check", "--database", "default")
    assert not (site.folder / "elsewhere.sqlite").exists()


def test_any_command_of_postroad(site: Site) -> None:
    site.manage("postroad_migrate", POSTROAD_SCHEMA="shop")
    site.run("adding.py", POSTROAD_SCHEMA="shop")
    assert "1 message; no relay has run yet" in site.manage("postroad", "messages", POSTROAD_SCHEMA="shop")
    assert "No dead message matches" in site.manage("postroad", "dead", "list", POSTROAD_SCHEMA="shop")
    output = site.manage("postroad", "dead", "retry", "--help")
    assert "An alias of DATABASES" in output
    assert "--reason" in output


def test_help_shows_the_options_of_both(site: Site) -> None:
    for output in (site.manage("postroad_relay", "--help"), site.manage("help", "postroad_relay")):
        assert "An alias of DATABASES" in output
        assert "--until-empty" in output


# -- how DATABASES names a server ------------------------------------------------------------------------------------


@pytest.fixture
def guarded_site(guarded: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A project whose database wants the password of its user; a password file and a service file are there."""
    url = guarded.create_database()
    name = urlsplit(url).path[1:]
    guarded.execute(url, f"alter database {name} owner to shop")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"*:*:*:*:{GUARDED_PASSWORD}\n")
    passwords.chmod(0o600)
    (tmp_path / "services").write_text(f"[shop]\nhost=127.0.0.1\nport={guarded.port}\ndbname={name}\nuser=shop\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    where = {"NAME": name, "USER": "shop", "HOST": "127.0.0.1", "PORT": str(guarded.port)}
    return Site(tmp_path, {"ENGINE": "django.db.backends.postgresql", **where})


WITHOUT_POOL: dict[str, Any] = {"pool": False} if django.VERSION >= (5, 1) else {}


@pytest.mark.parametrize(
    "how",
    [
        {"PASSWORD": GUARDED_PASSWORD, "CONN_MAX_AGE": 60},
        {"PASSWORD": GUARDED_PASSWORD, "OPTIONS": {"sslmode": "disable", "gssencmode": "disable", **WITHOUT_POOL}},
        {"OPTIONS": {"passfile": "passwords"}},
        {"OPTIONS": {"passfile": "passwords"}, "HOST": "socket", "PORT": ""},
        {"OPTIONS": {"passfile": "passwords", "service": "shop"}, "NAME": "", "USER": "", "HOST": "", "PORT": ""},
    ],
    ids=["password", "options", "passfile", "socket", "service"],
)  # fmt: skip
def test_the_relay_connects_as_django_does(
    guarded_site: Site, guarded: PostgreSQL, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    if how.get("HOST") == "socket":
        how = how | {"HOST": str(guarded.folder)}
        monkeypatch.setenv("PGPORT", str(guarded.port))
    guarded_site.database |= how
    assert "postroad.W001" in guarded_site.manage("check", "--database", "default")
    assert "schema 'postroad' is ready" in guarded_site.manage("postroad_migrate")
    assert "no issues" in guarded_site.manage("check", "--database", "default")


@pytest.mark.parametrize(
    ("wrong", "output"),
    [
        ({"PASSWORD": "battery-staple"}, 'password authentication failed for user "shop"'),
        ({"PASSWORD": GUARDED_PASSWORD, "OPTIONS": {"sslmode": "require"}}, "SSL"),
        ({"OPTIONS": {"service": "stock"}}, "database names the service 'stock'; "),
        ({"OPTIONS": {"channel_binding": "require"}}, "DATABASES['default']: OPTIONS has 'channel_binding', which"),
        ({"NAME": "nowhere", "PASSWORD": GUARDED_PASSWORD}, 'database "nowhere" does not exist'),
    ],
)
def test_what_is_wrong_with_a_server_is_one_line(guarded_site: Site, wrong: dict[str, Any], output: str) -> None:
    guarded_site.database |= wrong
    for command in (("postroad_migrate",), ("postroad_relay", "--to", "null://")):
        text = guarded_site.manage(*command, fails=True)
        assert output in text.splitlines()[-1]
        assert "Traceback" not in text
        assert "battery-staple" not in text
        assert GUARDED_PASSWORD not in text


def test_the_check_of_a_user_without_rights(guarded_site: Site, guarded: PostgreSQL) -> None:
    guarded_site.database |= {"PASSWORD": GUARDED_PASSWORD}
    guarded_site.manage("postroad_migrate")
    url = guarded.url(guarded_site.database["NAME"])
    guarded.execute(
        url, "alter table postroad.migrations owner to postgres; revoke all on postroad.migrations from shop"
    )
    output = guarded_site.manage("check", "--database", "default")
    assert "(postroad.W001)" in output
    assert "the version of the postroad tables in 'postroad' can't be read: permission denied" in output
    assert "Traceback" not in output


def test_what_is_wrong_with_a_command_is_one_line(site: Site) -> None:
    output = site.manage("postroad_relay", "--database", "elsewhere", fails=True)
    assert output == "CommandError: --database is 'elsewhere'; DATABASES has 'default'\n"
    output = site.manage("postroad_relay", "--lanes", "0", fails=True)
    assert output.startswith("postroad: lanes is 0; it must be")
    output = site.manage("postroad_consume", fails=True)
    assert output.startswith("postroad: app is not set; give it as --app")


def test_async_views_and_atomic_requests(site: Site) -> None:
    (site.folder / "urls.py").write_text(
        "from functools import partial\nfrom django.db import transaction\n"
        "from django.urls import include, path\nfrom django.views import View\n"
        "async def place(request): ...\n"
        "@transaction.non_atomic_requests\nasync def look(request): ...\n"
        "def plain(request): ...\n"
        "class Offers(View):\n    async def get(self, request): ...\n"
        "urlpatterns = [path('api/', include([path('a', place), path('b', look)])), path('c', plain),\n"
        "    path('d', Offers.as_view()), path('e', partial(place)), path('f', partial(plain))]\n"
    )
    assert "no issues" in site.manage("check", ROOT_URLCONF="urls")
    site.database["ATOMIC_REQUESTS"] = True
    output = site.manage("check", ROOT_URLCONF="urls")
    assert "(postroad.W002) view urls.place is async, and ATOMIC_REQUESTS works with sync views only" in output
    assert "(postroad.W002) view urls.Offers is async" in output
    assert "(postroad.W002) view functools.partial(<function place" in output
    assert output.count("postroad.W002") == 3


@pytest.mark.parametrize(
    ("vendor", "settings", "url"),
    [
        ("sqlite", {"NAME": Path("/srv/a b.db")}, "sqlite:////srv/a%20b.db"),
        ("postgresql", {"NAME": "shop", "PORT": ""}, "postgresql:///shop"),
        ("postgresql", {"NAME": None}, "postgresql:///postgres"),
        (
            "postgresql",
            {"NAME": "s/p", "USER": "me@corp", "PASSWORD": "p:@/ 1", "HOST": "db.example", "PORT": 5433},
            "postgresql://me%40corp:p%3A%40%2F%201@/s%2Fp?host=db.example&port=5433",
        ),
        (
            "postgresql",
            {"NAME": "x", "USER": "u", "HOST": "/run/pg", "PORT": "5433",
             "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 4, "assume_role": "owner"}},
            "postgresql://u@/x?sslmode=require&role=owner&host=%2Frun%2Fpg&port=5433",
        ),
        ("postgresql", {"NAME": "x", "HOST": "::1,db2"}, "postgresql:///x?host=%5B%3A%3A1%5D%2Cdb2"),
        ("postgresql", {"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql://?service=shop"),
    ],
)  # fmt: skip
def test_a_database_of_django_as_a_url(vendor: str, settings: dict[str, Any], url: str) -> None:
    assert database_url(vendor, settings) == url
    assert is_url(url)


@pytest.mark.parametrize("name", [":memory:", "file:shop?mode=memory&cache=shared"])
def test_a_database_in_memory_is_refused(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path, {"ENGINE": "django.db.backends.sqlite3", "NAME": name})
    output = site.manage("postroad_migrate", fails=True)
    assert output.startswith(f"CommandError: DATABASES['default']: NAME is {name!r}; it must be the path of a file, ")
    assert output.count("\n") == 1


def test_a_kind_of_database_that_postroad_does_not_know() -> None:
    with pytest.raises(InvalidSetting, match="'mysql'"):
        database_url("mysql", {"NAME": "x"})


def test_every_migration_of_postroad_is_one_of_django() -> None:
    import postroad.django.migrations

    folder = Path(postroad.django.migrations.__path__[0])
    ours = [Path(name).stem for name in POSTGRESQL.migrations.values()]
    assert sorted(path.stem for path in folder.glob("[0-9]*.py")) == ours
    for number, name in zip(POSTGRESQL.migrations, ours, strict=True):
        assert f"ApplyMigration({number})" in (folder / f"{name}.py").read_text()
