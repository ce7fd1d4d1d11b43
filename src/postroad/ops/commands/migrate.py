"""`postroad migrate`: create or update the tables, or print the SQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.errors import InvalidSetting
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.stores import dialect_of
from postroad.stores import migrate as migrate_database
from postroad.stores.migrations import grants_script, migration_script
from postroad.stores.queries import migration_files

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["migrate"]


@takes(*FOR_ANY_DATABASE)
def migrate(
    *,
    settings: Settings,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL and change nothing.")] = False,
    grants: Annotated[
        list[str] | None,
        typer.Option(
            "--grants",
            metavar="[KIND=]ROLE",
            help="Print the grants that a PostgreSQL role needs as an application, relay, operator or reader, or to "
            "read payloads, and change nothing. Repeatable.",
        ),
    ] = None,
) -> None:
    """Create or update postroad's tables."""
    database, schema = settings.needed("database"), settings.command.schema
    dialect = dialect_of(database)
    if grants and dialect != "postgresql":
        raise InvalidSetting("grants is for PostgreSQL; an SQLite file has no roles")
    if sql:
        typer.echo(migration_script(dialect, schema), nl=False)
    for grant in grants or ():
        kind, _, role = grant.rpartition("=")
        typer.echo(grants_script(role, schema, kind=kind or "application"), nl=False)
    if sql or grants:
        return
    applied = asyncio.run(migrate_database(database, schema))
    names = migration_files(dialect)
    for number in applied:
        typer.echo(f"applied {names[number].removesuffix('.sql')}")
    typer.echo(f"schema {schema!r} is {'ready' if applied else 'already up to date'}")
