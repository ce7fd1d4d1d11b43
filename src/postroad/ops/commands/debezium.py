"""`postroad debezium`: a configuration for Debezium's connector, and whether the database is ready for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.admin import Carrier, Level, examine_carrier
from postroad.errors import InvalidSetting
from postroad.ops.connector import PASSWORD, connector
from postroad.ops.options import FOR_ANY_DATABASE, takes
from postroad.ops.rendering.findings import findings_text
from postroad.ops.terminal import as_json, output
from postroad.stores.replication import SCHEME, slot_of_destination

if TYPE_CHECKING:
    from postroad.ops.settings import Settings

__all__ = ["debezium"]


@takes(*FOR_ANY_DATABASE, "direct", "to")
def debezium(
    *,
    settings: Settings,
    slot: Annotated[
        str | None,
        typer.Option("--slot", metavar="NAME", help="The replication slot; by default that of --to, or postroad."),
    ] = None,
    publication: Annotated[str, typer.Option("--publication", metavar="NAME", help="The publication.")] = "postroad",
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="The role of Debezium.")] = "debezium",
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="SOURCE", help="The source of the application's messages, for the header ce_source."
        ),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show what is well, too, with the values found.")] = False,
) -> None:
    """Print a configuration for Debezium's connector, as Kafka Connect takes it, and check what it needs.

    The configuration is on stdout, without the password. On stderr is what is missing in the database, with the
    statement that adds it; the command fails then. Changes nothing.
    """
    name = slot or slot_of_destination(settings.command.to) or "postroad"
    if settings.command.to is not None and slot_of_destination(settings.command.to) not in {None, name}:
        raise InvalidSetting(f"--slot is {name!r}, and to is {settings.command.to!r}; they must name the same slot")
    database, schema = settings.needed("database"), settings.command.schema
    carrier = Carrier(name, publication, role)
    config = connector(settings.command.direct or database, schema, carrier, source=source)
    findings = asyncio.run(examine_carrier(database, carrier, schema=schema))
    typer.echo(as_json({"name": name, "config": config}))
    typer.echo(findings_text(findings, width=output().width, show_all=show_all), err=True)
    typer.echo(f"Put the role's password in the place of {PASSWORD}. Follow the slot with: "
               f"postroad relay --sink {name} --to {SCHEME}{name}", err=True)  # fmt: skip
    if any(each.level is Level.ERROR for each in findings):
        raise typer.Exit(1)
