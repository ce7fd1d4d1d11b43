"""Our tables as SQLAlchemy sees them, so that Alembic's autogenerate finds nothing to add, drop or change.

They describe what the migrations in stores/sql make; they don't replace them. tests/integrations/test_alembic.py
migrates real databases and compares: a migration that changes a table changes it here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sqlalchemy import event

from postroad.config import DEFAULT_SCHEMA, checked_schema
from postroad.errors import InvalidSetting
from postroad.sqlalchemy.postgresql_tables import postgresql_tables
from postroad.sqlalchemy.sqlite_tables import sqlite_tables

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

__all__ = ["tables"]


def tables(
    metadata: MetaData, *, dialect: Literal["postgresql", "sqlite"] = "postgresql", schema: str = DEFAULT_SCHEMA
) -> list[Table]:
    """Describe our tables in your metadata, as they are in one kind of database, and give them.

    `metadata.create_all` refuses to make them, because it would make half of what is needed: migrate instead.
    """
    schema = checked_schema(schema)
    match dialect:
        case "postgresql":
            made = postgresql_tables(metadata, schema)
        case "sqlite":
            made = sqlite_tables(metadata, schema)
        case _:
            raise InvalidSetting(f"dialect is {dialect!r}; postroad's tables can be in 'postgresql' or 'sqlite'")
    for table in made:
        event.listen(table, "before_create", _refuse)
    return made


def _refuse(table: Table, *_: object, **__: object) -> None:
    raise InvalidSetting(
        f"{table.fullname} can't be made by create_all, which makes no functions and notes no version; "
        "run postroad's own migrations first: op.postroad_migrate(), or postroad migrate"
    )
