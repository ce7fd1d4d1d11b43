"""Which schema this code knows, and refusing a database that does not fit. Each store applies its migrations itself.

Migrations are numbered .sql files per database. A database tells how old a client may be (`min_client`), so old and new
code run side by side during a deploy: code is refused only when the database asks for more than it knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import ClientTooOld, InvalidSetting, NotMigrated
from postroad.stores.queries import migration_files, sql_file
from postroad.stores.search_path import PIN_TRANSACTION

if TYPE_CHECKING:
    from postroad.stores.queries import Dialect

__all__ = [
    "GRANTS",
    "SCHEMA_VERSION",
    "check_version",
    "grants_script",
    "migration_script",
    "missing_migrations",
    "not_migrated",
]

SCHEMA_VERSION: Final = max(migration_files("postgresql"))
"""The schema that this code knows."""

GRANTS: Final = ("application", "relay", "operator", "reader", "payloads")
"""What roles are for. `payloads` is for readers and operators that are to see payloads, beside their own grants."""

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")


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


def not_migrated(schema: str, version: int | None = 0) -> NotMigrated:
    """The error for a database that must be migrated first. `version` is None where nobody has asked for it."""
    state = f"is at version {version}" if version else "is not there" if version == 0 else "is not there, or too old,"
    return NotMigrated(
        f"schema {schema!r} {state} and this postroad needs version {SCHEMA_VERSION}; "
        "run: postroad migrate --database URL"
    )


def migration_script(dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """All migrations as one script, for a person or another tool to apply."""
    body = "\n".join(sql_file(dialect, name, schema) for name in migration_files(dialect).values())
    if dialect == "postgresql":
        return f"begin;\n{PIN_TRANSACTION};\n\n{body}\ncommit;\n"
    # Writers and the relay must not block each other; SQLite changes this only outside a transaction.
    return f"pragma journal_mode = wal;\nbegin;\n\n{body}\ncommit;\n"


def grants_script(role: str, schema: str = DEFAULT_SCHEMA, *, kind: str = "application") -> str:
    """What a PostgreSQL role needs for one of `GRANTS`, and no more."""
    if kind not in GRANTS:
        raise InvalidSetting(f"grants is for {kind!r}; it must be for one of {', '.join(GRANTS)}, as in relay=ROLE")
    if not _ROLE.fullmatch(role):
        raise InvalidSetting(f"grants is {role!r}; it must be the name of a PostgreSQL role")
    return sql_file("postgresql", f"grants/{kind}.sql", schema).replace("{role}", f'"{role}"')


def missing_migrations(dialect: Dialect, version: int | None) -> dict[int, str]:
    """What a database at this version has not had yet: number to file name."""
    return {number: name for number, name in migration_files(dialect).items() if number > (version or 0)}
