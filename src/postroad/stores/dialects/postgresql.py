"""PostgreSQL's dialect."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.message import LARGEST_PAYLOAD_OF_ALL, LONGEST_HEADERS, LONGEST_NAME
from postroad.stores.dialects.base import POSITIONS, SQLDialect
from postroad.stores.dialects.postgresql_errors import PostgreSQLErrors
from postroad.stores.dialects.postgresql_statements import PostgreSQLStatements
from postroad.stores.search_path import PIN_BORROWED, PIN_TRANSACTION, RESTORE_BORROWED

if TYPE_CHECKING:
    from uuid import UUID

    from postroad.stores.admin.admin import Admin
    from postroad.stores.base import Store
    from postroad.stores.facts import FactReader
    from postroad.stores.statements import Placeholders, Statements

__all__ = ["LAST_XID", "POSTGRESQL"]

LAST_XID: Final = (1 << 64) - 1

# What may contain a semicolon that ends nothing: a function's body, a text, a comment.
_PIECE: Final = re.compile(r"\$\$.*?\$\$|'(?:[^']|'')*'|--[^\n]*|;|[^$'\-;]+|.", re.DOTALL)


class _PostgreSQL(SQLDialect):
    """PostgreSQL 13 or newer."""

    name = "postgresql"
    title = "PostgreSQL"
    schemes = ("postgresql", "postgres")
    sqlalchemy_drivers = frozenset({"asyncpg", "pg8000", "psycopg", "psycopg2", "psycopg2cffi"})
    has_roles = True
    separator = "."
    pin_statements = PIN_BORROWED
    restore_statements = RESTORE_BORROWED
    sink_tables = ("replication_slots", *SQLDialect.sink_tables)
    shared_facts = ("schema_version", "server_facts", "blockers")
    errors = PostgreSQLErrors()
    # The stored size of headers comes first in the condition, because it is known without decompressing them.
    expressions = {  # noqa: RUF012 - never changed
        "{size}": f"case when octet_length(payload) <= {LARGEST_PAYLOAD_OF_ALL} "
        f"and octet_length(content_type) <= {LONGEST_NAME} and pg_column_size(headers) <= {LONGEST_HEADERS} "
        f"and octet_length(headers::text) <= {LONGEST_HEADERS} "
        "then octet_length(payload) + length(headers::text) end",
        # All but a few of the rows that are ever read are only compared with this. Characters are not counted here, and
        # what is compared with it is never more than headers may have.
        "{bytes}": f"case when octet_length(content_type) <= {LONGEST_NAME} "
        "then octet_length(payload) + octet_length(headers::text) end",
        "{contents}": "case when size is null then ''::bytea else payload end as payload, "
        "case when size is null then '' else content_type end as content_type, "
        "case when size is null then '' else headers::text end as headers",
        # A timestamp, which the relay reads as the integer that it is on the wire. That counts microseconds from 2000,
        # which is 262,968 hours after 1970.
        "{created_us}": "created_at at time zone interval '262968 hours' as created_us",
        # age() has the low 32 bits of the next xid, or the transaction's own if it has one. It keeps them for the rest
        # of the transaction, so it must not be called before the snapshot is taken: not in an earlier statement, and
        # not in a condition, which the planner may evaluate.
        "{next_xid}": "(pg_snapshot_xmax(pg_current_snapshot())::text::bigint + ((age('3'::xid)::bigint + 3 "
        "- pg_snapshot_xmax(pg_current_snapshot())::text::bigint) & 4294967295))",
        "{last_xid}": str(LAST_XID),
        "{positions}": str(POSITIONS),
    }

    @cache  # noqa: B019 - as in the base class
    def statements(self, schema: str, placeholders: Placeholders) -> Statements:
        return PostgreSQLStatements(self.queries(schema), placeholders)

    def migration_script(self, schema: str = DEFAULT_SCHEMA) -> str:
        body = "\n".join(self.sql_file(name, schema) for name in self.migrations.values())
        return f"begin;\n{PIN_TRANSACTION};\n\n{body}\ncommit;\n"

    def _pieces(self, script: str) -> list[str]:
        statements, begun = [], ""
        for piece in _PIECE.findall(script):
            if piece == ";":
                statements.append(begun.strip())
                begun = ""
            elif not piece.startswith("--"):
                begun += piece
        return [*statements, begun]

    def lock_statement(self, schema: str) -> str:
        """`postroad migrate` runs the same statement.

        A table is locked and not an advisory lock, which a role without rights could take; so that table is made before
        all others.
        """
        schema = checked_schema(schema)
        return f"""do $$
begin
    if pg_catalog.to_regclass('{schema}.migrations') is null then
        begin
            create schema if not exists {schema};
            create table if not exists {schema}.migrations (
                version    integer     primary key,
                applied_at timestamptz not null default now()
            );
        exception
            when unique_violation or duplicate_schema or duplicate_table then
                null;  -- another migration was faster, and has committed
        end;
    end if;
    lock table {schema}.migrations in exclusive mode;
end
$$"""

    def exists_statement(self, schema: str) -> str:
        return f"select 1 where pg_catalog.to_regclass('{checked_schema(schema)}.migrations') is not null"

    def log_statement(self, schema: str) -> str:
        return f"""
            select position, id::text, topic, key, slot, type, payload, content_type, headers::text,
                   (extract(epoch from created_at) * 1000000)::bigint
              from {checked_schema(schema)}.outbox order by position"""  # noqa: S608 - a checked name

    def scheduled_statement(self, schema: str) -> str:
        return f"""
            select number, id::text, topic, key, slot, type, payload, content_type, headers::text,
                   (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from due_at) * 1000000)::bigint
              from {checked_schema(schema)}.scheduled order by due_at, number"""  # noqa: S608 - a checked name

    def move_statements(self, schema: str, id: UUID) -> list[str]:
        schema = checked_schema(schema)
        columns = "id, topic, key, slot, type, payload, content_type, headers, added_by"
        return [
            f"""
            with taken as (delete from {schema}.scheduled where id = '{id}' returning *)
            insert into {schema}.outbox ({columns}) select {columns} from taken
            on conflict (id) do nothing returning 1"""  # noqa: S608 - checked
        ]

    def writers_statement(self, schema: str, *, id: Any, table: str, where: str) -> str:
        # A row's xmin is the transaction that wrote it, or its savepoint; the log also has the whole transaction.
        return f"""
            select o.xmin::text, o.xid::xid::text, r.xmin::text
              from {checked_schema(schema)}.outbox o left join (select xmin from {table} where {where}) r on true
             where o.id = '{id}'"""  # noqa: S608 - the test's own SQL

    async def migrate(self, url: str, schema: str) -> list[int]:
        from postroad.stores.postgresql import migrate_postgresql

        return await migrate_postgresql(url, schema)

    def store(self, url: str, *, schema: str, direct: str | None, connections: int) -> Store:
        from postroad.stores.postgresql import PostgreSQLStore

        return PostgreSQLStore(url, schema=schema, direct=direct, connections=connections)

    def admin(self, url: str, *, schema: str, connections: int) -> Admin:
        from postroad.stores.admin.admin import Admin
        from postroad.stores.admin.postgresql import PostgreSQLAdminDatabase

        return Admin(PostgreSQLAdminDatabase(url, schema=schema, connections=connections))

    def facts(self, url: str, *, schema: str, direct: str | None) -> FactReader:
        from postroad.stores.postgresql_facts import PostgreSQLFacts

        return PostgreSQLFacts(url, schema=schema, direct=direct)


POSTGRESQL: Final = _PostgreSQL()
