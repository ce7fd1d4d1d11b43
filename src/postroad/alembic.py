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
        for statement in migration_statements(dialect, wanted.schema, after=wanted.after, through=wanted.through):
            context.impl.static_output(statement + ";")
        return
    connection = operations.get_bind()
    if dialect == "postgresql":
        _run(connection, lock_statement(wanted.schema))
    version = wanted.after
    if _run(connection, there_statement(dialect, wanted.schema)).first():
        version = max(version, _run(connection, version_statement(dialect, wanted.schema)).one()[0] or 0)
    for statement in migration_statements(dialect, wanted.schema, after=version, through=wanted.through):
        _run(connection, statement)


def _run(connection: Connection, sql: str) -> Any:
    # Without parameters a driver leaves percent signs alone.
    return connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
