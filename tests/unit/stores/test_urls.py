"""Database URLs: SQLAlchemy's are taken as well, an error names the host, and no secret is shown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.engine import make_url

from postroad import InvalidSetting, StoreUnavailable
from postroad.stores import dialect_of, migrate, open_admin, store_for
from postroad.stores.urls import driver_url, place_of, sqlite_path


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("postgresql://me@host/shop", "postgresql"),
        ("postgres://me@host/shop", "postgresql"),
        ("postgresql+asyncpg://me@host/shop", "postgresql"),
        ("postgresql+psycopg://me@host/shop", "postgresql"),
        ("postgresql+psycopg2://me@host/shop", "postgresql"),
        ("sqlite:///shop.db", "sqlite"),
        ("sqlite+aiosqlite:///shop.db", "sqlite"),
        ("sqlite+pysqlite:////srv/shop.db", "sqlite"),
    ],
)
def test_urls_of_sqlalchemy_are_taken(url: str, dialect: str) -> None:
    assert dialect_of(url).name == dialect
    store_for(url)
    open_admin(url)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("sslmode=verify-full&sslrootcert=/no/root.crt", "sslrootcert is '/no/root.crt'"),
        ("sslmode=require&sslcrl=/no/root.crl", "sslcrl is '/no/root.crl'"),
        ("sslcert=/no/me.crt", "sslcert is '/no/me.crt'"),
        ("sslmode=verify-ca", "root certificate file"),
    ],
)
async def test_a_missing_file_for_tls_is_named_and_not_waited_for(
    options: str, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = store_for(f"postgresql://me@127.0.0.1:1/shop?{options}")
    with pytest.raises(InvalidSetting, match=named):
        await store.open()
    with pytest.raises(InvalidSetting, match=named):
        await migrate(f"postgresql://me@127.0.0.1:1/shop?{options}")


async def test_a_file_that_the_environment_names_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLROOTCERT", "/no/root.crt")
    with pytest.raises(InvalidSetting, match="PGSSLROOTCERT is '/no/root.crt', which can't be read"):
        await store_for("postgresql://me@127.0.0.1:1/shop?sslmode=verify-full").open()


async def test_a_file_that_is_not_loaded_is_not_checked() -> None:
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await store_for("postgresql://me@127.0.0.1:1/shop?sslmode=disable&sslrootcert=/no/root.crt").open()


@pytest.mark.parametrize(
    "url", ["mysql://h/x", "mysql+pymysql://h/x", "postgresql+pigeon://h/x", "postgresql+://h/x", "sqlite+asyncpg:///x"]
)
def test_others_are_not(url: str) -> None:
    with pytest.raises(InvalidSetting, match=r"begins with '[a-z+]+'; it must be postgresql://.*postgresql\+asyncpg"):
        dialect_of(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a.db",
        "sqlite+aiosqlite:////srv/a.db",
        "sqlite+pysqlite:///a%20b.db",
        "sqlite:///a b.db",
        "sqlite:////a%25b",
    ],
)
def test_a_url_names_the_file_that_sqlalchemy_would_open(url: str) -> None:
    if "%" in url and sqlalchemy.__version__.startswith("2.0."):
        pytest.skip("SQLAlchemy 2.0 does not decode the name of a file, and 2.1 does")
    assert str(sqlite_path(url)) == make_url(url).database


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql+psycopg://me:p%40+s@h:1/x?sslmode=require", "postgresql://me:p%40+s@h:1/x?sslmode=require"),
        ("postgresql+asyncpg://me@h/x?ssl=require", "postgresql://me@h/x?sslmode=require"),
        ("postgresql+asyncpg://me@h/x?prepared_statement_cache_size=0", "postgresql://me@h/x"),
        ("postgresql+asyncpg://me@/x?host=%2Ftmp&async_fallback=1", "postgresql://me@/x?host=%2Ftmp"),
        ("postgresql://me@h/x?ssl=1", "postgresql://me@h/x?ssl=1"),
        ("host=h user=a+b", "host=h user=a+b"),
    ],
)
def test_what_is_sqlalchemy_s_own_is_left_out(url: str, driver: str) -> None:
    assert driver_url(url) == driver


def test_a_password_that_sqlalchemy_has_hidden_is_no_password() -> None:
    url = str(make_url("postgresql+asyncpg://me:secret@host/shop"))
    with pytest.raises(InvalidSetting, match=r"hide_password=False"):
        store_for(url)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:s@h:5/x", "h:5"),
        ("postgresql://me:s@a:1,b:2/x", "a:1,b:2"),
        ("postgresql:///x", ""),
        ("postgresql:///x?host=/tmp&password=s", "/tmp"),
        ("postgresql://me:12/34@host/x", ""),
        ("me:s@h", ""),
    ],
)
def test_the_place_of_a_url_has_no_secret(url: str, place: str) -> None:
    assert place_of(url) == place


@pytest.mark.parametrize("url", ["postgresql://me:geheim@no.such.host.invalid:5433/shop"])
async def test_an_unknown_host_is_named(url: str) -> None:
    named = r"^PostgreSQL at no\.such\.host\.invalid:5433 can't be reached: (?!.*geheim)"
    with pytest.raises(StoreUnavailable, match=named):
        await migrate(url)
    with pytest.raises(StoreUnavailable, match=named):
        await store_for(url).open()
    with pytest.raises(StoreUnavailable, match=named):
        async with open_admin(url):
            pass


async def test_an_sqlite_file_by_sqlalchemy_s_url(tmp_path: Path) -> None:
    await migrate(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("select count(*) from postroad_outbox").fetchone() == (0,)
