"""postroad beside Alembic: `op.postroad_migrate()` in a revision, and `include_name` for autogenerate in env.py.

Importing this module registers the operation. It runs in the revision's own transaction and applies the migrations that
the database has not had yet, so a later revision with the same line applies those of a later postroad. Nothing is ever
dropped: a downgrade leaves the log, and the messages in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import MissingExtra
from postroad.stores.dialects import DIALECTS, dialect_named

try:
    from alembic.operations import MigrateOperation, Operations
    from sqlalchemy.dialects.postgresql.base import PGDialect
    from sqlalchemy.types import NullType
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"alembic", "sqlalchemy"}:
        raise
    raise MissingExtra("postroad.alembic", "alembic") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

    from postroad.stores.dialects import SQLDialect

__all__ = ["PostroadMigrate", "include_name", "migrate"]

# Where `include_name` leaves no table of a schema, Alembic reads the columns of all of them, and SQLAlchemy would warn
# of two types of ours that it does not know.
for _type in ("xid8", "pg_snapshot"):
    PGDialect.ischema_names.setdefault(_type, NullType)


def include_name(
    name: str | None, type_: str, parent_names: Mapping[str, str | None], *, schema: str = DEFAULT_SCHEMA
) -> bool:
    """For `context.configure(include_name=include_name)`: False for postroad's own tables.

    Autogenerate then never drops or changes them, and your metadata does not describe them; it makes no difference
    whether they are there yet. With another schema than "postroad", pass `partial(include_name, schema="events")`;
    beside a rule of your own, pass a function that asks both.
    """
    if type_ != "table":
        return True
    within = parent_names.get("schema_name")
    if within is None and schema == "public":  # Alembic has no name for the default schema
        within = schema
    full_name = name if within is None else f"{within}.{name}"
    return not any(full_name in dialect.tables(schema) for dialect in DIALECTS.values())


def migrate(op: Any, *, schema: str = DEFAULT_SCHEMA, after: int = 0, through: int | None = None) -> None:
    """The same as `op.postroad_migrate(...)`, as a plain function."""
    op.invoke(PostroadMigrate(schema, after=after, through=through))


@Operations.register_operation("postroad_migrate")
class PostroadMigrate(MigrateOperation):
    """Apply our migrations through a number, or all. With `--sql` there is no database that knows which it has had:
    `after` says it.
    """

    def __init__(self, schema: str = DEFAULT_SCHEMA, *, after: int = 0, through: int | None = None) -> None:
        self.schema = schema
        self.after = after
        self.through = through

    @classmethod
    def postroad_migrate(
        cls, operations: Operations, *, schema: str = DEFAULT_SCHEMA, after: int = 0, through: int | None = None
    ) -> None:
        """Apply postroad's migrations that this database has not had yet."""
        operations.invoke(cls(schema, after=after, through=through))


@Operations.implementation_for(PostroadMigrate)
def _apply(operations: Operations, wanted: PostroadMigrate) -> None:
    context = operations.migration_context
    dialect = dialect_named(context.dialect.name)
    if context.as_sql:
        statements = dialect.migration_statements(wanted.schema, after=wanted.after, through=wanted.through)
        for statement in (*dialect.pin_statements, *statements, *dialect.restore_statements):
            context.impl.static_output(statement + ";")
        return
    connection = operations.get_bind()
    for statement in dialect.pin_statements:
        _run(connection, statement)
    version = max(wanted.after, _version(connection, dialect, wanted.schema))
    statements = dialect.migration_statements(wanted.schema, after=version, through=wanted.through)
    for statement in (*statements, *dialect.restore_statements):
        _run(connection, statement)


def _version(connection: Connection, dialect: SQLDialect, schema: str) -> int:
    lock = dialect.lock_statement(schema)
    if lock is not None:
        _run(connection, lock)
    if not _run(connection, dialect.exists_statement(schema)).first():
        return 0
    return _run(connection, dialect.version_statement(schema)).one()[0] or 0


def _run(connection: Connection, sql: str) -> Any:
    # Without parameters a driver leaves percent signs alone.
    return connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
