"""Our migrations inside yours: `op.postroad_migrate()` in an Alembic revision, once this module was imported.

It runs in the revision's own transaction, and applies what the database has not had yet, so a later revision with the
same line brings a later postroad's tables. Nothing is ever dropped: a downgrade leaves the log, and what waits in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroad.config import DEFAULT_SCHEMA
from postroad.errors import MissingExtra
from postroad.stores.scripts import (
    dialect_named,
    lock_statement,
    migration_statements,
    pin_statements,
    restore_statements,
    there_statement,
    version_statement,
)

try:
    from alembic.operations import MigrateOperation, Operations
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"alembic", "sqlalchemy"}:
        raise
    raise MissingExtra("postroad.alembic", "alembic") from error

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from postroad.stores.queries import Dialect

__all__ = ["PostroadMigrate", "migrate"]


def migrate(op: Any, *, schema: str = DEFAULT_SCHEMA, after: int = 0, through: int | None = None) -> None:
    """The same as `op.postroad_migrate(...)`, for those who like a plain function."""
    op.invoke(PostroadMigrate(schema, after=after, through=through))


@Operations.register_operation("postroad_migrate")
class PostroadMigrate(MigrateOperation):
    """Apply our migrations through a number, or all. With `--sql` there is no database to ask what it has had:
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
        statements = migration_statements(dialect, wanted.schema, after=wanted.after, through=wanted.through)
        for statement in (*pin_statements(dialect), *statements, *restore_statements(dialect)):
            context.impl.static_output(statement + ";")
        return
    connection = operations.get_bind()
    for statement in pin_statements(dialect):
        _run(connection, statement)
    version = max(wanted.after, _version(connection, dialect, wanted.schema))
    statements = migration_statements(dialect, wanted.schema, after=version, through=wanted.through)
    for statement in (*statements, *restore_statements(dialect)):
        _run(connection, statement)


def _version(connection: Connection, dialect: Dialect, schema: str) -> int:
    if dialect == "postgresql":
        _run(connection, lock_statement(schema))
    elif not _run(connection, there_statement(dialect, schema)).first():
        return 0
    return _run(connection, version_statement(dialect, schema)).one()[0] or 0


def _run(connection: Connection, sql: str) -> Any:
    # Without parameters a driver leaves percent signs alone.
    return connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
