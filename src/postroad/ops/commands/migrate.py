"""`postroad migrate`: create or update the tables, or print the SQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.errors import InvalidSetting
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.stores import dialect_of
from postroad.stores import migrate as migrate_database
from postroad.stores.grants import grants_script

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
            help="Print the grants that a PostgreSQL role needs as an application, relay, operator or reader, to read "
            "payloads, or as debezium, and change nothing. Repeatable.",
        ),
    ] = None,
) -> None:
    """Create or update postroad's tables."""
    database, schema = settings.needed("database"), settings.command.schema
    dialect = dialect_of(database)
    if grants and not dialect.has_roles:
        raise InvalidSetting(f"grants is for a database with roles, such as PostgreSQL; {dialect.title} has none")
    if sql:
        typer.echo(dialect.migration_script(schema), nl=False)
    for grant in grants or ():
        kind, _, role = grant.rpartition("=")
        typer.echo(grants_script(role, schema, kind=kind or "application"), nl=False)
    if sql or grants:
        return
    applied = asyncio.run(migrate_database(database, schema))
    names = dialect.migrations
    for number in applied:
        typer.echo(f"applied {names[number].removesuffix('.sql')}")
    typer.echo(f"schema {schema!r} is {'ready' if applied else 'already up to date'}")
