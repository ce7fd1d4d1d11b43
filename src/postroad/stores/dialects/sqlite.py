"""SQLite's dialect."""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import IdTaken, InvalidSetting
from postroad.message import LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_NAME
from postroad.stores.dialects.base import POSITIONS, DatabaseErrors, SQLDialect
from postroad.stores.dialects.sqlite_statements import SQLiteStatements
from postroad.stores.migrations import not_migrated
from postroad.stores.urls import sqlite_path

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.errors import PostroadError
    from postroad.stores.admin.admin import Admin
    from postroad.stores.base import Store
    from postroad.stores.facts import FactReader
    from postroad.stores.statements import Placeholders, Statements

__all__ = ["SQLITE"]

# Another connection has locked the file, or the file can't be written.
_RETRYABLE: Final = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_PROTOCOL",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_CANTOPEN",
)


class _SQLiteErrors(DatabaseErrors):
    """The errors of sqlite3, which is below every driver."""

    def is_retryable(self, error: BaseException) -> bool:
        return str(getattr(error, "sqlite_errorname", "")).startswith(_RETRYABLE)

    def is_transient(self, error: BaseException) -> bool:
        operational = any(base.__name__ == "OperationalError" for base in type(error).__mro__)
        return operational and str(error).lower().startswith("database is locked")

    def as_ours(self, error: BaseException, schema: str) -> PostroadError | None:
        words = str(error)
        if any(f"{schema}_{table}.payload" in words for table in ("outbox", "scheduled")):
            return IdTaken(
                "another message has this id already, with other content; add this one with an id of its own"
            )
        if f"no such table: {schema}_outbox" in words:
            return not_migrated(schema)
        if any(f"no such table: {schema}_{table}" in words for table in ("scheduled", "inbox")):
            return not_migrated(schema, None)
        return None


class _SQLite(SQLDialect):
    """SQLite, in a file."""

    name = "sqlite"
    begin_before_savepoint = True
    title = "SQLite"
    schemes = ("sqlite",)
    sqlalchemy_drivers = frozenset({"aiosqlite", "pysqlite"})
    has_roles = False
    separator = "_"
    errors = _SQLiteErrors()
    sink_tables = (*SQLDialect.sink_tables, "leases")
    expressions = {  # noqa: RUF012 - never changed
        "{positions}": str(POSITIONS),
        "{now}": "cast((julianday('now') - 2440587.5) * 86400000000 as integer)",
        "{size}": f"case when length(payload) <= {LARGEST_PAYLOAD_OF_ALL} "
        f"and length(cast(content_type as blob)) <= {LONGEST_NAME} "
        f"and length(cast(headers as blob)) <= {LONGEST_HEADERS} then length(payload) + length(headers) end",
        "{contents}": "case when size is null then x'' else payload end as payload, "
        "case when size is null then '' else content_type end as content_type, "
        "case when size is null then '' else headers end as headers",
    }

    @cache  # noqa: B019 - as in the base class
    def statements(self, schema: str, placeholders: Placeholders) -> Statements:
        return SQLiteStatements(self.queries(schema), placeholders)

    def migration_script(self, schema: str = DEFAULT_SCHEMA) -> str:
        body = "\n".join(self.sql_file(name, schema) for name in self.migrations.values())
        # Writers and the relay must not block each other; SQLite changes this only outside a transaction.
        return f"pragma journal_mode = wal;\nbegin;\n\n{body}\ncommit;\n"

    def _pieces(self, script: str) -> list[str]:
        statements, begun = [], ""
        for line in script.splitlines(keepends=True):
            begun += "" if line.startswith("--") else line
            if sqlite3.complete_statement(begun):  # which knows where a trigger ends
                statements.append(begun.strip().removesuffix(";"))
                begun = ""
        return [*statements, begun]

    def exists_statement(self, schema: str) -> str:
        return f"select 1 from sqlite_master where name = '{checked_schema(schema)}_migrations'"  # noqa: S608 - checked

    def log_statement(self, schema: str) -> str:
        return f"""
            select position, id, topic, key, slot, type, payload, content_type, headers, created_at
              from {checked_schema(schema)}_outbox order by position"""  # noqa: S608 - a checked name

    def scheduled_statement(self, schema: str) -> str:
        return f"""
            select number, id, topic, key, slot, type, payload, content_type, headers, created_at, due_at
              from {checked_schema(schema)}_scheduled order by due_at, number"""  # noqa: S608 - a checked name

    def move_statements(self, schema: str, id: UUID) -> list[str]:
        schema = checked_schema(schema)
        columns = "id, topic, key, slot, type, payload, content_type, headers"
        return [
            f"""
            insert into {schema}_outbox ({columns}) select {columns} from {schema}_scheduled where id = '{id}'
            on conflict (id) do nothing returning 1""",  # noqa: S608 - checked
            f"delete from {schema}_scheduled where id = '{id}' returning 1",  # noqa: S608 - checked
        ]

    def writers_statement(self, schema: str, *, id: Any, table: str, where: str) -> str:
        raise InvalidSetting("only PostgreSQL records which transaction wrote a row; this is SQLite")

    async def migrate(self, url: str, schema: str) -> list[int]:
        from postroad.stores.sqlite import migrate_sqlite

        return migrate_sqlite(sqlite_path(url), schema)

    def store(self, url: str, *, schema: str, direct: str | None, connections: int) -> Store:
        from postroad.stores.sqlite import SQLiteStore

        return SQLiteStore(sqlite_path(url), schema=schema)

    def admin(self, url: str, *, schema: str, connections: int) -> Admin:
        from postroad.stores.admin.admin import Admin
        from postroad.stores.admin.sqlite import SQLiteAdminDatabase

        return Admin(SQLiteAdminDatabase(sqlite_path(url), schema=schema, connections=connections))

    def facts(self, url: str, *, schema: str, direct: str | None) -> FactReader:
        from postroad.stores.sqlite_facts import SQLiteFacts

        return SQLiteFacts(sqlite_path(url), schema=schema)


SQLITE: Final = _SQLite()
