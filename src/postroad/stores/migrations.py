"""Bringing a database's schema up to date, and refusing one that does not fit.

Migrations are numbered .sql files per database. A database tells how old a client may be (`min_client`), so old and new
code run side by side during a deploy: code is refused only when the database asks for more than it knows.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import ClientTooOld, InvalidSetting, MissingExtra, NotMigrated, StoreUnavailable
from postroad.stores.queries import migration_files, named_queries, sql_file

if TYPE_CHECKING:
    from pathlib import Path

    from postroad.stores.queries import Dialect

__all__ = [
    "SCHEMA_VERSION",
    "check_version",
    "grants_script",
    "migrate_postgresql",
    "migrate_sqlite",
    "migration_script",
    "not_migrated",
]

SCHEMA_VERSION: Final = max(migration_files("postgresql"))
"""The schema that this code knows."""

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")
_LOCK_CLASS: Final = 0x706F7374  # "post": keeps our advisory locks apart from others'


def check_version(found: Any, schema: str) -> None:
    """Refuse a schema that this code can't work with. `found` is the row of the query schema_version."""
    version, min_client = found
    if version is None or version < SCHEMA_VERSION:
        raise not_migrated(schema, version or 0)
    if min_client > SCHEMA_VERSION:
        raise ClientTooOld(
            f"schema {schema!r} asks for a client of version {min_client} and this one knows {SCHEMA_VERSION}; "
            "upgrade postroad"
        )


def not_migrated(schema: str, version: int = 0) -> NotMigrated:
    """The error for a database that must be migrated first."""
    state = f"is at version {version}" if version else "is not there"
    return NotMigrated(
        f"schema {schema!r} {state} and this postroad needs version {SCHEMA_VERSION}; "
        "run: postroad migrate --database URL"
    )


def migration_script(dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """All migrations as one script, for a person or another tool to apply."""
    body = "\n".join(sql_file(dialect, name, schema) for name in migration_files(dialect).values())
    return f"begin;\n\n{body}\ncommit;\n"


def grants_script(role: str, schema: str = DEFAULT_SCHEMA) -> str:
    """What a PostgreSQL role needs in order to add messages, and no more."""
    if not _ROLE.fullmatch(role):
        raise InvalidSetting(f"grants is {role!r}; it must be the name of a PostgreSQL role")
    return sql_file("postgresql", "grants.sql", schema).replace("{role}", f'"{role}"')


async def migrate_postgresql(url: str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Apply what is missing, in one transaction, and say which numbers those were. Two at once wait for each other."""
    try:
        import asyncpg
    except ImportError as error:
        raise MissingExtra("a postgresql:// database", "postgresql") from error
    try:
        connection = await asyncpg.connect(url)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"PostgreSQL can't be reached: {error or type(error).__name__}") from error
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1, hashtext($2))", _LOCK_CLASS, schema)
            there = await connection.fetchval("select to_regclass($1) is not null", f"{checked_schema(schema)}.migrations")
            version = (await connection.fetchrow(named_queries("postgresql", schema)["schema_version"]))[0] if there else 0
            missing = _missing("postgresql", version)
            for name in missing.values():
                await connection.execute(sql_file("postgresql", name, schema))
    except asyncpg.PostgresError as error:
        raise StoreUnavailable(f"PostgreSQL did not take the migration, and nothing was changed: {error}") from error
    finally:
        await connection.close()
    return list(missing)


def migrate_sqlite(path: Path | str, schema: str = DEFAULT_SCHEMA) -> list[int]:
    """Apply what is missing, in one transaction, and say which numbers those were. Two at once wait for each other."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("pragma journal_mode = wal")  # writers and the relay must not block each other
            connection.execute("begin immediate")
            missing = _missing("sqlite", _sqlite_version(connection, schema))
            for name in missing.values():
                for statement in _statements(sql_file("sqlite", name, schema)):
                    connection.execute(statement)
            connection.execute("commit")
    except sqlite3.Error as error:
        raise StoreUnavailable(f"SQLite did not take the migration of {path}, and nothing was changed: {error}") from error
    return list(missing)


def _sqlite_version(connection: sqlite3.Connection, schema: str) -> int:
    table = f"{checked_schema(schema)}_migrations"
    there = connection.execute("select 1 from sqlite_schema where name = ?", (table,)).fetchone()
    return int(connection.execute(f"select max(version) from {table}").fetchone()[0]) if there else 0  # noqa: S608


def _missing(dialect: Dialect, version: int | None) -> dict[int, str]:
    return {number: name for number, name in migration_files(dialect).items() if number > (version or 0)}


def _statements(script: str) -> list[str]:
    """Split a script; sqlite3's own `executescript` would commit the transaction that is open."""
    statements, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            statements.append(begun)
            begun = ""
    return statements
