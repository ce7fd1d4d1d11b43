"""Our migrations as single statements, for those who run them in a transaction of their own: Alembic and Django.

Not every driver takes a script of several statements, so the files are taken apart here. Nothing here does I/O.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Final

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidSetting
from postroad.stores.queries import Dialect, migration_files, sql_file
from postroad.stores.search_path import PIN_BORROWED, RESTORE_BORROWED

__all__ = [
    "dialect_named",
    "empty_statements",
    "lock_statement",
    "migration_statements",
    "pin_statements",
    "restore_statements",
    "sqlite_statements",
    "there_statement",
    "version_statement",
]

if TYPE_CHECKING:
    from collections.abc import Sequence

# What may contain a semicolon that ends nothing: a function's body, a text, a comment.
_PIECE: Final = re.compile(r"\$\$.*?\$\$|'(?:[^']|'')*'|--[^\n]*|;|[^$'\-;]+|.", re.DOTALL)
_TABLE: Final = re.compile(r"create (?:unlogged )?table if not exists (\S+)")


def dialect_named(name: str) -> Dialect:
    """The dialect that SQLAlchemy or Django calls by that name."""
    match name:
        case "postgresql" | "sqlite":
            return name
    raise InvalidSetting(f"the database is of kind {name!r}; postroad's tables can be in postgresql or sqlite")


def migration_statements(
    dialect: Dialect, schema: str = DEFAULT_SCHEMA, *, after: int = 0, through: int | None = None
) -> list[str]:
    """The statements of the migrations after one number, through another or to the last."""
    files = migration_files(dialect)
    if through is not None and through not in files:
        raise InvalidSetting(f"through is {through!r}; the migrations that this postroad has are {list(files)}")
    wanted = [name for number, name in files.items() if after < number <= (through or max(files))]
    split = sqlite_statements if dialect == "sqlite" else _postgresql_statements
    return [statement for name in wanted for statement in split(sql_file(dialect, name, schema))]


def pin_statements(dialect: Dialect) -> Sequence[str]:
    """To be run before all others: from here on, names without a schema are PostgreSQL's own."""
    return PIN_BORROWED if dialect == "postgresql" else ()


def restore_statements(dialect: Dialect) -> Sequence[str]:
    """To be run after all others: the rest of the transaction has the search_path that it had before."""
    return RESTORE_BORROWED if dialect == "postgresql" else ()


def lock_statement(schema: str) -> str:
    """PostgreSQL: of two migrations at once, one waits for the other. `postroad migrate` runs the same statement.

    Roles without rights can't lock a table, as they could an advisory lock; so the table is there before all others.
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


def there_statement(dialect: Dialect, schema: str) -> str:
    """Gives a row when the schema has been migrated at all."""
    schema = checked_schema(schema)
    if dialect == "sqlite":
        return f"select 1 from sqlite_master where name = '{schema}_migrations'"  # noqa: S608 - a checked name
    return f"select 1 where pg_catalog.to_regclass('{schema}.migrations') is not null"


def version_statement(dialect: Dialect, schema: str) -> str:
    """Gives a row with how far the schema has been migrated."""
    schema = checked_schema(schema)
    return f"select max(version) from {schema}{'_' if dialect == 'sqlite' else '.'}migrations"  # noqa: S608 - checked


def empty_statements(dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Leave the tables as the migrations made them. Each statement gives a row for each row that it deletes."""
    made = _TABLE.findall("\n".join(migration_statements(dialect, schema)))
    kept = {name for name in made if name.endswith(("migrations", "installation", "locks"))}
    return [f"delete from {name} returning 1" for name in made if name not in kept]  # noqa: S608 - our own names


def sqlite_statements(script: str) -> list[str]:
    """A script's statements; SQLite itself knows where a trigger ends."""
    statements, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += "" if line.startswith("--") else line
        if sqlite3.complete_statement(begun):
            statements.append(begun.strip().removesuffix(";"))
            begun = ""
    return _checked(statements, begun)


def _postgresql_statements(script: str) -> list[str]:
    statements, begun = [], ""
    for piece in _PIECE.findall(script):
        if piece == ";":
            statements.append(begun.strip())
            begun = ""
        elif not piece.startswith("--"):
            begun += piece
    return _checked(statements, begun)


def _checked(statements: list[str], rest: str) -> list[str]:
    if rest.strip():
        raise ValueError(f"a migration ends within a statement: {rest.strip()[:80]!r}")
    return statements
