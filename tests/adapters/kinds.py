"""Every kind of connection that users have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tests.adapters import django, drivers, sqlalchemy
from tests.adapters.base import Adapter


class Kind(NamedTuple):
    name: str
    dialect: Literal["postgresql", "sqlite"]
    make: Callable[[Any], Adapter]


KINDS = [
    Kind("sqlite3", "sqlite", drivers.SQLite3),
    Kind("aiosqlite", "sqlite", drivers.AioSQLite),
    Kind("asyncpg", "postgresql", drivers.AsyncPG),
    Kind("psycopg", "postgresql", drivers.Psycopg),
    Kind("psycopg-async", "postgresql", drivers.PsycopgAsync),
    Kind("connection-psycopg", "postgresql", lambda to: sqlalchemy.OnConnection(to, "psycopg")),
    Kind("connection-pysqlite", "sqlite", lambda to: sqlalchemy.OnConnection(to, "pysqlite")),
    Kind("session-psycopg", "postgresql", lambda to: sqlalchemy.OnSession(to, "psycopg")),
    Kind("session-pysqlite", "sqlite", lambda to: sqlalchemy.OnSession(to, "pysqlite")),
    Kind("async-connection-psycopg", "postgresql", lambda to: sqlalchemy.OnAsyncConnection(to, "psycopg")),
    Kind("async-connection-asyncpg", "postgresql", lambda to: sqlalchemy.OnAsyncConnection(to, "asyncpg")),
    Kind("async-connection-aiosqlite", "sqlite", lambda to: sqlalchemy.OnAsyncConnection(to, "aiosqlite")),
    Kind("async-session-psycopg", "postgresql", lambda to: sqlalchemy.OnAsyncSession(to, "psycopg")),
    Kind("async-session-asyncpg", "postgresql", lambda to: sqlalchemy.OnAsyncSession(to, "asyncpg")),
    Kind("async-session-aiosqlite", "sqlite", lambda to: sqlalchemy.OnAsyncSession(to, "aiosqlite")),
    Kind("django-postgresql", "postgresql", django.Django),
    Kind("django-sqlite", "sqlite", django.Django),
    Kind("django-proxy", "sqlite", lambda to: django.Django(to, proxy=True)),
]
