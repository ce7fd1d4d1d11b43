"""The one operation of our Django migrations: apply postroad's numbered migration of the same number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import router
from django.db.migrations.operations.base import Operation

from postroad.config import DEFAULT_SCHEMA
from postroad.stores.dialects import dialect_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState

    from postroad.stores.dialects import SQLDialect

__all__ = ["ApplyMigration", "schema_version"]


class ApplyMigration(Operation):
    """Apply one of postroad's migrations, unless the database has had it already from `postroad migrate`.

    There is no way back: dropping the log would lose what waits in it.
    """

    reversible = False
    reduces_to_sql = True

    def __init__(self, number: int) -> None:
        self.number = number

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """There are no models, so there is no state."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Run the statements in the migration's own transaction."""
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return
        dialect = dialect_named(connection.vendor)
        schema: str = getattr(settings, "POSTROAD_SCHEMA", DEFAULT_SCHEMA)
        _run(schema_editor, dialect.pin_statements)
        # `sqlmigrate` only collects the statements: it asks the database nothing.
        if schema_editor.collect_sql or _locked_version(connection, dialect, schema) < self.number:
            _run(schema_editor, dialect.migration_statements(schema, after=self.number - 1, through=self.number))
        _run(schema_editor, dialect.restore_statements)

    def describe(self) -> str:
        """The line that `migrate` prints."""
        return f"Apply postroad's migration {self.number}"


def _run(schema_editor: BaseDatabaseSchemaEditor, statements: Sequence[str]) -> None:
    for statement in statements:
        schema_editor.execute(statement, params=None)


def _locked_version(connection: Any, dialect: SQLDialect, schema: str) -> int:
    """How far the schema has been migrated, once no other migration is under way."""
    lock = dialect.lock_statement(schema)
    if lock is not None:
        with connection.cursor() as cursor:
            cursor.execute(lock)
    return schema_version(connection, dialect, schema)


def schema_version(connection: Any, dialect: SQLDialect, schema: str) -> int:
    """How far the schema has been migrated; 0 where it is not there."""
    with connection.cursor() as cursor:
        cursor.execute(dialect.exists_statement(schema))
        if cursor.fetchone() is None:
            return 0
        cursor.execute(dialect.version_statement(schema))
        return int(cursor.fetchone()[0] or 0)
